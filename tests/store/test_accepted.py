"""Runs that an endpoint has accepted: who may end them, and who wins when several come at once."""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler.core.states import AttemptOutcome, State
from scheduler.store import accepted, claims, invariants, schedules, sweep
from scheduler.store.claims import Ending
from scheduler.store.schedules import RunKey
from scheduler.store.statements import transaction
from tests.support.ledger import TARGET, HandMadeLedger

Connection = psycopg.Connection[Any]
Race = Callable[[int], None]


class Held:
    """A run under a lease of a worker's session, which lives."""

    def __init__(self, ledger: HandMadeLedger) -> None:
        self.ledger = ledger
        self.due_at = ledger.instant(1)
        self.run_id = ledger.attempted(self.due_at, "RUNNING", None)
        self.fence = ledger.fence
        ledger.lease(self.run_id, self.due_at, self.fence)
        ledger.execute("UPDATE lease SET ends_by = clock_timestamp() + interval '1 hour'")
        ledger.execute(
            "INSERT INTO session (id, kind, worker, started_at, renewed_at, expires_at)"
            " VALUES (%(id)s, 'worker', 'host:1', now(), now(), clock_timestamp() + interval '1 hour')",
            id=ledger.session_id,
        )

    def ending(self, state: State, outcome: AttemptOutcome, fence: int | None = None) -> Ending:
        return Ending(
            run_id=self.run_id,
            due_at=self.due_at,
            fence=fence or self.fence,
            schedule_id=self.ledger.schedule_id,
            slotted=False,
            state=state,
            outcome=outcome,
            delay_s=1.0 if state is State.RETRY_WAIT else None,
        )

    @property
    def success(self) -> Ending:
        return self.ending(State.SUCCEEDED, AttemptOutcome.SUCCEEDED)

    @property
    def loss(self) -> Ending:
        return self.ending(State.RETRY_WAIT, AttemptOutcome.LOST)

    def hand_over(self, connection: Connection, *, silent_for_s: float | None = None) -> None:
        with transaction(connection):
            claims.lock(connection, endings=[self.success])
            assert accepted.hand_over(connection, [self.success]) == {self.fence}
        if silent_for_s is not None:
            self.ledger.execute(
                "UPDATE lease SET expires_at = clock_timestamp() - make_interval(secs => %(s)s)",
                s=silent_for_s,
            )

    def state(self) -> str:
        row = self.ledger.connection.execute("SELECT state FROM occurrence").fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def held(ledger: HandMadeLedger) -> Held:
    return Held(ledger)


def dead(connection: Connection) -> list[UUID]:
    return [orphan.run_id for orphan in sweep.dead_leases(connection, limit=10)]


def overdue(connection: Connection) -> list[UUID]:
    return [orphan.run_id for orphan in sweep.overdue_leases(connection, silent=True, limit=10)]


def test_the_end_of_a_worker_is_no_end_of_what_it_has_let_go(held: Held, connection: Connection) -> None:
    held.ledger.execute("UPDATE target SET heartbeat_timeout_s = 60 WHERE id = %(id)s", id=TARGET)
    held.hand_over(connection)
    held.ledger.execute("DELETE FROM session")
    assert (dead(connection), overdue(connection)) == ([], [])
    assert claims.end_attempts(connection, [held.loss], guard="dead") == {}


def test_silence_ends_it_and_so_does_the_time_limit(held: Held, connection: Connection) -> None:
    held.hand_over(connection)
    held.ledger.execute("UPDATE lease SET ends_by = clock_timestamp()")
    assert (dead(connection), overdue(connection)) == ([], [held.run_id])
    held.ledger.execute("UPDATE lease SET expires_at = clock_timestamp()")
    assert (dead(connection), overdue(connection)) == ([held.run_id], [])
    assert claims.end_attempts(connection, [held.loss], guard="dead")[held.fence].state == State.RETRY_WAIT


def test_a_void_fence_lets_go_of_nothing(held: Held, connection: Connection) -> None:
    other = held.ending(State.RUNNING, AttemptOutcome.SUCCEEDED, fence=held.fence - 1)
    assert accepted.hand_over(connection, [other]) == set()
    assert accepted.heartbeat(connection, held.run_id, held.due_at, fence=held.fence - 1, progress={}) is None


def race(
    first: Connection, meanwhile: Callable[[], None], act: Callable[[], None], met: Race, pid: int
) -> None:
    """`act` on another connection comes while `meanwhile` is done but not committed."""
    other = threading.Thread(target=act)
    with transaction(first):
        meanwhile()
        other.start()
        met(pid)
    other.join(10)
    assert not other.is_alive()


