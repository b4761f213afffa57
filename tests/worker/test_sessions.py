"""A worker's session against a real database: renewed, lost, cancelled, disowned."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler.errors import LeaseLost
from scheduler.store.sessions import Load
from scheduler.worker.execution import Held
from scheduler.worker.sessions import SessionKeeper
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until
from tests.worker.test_execution import CLAIMED

Connection = psycopg.Connection[Any]
LENGTH_S = 0.9


class Process:
    """What a worker process tells its session."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.abandoned = threading.Event()


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def keeper(clean_database: str, process: Process) -> Iterator[SessionKeeper]:
    made = SessionKeeper(
        lambda name: psycopg.connect(clean_database, autocommit=True, application_name=name),
        worker="host:1",
        length_s=LENGTH_S,
        load=lambda: Load(capacity=4, busy=len(process.held)),
        held=lambda: process.held,
        abandoned=process.abandoned.set,
    )
    made.start()
    assert made.wait_open(10)
    yield made
    made.finish(10)
    assert not made.is_alive()


def session_of(keeper: SessionKeeper) -> UUID:
    found = wait_until(lambda: keeper.session_id)
    assert found is not None
    return found


def hold(ledger: HandMadeLedger, keeper: SessionKeeper, process: Process) -> Held:
    """A run that ledger and process agree is held."""
    session_id = session_of(keeper)
    due_at = ledger.instant(len(process.held) + 1)
    run_id = ledger.attempted(due_at, "RUNNING", None)
    ledger.session_id = session_id
    ledger.lease(run_id, due_at, ledger.fence)
    claimed = replace(CLAIMED, run_id=run_id, due_at=due_at, fence=ledger.fence)
    one = Held(
        claimed=claimed,
        session_id=session_id,
        good_until=keeper.watch_over(session_id),
        sure_until=keeper.sure_of(session_id),
    )
    process.held.append(one)
    return one


def test_it_renews_and_says_what_the_process_is_doing(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger, connection: Connection
) -> None:
    first = session_of(keeper)
    hold(ledger, keeper, process)
    wait_until(lambda: connection.execute("SELECT busy FROM session").fetchone() == (1,))
    wait_until(
        lambda: (
            (connection.execute("SELECT renewed_at - started_at > interval '2 s' FROM session").fetchone())
            == (True,)
        )
    )
    assert keeper.session_id == first


def test_a_run_whose_lease_is_gone_hears_of_it(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger
) -> None:
    one, other = hold(ledger, keeper, process), hold(ledger, keeper, process)
    ledger.execute("DELETE FROM lease WHERE fence = %(fence)s", fence=one.claimed.fence)
    wait_until(one.lost.is_set)
    assert not other.lost.is_set()


def test_a_cancelled_run_hears_of_it(keeper: SessionKeeper, process: Process, ledger: HandMadeLedger) -> None:
    one = hold(ledger, keeper, process)
    ledger.execute("UPDATE occurrence SET cancel_requested_at = clock_timestamp()")
    wait_until(one.cancelled.is_set)


def test_a_lease_that_the_process_never_heard_of_is_given_up(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger, connection: Connection
) -> None:
    hold(ledger, keeper, process)
    process.held.clear()
    owner = "SELECT session_id FROM lease"
    wait_until(lambda: connection.execute(owner).fetchone() == (UUID(int=0),))


def test_an_expired_session_is_renewed_and_keeps_what_the_sweep_has_left_it(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger, connection: Connection
) -> None:
    taken, left, session_id = hold(ledger, keeper, process), hold(ledger, keeper, process), session_of(keeper)
    with connection.transaction():
        connection.execute("UPDATE session SET expires_at = clock_timestamp() - interval '1 minute'")
        connection.execute("DELETE FROM lease WHERE fence = %s", [taken.claimed.fence])
    wait_until(taken.lost.is_set)
    live = "SELECT expires_at > clock_timestamp() FROM session WHERE id = %s"
    assert connection.execute(live, [session_id]).fetchone() == (True,)
    assert not left.lost.is_set()
    left.check()


def test_a_session_that_was_late_is_trusted_again_only_when_what_is_lost_is_known(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger, connection: Connection
) -> None:
    """A job that is about to begin looks at its flag, and then whether the session is certain."""
    taken = hold(ledger, keeper, process)
    certain_when_told: list[bool] = []

    class Told(threading.Event):
        def set(self) -> None:
            certain_when_told.append(time.monotonic() < taken.sure_until())
            super().set()

    taken.lost = Told()
    with connection.transaction():  # a renewal waits for this, beyond the session's length
        connection.execute("SELECT FROM session FOR UPDATE")
        connection.execute("DELETE FROM lease")
        wait_until(lambda: time.monotonic() > taken.sure_until(), 3 * LENGTH_S)
        taken.check()  # whoever has begun goes on
        with pytest.raises(LeaseLost):
            taken.check_before_beginning()
    wait_until(taken.lost.is_set)
    assert certain_when_told == [False]


def test_a_session_that_is_gone_is_over_with_all_it_held_and_a_new_one_begins(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger
) -> None:
    one, first = hold(ledger, keeper, process), session_of(keeper)
    ledger.execute("DELETE FROM session")
    wait_until(one.lost.is_set)
    wait_until(lambda: keeper.session_id not in (None, first))


def test_while_the_database_is_away_nothing_is_claimed_and_belief_outlives_the_session_once(
    keeper: SessionKeeper, process: Process, ledger: HandMadeLedger
) -> None:
    one = hold(ledger, keeper, process)

    def refuse(name: str) -> Connection:
        raise psycopg.OperationalError("away")

    connected: Callable[[str], Connection] = keeper._connect
    keeper._connect = refuse
    ledger.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'worker session' AND datname = current_database()"
    )
    wait_until(lambda: keeper.session_id is None, 3 * LENGTH_S)
    assert one.good_until() - keeper._good_until == pytest.approx(LENGTH_S)
    wait_until(process.abandoned.is_set, 3 * LENGTH_S)
    assert one.good_until() < time.monotonic()
    keeper._connect = connected
    wait_until(lambda: keeper.session_id is not None)
    assert one.lost.is_set()


def test_at_the_end_the_session_is_closed(
    keeper: SessionKeeper, connection: Connection, clean_database: str
) -> None:
    session_of(keeper)
    keeper.finish(10)
    assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)
