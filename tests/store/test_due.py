"""Materialising on real rows: who moves a schedule makes its rows, nobody else."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from scheduler.core.materialise import DueSchedule, Move, NewOccurrence
from scheduler.store import due
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]


def read(connection: Connection, ledger: HandMadeLedger) -> DueSchedule:
    (schedule,) = due.due_schedules(connection, shards=range(256), horizon=ledger.instant(1), limit=10)
    return schedule


def move(schedule: DueSchedule, to: datetime | None, *due_at: datetime, **fields: Any) -> Move:
    occurrences = tuple(
        NewOccurrence(
            **{
                "id": uuid4(),
                "due_at": instant,
                "dispatch_at": instant,
                "overlap": schedule.overlap,
                "skip_reason": None,
                "overdue": False,
                "coalesced": 0,
                "coalesced_from": None,
                **fields,
            }
        )
        for instant in due_at
    )
    return Move(due=schedule, next_due_at=to, occurrences=occurrences)


def count(connection: Connection, table: str) -> int:
    (found,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or (0,)
    return int(found)


def test_rows_outbox_and_the_next_instant_come_together(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    schedule, now = read(connection, ledger), ledger.instant(1)
    done = due.materialise(connection, [move(schedule, ledger.instant(2), now)], now=now)
    assert (done.moved, done.inserted) == ({schedule.id}, 1)
    assert connection.execute("SELECT next_due_at, last_due_at FROM schedule").fetchone() == (
        ledger.instant(2),
        now,
    )
    agenda = connection.execute("SELECT dispatch_at, due_at, generation FROM outbox").fetchall()
    assert agenda == [(now, now, 1)]


def test_of_two_ticks_that_read_the_same_instant_one_makes_its_row(
    ledger: HandMadeLedger, connect: Callable[[], Connection], wait_for_lock: Callable[[int], None]
) -> None:
    first, second = connect(), connect()
    now = ledger.instant(1)
    theirs = move(read(second, ledger), ledger.instant(2), now)
    answers: list[due.Materialised] = []
    with first.transaction():
        due.materialise(first, [move(read(first, ledger), ledger.instant(2), now)], now=now)
        other = threading.Thread(target=lambda: answers.append(due.materialise(second, [theirs], now=now)))
        other.start()
        wait_for_lock(second.info.backend_pid)
    other.join(10)
    assert answers == [due.Materialised(moved=frozenset(), inserted=0)]
    assert count(first, "occurrence") == 1


@pytest.mark.parametrize(
    "change", ["revision = 2", "state = 'paused'", "next_due_at = next_due_at + interval '1 s'"]
)
def test_a_schedule_that_changed_meanwhile_is_left_alone(
    change: str, ledger: HandMadeLedger, connection: Connection
) -> None:
    now = ledger.instant(1)
    stale = move(read(connection, ledger), ledger.instant(2), now)
    connection.execute(f"UPDATE schedule SET {change}".encode())
    assert due.materialise(connection, [stale], now=now).inserted == 0
    assert count(connection, "occurrence") == count(connection, "outbox") == 0


def test_an_instant_that_has_its_row_already_is_passed_over(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    """The constraint behind the compare-and-swap: even a schedule set back by hand repeats nothing."""
    now = ledger.instant(1)
    ledger.run(now, "SUCCEEDED")
    done = due.materialise(connection, [move(read(connection, ledger), ledger.instant(2), now)], now=now)
    assert (len(done.moved), done.inserted, count(connection, "outbox")) == (1, 0, 0)


def test_skipped_rows_are_not_announced_and_carry_their_count(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    now = ledger.instant(3)
    missed = move(
        read(connection, ledger),
        ledger.instant(4),
        now,
        skip_reason="missed",
        coalesced=3,
        coalesced_from=ledger.instant(1),
    )
    due.materialise(connection, [missed], now=now)
    assert connection.execute(
        "SELECT state, skip_reason, coalesced, finished_at FROM occurrence"
    ).fetchone() == ("SKIPPED", "missed", 3, now)
    assert count(connection, "outbox") == 0


def test_a_schedule_without_a_further_instant_is_completed(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    now = ledger.instant(1)
    due.materialise(connection, [move(read(connection, ledger), None, now)], now=now)
    assert connection.execute("SELECT state, next_due_at FROM schedule").fetchone() == ("completed", None)


def test_a_request_is_due_at_once_and_on_the_agenda(ledger: HandMadeLedger, connection: Connection) -> None:
    now, run_id, key = ledger.instant(1), uuid4(), uuid4()
    made = due.request_run(
        connection, ledger.schedule_id, run_id=run_id, due_at=now, origin_key=key, overlap="skip", now=now
    )
    assert made == run_id
    assert connection.execute("SELECT origin, origin_key, overlap FROM occurrence").fetchone() == (
        "trigger",
        key,
        "skip",
    )
    assert connection.execute("SELECT run_id FROM outbox").fetchone() == (run_id,)
    nothing = due.request_run(
        connection,
        uuid4(),
        run_id=uuid4(),
        due_at=now + timedelta(seconds=1),
        origin_key=uuid4(),
        overlap="allow",
        now=now,
    )
    assert nothing is None