class TestAtTheSameInstant:
    """One has the run locked and has not committed; the other waits for the lock, and then sees what is."""

    @pytest.fixture
    def pair(self, connect: Callable[[], Connection]) -> tuple[Connection, Connection]:
        return connect(), connect()

    def test_a_heartbeat_that_comes_after_the_sweep_is_refused(
        self, held: Held, pair: tuple[Connection, Connection], wait_for_lock: Race
    ) -> None:
        sweeping, telling = pair
        held.hand_over(sweeping, silent_for_s=1)
        heard: list[Any] = []

        def lose() -> None:
            claims.lock(sweeping, endings=[held.loss])
            assert claims.end_attempts(sweeping, [held.loss], guard="dead")

        def tell() -> None:
            with transaction(telling):
                schedules.lock_run(telling, RunKey(held.due_at, held.run_id))
                heard.append(
                    accepted.heartbeat(telling, held.run_id, held.due_at, fence=held.fence, progress={})
                )

        race(sweeping, lose, tell, wait_for_lock, telling.info.backend_pid)
        assert (heard, held.state()) == ([None], "RETRY_WAIT")

    def test_the_sweep_that_comes_after_a_heartbeat_takes_nothing(
        self, held: Held, pair: tuple[Connection, Connection], wait_for_lock: Race
    ) -> None:
        telling, sweeping = pair
        held.hand_over(sweeping, silent_for_s=1)
        assert dead(sweeping) == [held.run_id]  # it has seen the silence already
        taken: list[Any] = []

        def tell() -> None:
            schedules.lock_run(telling, RunKey(held.due_at, held.run_id))
            assert accepted.heartbeat(telling, held.run_id, held.due_at, fence=held.fence, progress={})

        def lose() -> None:
            with transaction(sweeping):
                claims.lock(sweeping, endings=[held.loss])
                taken.append(claims.end_attempts(sweeping, [held.loss], guard="dead"))

        race(telling, tell, lose, wait_for_lock, sweeping.info.backend_pid)
        assert (taken, held.state()) == ([{}], "RUNNING")

    def test_a_promise_that_is_recorded_after_the_end_changes_nothing(
        self, held: Held, pair: tuple[Connection, Connection], wait_for_lock: Race
    ) -> None:
        completing, recording = pair
        recorded: list[set[int]] = []

        def complete() -> None:
            claims.lock(completing, endings=[held.success])
            assert claims.end_attempts(completing, [held.success], guard="holder")

        def record() -> None:
            with transaction(recording):
                claims.lock(recording, endings=[held.success])
                recorded.append(accepted.hand_over(recording, [held.success]))
                recorded.append(accepted.reported(recording, [held.success]))

        race(completing, complete, record, wait_for_lock, recording.info.backend_pid)
        assert (recorded, held.state()) == ([set(), {held.fence}], "SUCCEEDED")

    def test_of_two_completions_one_is_written(
        self, held: Held, pair: tuple[Connection, Connection], wait_for_lock: Race
    ) -> None:
        first, second = pair
        held.hand_over(first)
        failure = held.ending(State.FAILED, AttemptOutcome.FAILED)
        written: list[Any] = []

        def succeed() -> None:
            claims.lock(first, endings=[held.success])
            assert claims.end_attempts(first, [held.success], guard="holder")

        def fail() -> None:
            with transaction(second):
                claims.lock(second, endings=[failure])
                written.append(claims.end_attempts(second, [failure], guard="holder"))

        race(first, succeed, fail, wait_for_lock, second.info.backend_pid)
        assert (written, held.state()) == ([{}], "SUCCEEDED")

    @pytest.mark.parametrize("cancel_first", [True, False])
    def test_a_wish_to_stop_gets_its_grace_in_either_order(
        self, held: Held, pair: tuple[Connection, Connection], wait_for_lock: Race, cancel_first: bool
    ) -> None:
        one, other = pair

        def cancel(connection: Connection) -> None:
            key = RunKey(held.due_at, held.run_id)
            schedules.lock_run(connection, key)
            schedules.cancel(connection, [key], now=_now(connection))

        def let_go(connection: Connection) -> None:
            claims.lock(connection, endings=[held.success])
            accepted.hand_over(connection, [held.success])

        first, second = (cancel, let_go) if cancel_first else (let_go, cancel)

        def afterwards() -> None:
            with transaction(other):
                second(other)

        race(one, lambda: first(one), afterwards, wait_for_lock, other.info.backend_pid)
        grace = "SELECT ends_by BETWEEN clock_timestamp() AND clock_timestamp() + interval '31 s' FROM lease"
        assert held.ledger.connection.execute(grace).fetchone() == (True,)


def test_a_parked_run_keeps_its_slot_and_verify_knows_it(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    due_at = ledger.instant(1)
    run_id = ledger.run(due_at, "QUEUED", overlap="skip")
    ledger.execute(
        "INSERT INTO overlap_slot VALUES (%(schedule)s, %(run)s, %(due)s)",
        schedule=ledger.schedule_id,
        run=run_id,
        due=due_at,
    )
    park = accepted.Park(run_id=run_id, due_at=due_at, generation=1, jitter=0.0)
    assert accepted.park(connection, [park]) == 1
    assert accepted.park(connection, [park]) == 0  # the same message again
    assert connection.execute(invariants.SQL["slot_not_given_back"]).fetchall() == []
    assert connection.execute(invariants.SQL["waiting_without_outbox"]).fetchall() == []


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found
