"""Group commit on a real database: each caller its own answer, whatever happens to the connection."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from scheduler.core.states import AttemptOutcome, Refusal, State
from scheduler.store import sessions
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.worker.flusher import ClaimAnswer, ClaimWish, EndWish, Flusher
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until

Connection = psycopg.Connection[Any]


class Desk:
    """Hands wishes in and collects the answers."""

    def __init__(self, flusher: Flusher, session_id: UUID) -> None:
        self.flusher = flusher
        self.session_id = session_id
        self.claims: list[ClaimAnswer] = []
        self.ends: list[bool] = []

    def claim(self, run_id: UUID, due_at: datetime) -> None:
        claim = Claim(run_id=run_id, due_at=due_at, claim_id=uuid4())
        self.flusher.submit(ClaimWish(claim=claim, session_id=self.session_id, answer=self.claims.append))

    def end(self, held: Claimed, **fields: Any) -> None:
        ending = Ending(
            **{
                "run_id": held.run_id,
                "due_at": held.due_at,
                "fence": held.fence,
                "schedule_id": held.schedule_id,
                "slotted": held.slotted,
                "state": State.SUCCEEDED,
                "outcome": AttemptOutcome.SUCCEEDED,
                **fields,
            }
        )
        self.flusher.submit(EndWish(ending=ending, answer=self.ends.append))

    def won(self) -> list[Claimed]:
        return [answer for answer in self.claims if isinstance(answer, Claimed)]


def open_session(connection: Connection) -> UUID:
    session_id = uuid4()
    sessions.open_session(connection, session_id, kind="worker", worker="host:1", capacity=8, length_s=60)
    return session_id


def open_flusher(database_url: str) -> Flusher:
    return Flusher(lambda name: psycopg.connect(database_url, autocommit=True, application_name=name))


@pytest.fixture
def desk(connection: Connection, clean_database: str) -> Iterator[Desk]:
    flusher = open_flusher(clean_database)
    yield Desk(flusher, open_session(connection))
    if not flusher.is_alive():
        flusher.start()
    flusher.finish(10)
    assert not flusher.is_alive()


def test_one_message_many_times_in_one_flush_wins_once(ledger: HandMadeLedger, desk: Desk) -> None:
    run_id = ledger.run(ledger.instant(1), "QUEUED")
    for _ in range(20):
        desk.claim(run_id, ledger.instant(1))
    desk.flusher.start()  # all twenty wait by now: one flush
    wait_until(lambda: len(desk.claims) == 20)
    assert len(desk.won()) == 1
    assert desk.claims.count(Refusal.ALREADY_HELD) == 19
    assert ledger.connection.execute("SELECT count(*) FROM attempt").fetchone() == (1,)


def test_claims_and_ends_of_many_runs_share_flushes(ledger: HandMadeLedger, desk: Desk) -> None:
    for number in range(1, 51):
        desk.claim(ledger.run(ledger.instant(number), "QUEUED"), ledger.instant(number))
    desk.flusher.start()
    wait_until(lambda: len(desk.won()) == 50)
    for held in desk.won():
        desk.end(held)
    wait_until(lambda: len(desk.ends) == 50)
    assert all(desk.ends)
    assert ledger.connection.execute("SELECT DISTINCT state FROM occurrence").fetchall() == [("SUCCEEDED",)]


def test_a_late_end_is_refused_and_counted(ledger: HandMadeLedger, desk: Desk) -> None:
    run_id = ledger.run(ledger.instant(1), "QUEUED")
    desk.claim(run_id, ledger.instant(1))
    desk.flusher.start()
    (held,) = wait_until(desk.won)
    ledger.connection.execute("DELETE FROM lease")  # what the sweep does to a fence
    desk.end(held)
    wait_until(lambda: desk.ends == [False])
    assert ledger.connection.execute("SELECT state, late_writes_refused FROM occurrence").fetchone() == (
        "RUNNING",
        1,
    )


def kill_flusher_backend(connection: Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'worker flusher'"
        " AND datname = current_database()"
    )


def test_a_connection_that_was_cut_is_replaced_and_nothing_lost(ledger: HandMadeLedger, desk: Desk) -> None:
    first, second = (ledger.run(ledger.instant(n), "QUEUED") for n in (1, 2))
    desk.claim(first, ledger.instant(1))
    desk.flusher.start()
    (held,) = wait_until(desk.won)
    kill_flusher_backend(ledger.connection)
    desk.end(held)
    desk.claim(second, ledger.instant(2))
    wait_until(lambda: len(desk.won()) == 2)
    wait_until(lambda: desk.ends == [True])


def test_a_commit_whose_answer_was_lost_is_read_back_by_claim_id(
    ledger: HandMadeLedger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection dies between the commit and its answer: the claim has won, and is told so."""
    from scheduler.worker import flusher as module

    cut = threading.Event()

    def cut_once(name: str) -> None:
        if name in ("worker.after_claim_commit", "worker.after_complete_commit") and not cut.is_set():
            cut.set()
            raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(module, "fault_point", cut_once)
    desk.claim(ledger.run(ledger.instant(1), "QUEUED"), ledger.instant(1))
    desk.flusher.start()
    (held,) = wait_until(desk.won)
    assert held.attempt == 1
    cut.clear()
    desk.end(held)
    wait_until(lambda: desk.ends == [True])
    assert ledger.connection.execute(
        "SELECT attempt_count, late_writes_refused FROM occurrence"
    ).fetchone() == (
        1,
        0,
    )


