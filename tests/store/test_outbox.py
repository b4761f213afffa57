"""Releases on real rows."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from scheduler.core.release import Candidate, decide
from scheduler.store import outbox
from scheduler.store.outbox import Standing
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]
SHARDS = range(256)


def put(ledger: HandMadeLedger, number: int, state: str = "PENDING", **columns: Any) -> UUID:
    """A run with the agenda row that its state asks for."""
    generation = columns.get("generation", 0 if state == "PENDING" else 1)
    run_id = ledger.run(ledger.instant(number), state, **columns)
    announced = generation if state == "QUEUED" else generation + 1
    ledger.outbox(run_id, ledger.instant(number), announced)
    return run_id


def release(connection: Connection, now: datetime) -> list[Standing]:
    rows = outbox.due_rows(connection, shards=SHARDS, limit=100)
    with connection.transaction():
        slots = outbox.lock_slots(connection, {row.schedule_id for row in rows if row.schedule_id})
        candidates: list[Candidate] = outbox.lock_candidates(connection, rows)
        batch = decide(candidates, slots=slots, now=now)
        return outbox.release(connection, batch.decisions, republish_s=20, recheck_s=60)


def now_of(connection: Connection) -> datetime:
    (now,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert now is not None
    return now


def states(connection: Connection) -> list[tuple[str, int]]:
    return connection.execute("SELECT state, generation FROM occurrence ORDER BY due_at").fetchall()


def test_a_release_queues_and_keeps_the_row_until_it_is_confirmed(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    run_id = put(ledger, 59)
    (standing,) = release(connection, now_of(connection))
    assert (standing.run_id, standing.generation, standing.queued) == (run_id, 1, True)
    assert states(connection) == [("QUEUED", 1)]
    assert outbox.due_rows(connection, shards=SHARDS, limit=10) == []  # it stands, for later
    assert 15 < (outbox.next_dispatch_s(connection, shards=SHARDS) or 0) <= 20
    assert outbox.confirmed(connection, [(run_id, 1)]) == 1
    assert outbox.next_dispatch_s(connection, shards=SHARDS) is None


def test_what_was_not_confirmed_is_published_again_without_a_second_release(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    run_id = put(ledger, 59)
    release(connection, now_of(connection))
    outbox.unconfirmed(connection, [(run_id, 1)])
    connection.execute("UPDATE outbox SET dispatch_at = clock_timestamp()")
    (again,) = release(connection, now_of(connection))
    assert (again.run_id, again.generation, again.queued) == (run_id, 1, False)
    assert states(connection) == [("QUEUED", 1)]


def test_a_retry_is_released_under_the_next_generation(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    put(ledger, 59, "RETRY_WAIT", attempt_count=1)
    (standing,) = release(connection, now_of(connection))
    assert standing.generation == 2
    assert states(connection) == [("QUEUED", 2)]


def test_rows_of_withdrawn_and_of_finished_runs_are_dropped(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    finished = put(ledger, 58, "SUCCEEDED")
    gone = put(ledger, 59)
    connection.execute("DELETE FROM occurrence WHERE id = %s", [gone])
    orphans = [row for row in outbox.due_rows(connection, shards=SHARDS, limit=9) if row.schedule_id is None]
    assert [row.run_id for row in orphans] == [gone]
    outbox.drop_rows(connection, orphans)
    assert release(connection, now_of(connection)) == []
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert finished != gone


def test_the_slot_lets_one_through_and_skips_the_rest(ledger: HandMadeLedger, connection: Connection) -> None:
    connection.execute("INSERT INTO overlap_slot (schedule_id) VALUES (%s)", [ledger.schedule_id])
    connection.execute("UPDATE schedule_revision SET catch_up_after_s = 7200")
    first, second = put(ledger, 58, overlap="skip"), put(ledger, 59, overlap="skip")
    release(connection, now_of(connection))
    assert connection.execute("SELECT state, skip_reason FROM occurrence ORDER BY due_at").fetchall() == [
        ("QUEUED", None),
        ("SKIPPED", "overlap"),
    ]
    assert connection.execute("SELECT run_id FROM overlap_slot").fetchone() == (first,)
    assert connection.execute("SELECT run_id FROM outbox").fetchall() == [(first,)]
    assert second != first


def test_runs_and_slots_that_others_have_locked_wait_for_the_next_round(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    put(ledger, 59)
    mine, theirs = connect(), connect()
    with theirs.transaction():
        theirs.execute("SELECT FROM occurrence FOR UPDATE")
        assert release(mine, now_of(mine)) == []
    assert len(release(mine, now_of(mine))) == 1


def test_two_relays_on_the_same_rows_release_each_once(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    put(ledger, 59)
    first, second = connect(), connect()
    rows = outbox.due_rows(second, shards=SHARDS, limit=10)  # read before the first releases
    assert len(release(first, now_of(first))) == 1
    with second.transaction():
        candidates = outbox.lock_candidates(second, rows)
        batch = decide(candidates, slots={}, now=now_of(second))
        late = outbox.release(second, batch.decisions, republish_s=20, recheck_s=60)
    assert late == []
    assert states(first) == [("QUEUED", 1)]


def test_late_siblings_are_those_that_waited_for_their_time_alone(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    expected = {put(ledger, 10), put(ledger, 11)}
    put(ledger, 12, "RETRY_WAIT")
    put(ledger, 200)  # not due yet
    found = outbox.late_siblings(connection, [ledger.schedule_id], now=now_of(connection))
    assert {row.run_id for row in found} == expected