def test_a_row_that_the_database_refuses_does_not_take_the_others_with_it(
    ledger: HandMadeLedger, desk: Desk
) -> None:
    for number in range(1, 10):
        desk.claim(ledger.run(ledger.instant(number), "QUEUED"), ledger.instant(number))
    desk.flusher.start()
    wait_until(lambda: len(desk.won()) == 9)
    for number, held in enumerate(desk.won()):
        desk.end(held, result="a\x00b" if number == 4 else "fine")
    wait_until(lambda: len(desk.ends) == 9)
    assert sorted(desk.ends) == [False] + [True] * 8


def test_waiting_for_the_database_is_not_the_callers(
    ledger: HandMadeLedger, desk: Desk, connect: Callable[[], Connection]
) -> None:
    """A run locked by somebody else holds the flush up; handing in never blocks."""
    run_id = ledger.run(ledger.instant(1), "QUEUED")
    blocker = connect()
    with blocker.transaction():
        blocker.execute("SELECT FROM occurrence FOR UPDATE")
        desk.claim(run_id, ledger.instant(1))
        desk.flusher.start()
        desk.claim(run_id, ledger.instant(1))
        assert desk.claims == []
    wait_until(lambda: len(desk.claims) == 2)
    assert len(desk.won()) == 1


def test_one_message_a_thousand_times_to_eight_workers_runs_once(
    ledger: HandMadeLedger, connection: Connection, clean_database: str
) -> None:
    run_id, due_at = ledger.run(ledger.instant(1), "QUEUED"), ledger.instant(1)
    desks = [Desk(open_flusher(clean_database), open_session(connection)) for _ in range(8)]
    for number in range(1000):
        desks[number % 8].claim(run_id, due_at)
    for desk in desks:
        desk.flusher.start()
    wait_until(lambda: sum(len(desk.claims) for desk in desks) == 1000, 30)
    (held,) = [held for desk in desks for held in desk.won()]
    assert sum(desk.claims.count(Refusal.ALREADY_HELD) for desk in desks) == 999
    assert ledger.connection.execute("SELECT attempt_count FROM occurrence").fetchone() == (1,)
    assert ledger.connection.execute("SELECT fence FROM attempt").fetchall() == [(held.fence,)]
    for desk in desks:
        desk.flusher.finish(10)
