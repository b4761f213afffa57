"""A schedule that fails so often in a row is paused, once, by whoever ends the run, and by nobody else."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from scheduler.clock import database_now
from scheduler.core.states import Refusal, State
from scheduler.processes.sweep import Sweep
from scheduler.store import claims, failures
from scheduler.store.claims import Claimed, Ending
from scheduler.testing.verify import verify
from tests.processes.test_rounds import tick
from tests.store.test_claims import claim_of, end, ending, open_session, take
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]
OK, BAD, DEAD = State.SUCCEEDED, State.FAILED, State.DEAD_LETTERED


class Failing:
    """A schedule that is paused after some failures, and runs of it that end one by one."""

    def __init__(self, ledger: HandMadeLedger, connection: Connection, pause_after: int | None = 3) -> None:
        self.ledger = ledger
        self.connection = connection
        self.session_id = open_session(connection)
        self.number = 0
        connection.execute("UPDATE schedule_revision SET pause_after = %s", [pause_after])

    def begin(self, number: int | None = None, **columns: Any) -> Claimed:
        self.number = number or self.number + 1
        due_at = self.ledger.instant(self.number)
        run_id = self.ledger.run(due_at, "QUEUED", **columns)
        self.connection.execute("UPDATE schedule SET next_due_at = %s", [due_at + timedelta(minutes=1)])
        held = take(self.connection, claim_of(run_id, due_at), self.session_id)
        assert isinstance(held, Claimed)
        return held

    def ends(self, *states: State) -> None:
        for state in states:
            end(self.connection, ended(self.begin(), state))

    def state(self) -> str:
        (state,) = self.connection.execute("SELECT state FROM schedule").fetchone() or ("",)
        return str(state)

    def pauses(self) -> int:
        (count,) = self.connection.execute("SELECT count(*) FROM schedule_pause").fetchone() or (0,)
        return int(count)

    def resume(self) -> None:
        self.connection.execute(
            "UPDATE schedule_pause SET ended_at = clock_timestamp(), resumed_from = clock_timestamp()"
        )
        self.connection.execute(
            "UPDATE schedule SET state = 'active', next_due_at = %s", [self.ledger.instant(self.number + 1)]
        )


def ended(held: Claimed, state: State) -> Ending:
    return ending(held, state, pause_after=held.pause_after)


@pytest.fixture
def failing(ledger: HandMadeLedger, connection: Connection) -> Failing:
    return Failing(ledger, connection)


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ([BAD, BAD], "active"),
        ([BAD, DEAD, BAD], "paused"),
        ([BAD, BAD, OK, BAD], "active"),
        ([BAD, BAD, OK, BAD, BAD, BAD], "paused"),
        ([OK, BAD, BAD, BAD], "paused"),
        ([BAD, BAD, State.UNKNOWN], "active"),
    ],
)
def test_it_pauses_after_so_many_in_a_row(ends: Sequence[State], state: str, failing: Failing) -> None:
    failing.ends(*ends)
    assert failing.state() == state


def test_whoever_looks_sees_why_it_is_paused(failing: Failing) -> None:
    failing.ends(BAD, BAD, BAD)
    note = "Paused after 3 failed runs in a row."
    connection = failing.connection
    assert connection.execute("SELECT state_note, next_due_at FROM schedule").fetchone() == (note, None)
    assert connection.execute("SELECT paused_by, note, ended_at FROM schedule_pause").fetchall() == [
        ("on_failure.pause_after", note, None)
    ]
    entries = connection.execute("SELECT actor, action, subject_id, after->>'note' FROM audit_entry")
    assert entries.fetchall() == [
        ("on_failure.pause_after", "schedule.pause", failing.ledger.schedule_id, note)
    ]


def test_in_a_row_is_by_due_instant_and_not_by_whose_end_came_first(failing: Failing) -> None:
    slow = failing.begin()
    failing.ends(BAD, BAD)
    end(failing.connection, ended(slow, OK))  # it was due before them
    failing.ends(BAD)
    assert failing.state() == "paused"


def test_a_person_who_resumes_begins_the_count_anew(failing: Failing) -> None:
    failing.ends(BAD, BAD, BAD)
    failing.resume()
    failing.ends(BAD, BAD)
    assert failing.state() == "active"
    failing.ends(BAD)
    assert (failing.state(), failing.pauses()) == ("paused", 2)


def test_a_schedule_that_does_not_ask_for_it_neither_pauses_nor_waits_for_its_row(
    ledger: HandMadeLedger, connection: Connection, connect: Callable[[], Connection]
) -> None:
    failing = Failing(ledger, connection, None)
    held = failing.begin()
    holder = connect()
    with holder.transaction():
        holder.execute("SELECT FROM schedule FOR UPDATE")
        connection.execute("SET lock_timeout = '2 s'")
        assert end(connection, ended(held, BAD)) is BAD
    failing.ends(BAD, BAD, BAD)
    assert failing.state() == "active"


def test_two_runs_that_fail_at_once_pause_it_once(
    failing: Failing, connect: Callable[[], Connection], wait_for_lock: Callable[[int], None]
) -> None:
    """Neither sees the other's end before its commit: the second waits for the schedule, then looks."""
    failing.ends(BAD)
    held = [failing.begin(), failing.begin()]
    first, second = connect(), connect()
    with first.transaction():
        claims.lock(first, endings=[ended(held[0], BAD)])
        claims.end_attempts(first, [ended(held[0], BAD)], guard="holder")
        other = threading.Thread(target=lambda: end(second, ended(held[1], BAD)))
        other.start()
        wait_for_lock(second.info.backend_pid)
        assert failing.state() == "active"
    other.join(10)
    assert (failing.state(), failing.pauses()) == ("paused", 1)


def test_a_fourth_failure_that_comes_late_pauses_nothing_twice(failing: Failing) -> None:
    late = failing.begin()
    failing.ends(BAD, BAD, BAD)
    end(failing.connection, ended(late, BAD))
    assert failing.pauses() == 1


@pytest.mark.parametrize("behind", [True, False])
def test_the_accounts_balance_around_the_pause_whether_or_not_the_tick_was_behind(
    behind: bool, failing: Failing, clean_database: str
) -> None:
    """What lies ahead is taken back; what no tick has met belongs to the pause."""
    connection = failing.connection
    connection.execute("UPDATE schedule_revision SET catch_up_after_s = 7200, catch_up = 'run_all'")
    failing.ends(BAD, BAD)
    held = failing.begin()
    if not behind:
        now = database_now(connection)
        connection.execute("UPDATE schedule SET next_due_at = %s", [failing.ledger.instant(4)])
        tick().run_once(connection, now + timedelta(seconds=55))
    end(connection, ended(held, BAD))
    assert failing.state() == "paused"
    now = database_now(connection)
    ahead = connection.execute("SELECT count(*) FROM occurrence WHERE due_at > %s", [now]).fetchone()
    assert ahead == (0,)
    assert [one for one in verify(clean_database).violations if one.invariant == "I1"] == []


def test_a_tick_that_comes_meanwhile_makes_no_run(
    failing: Failing, connect: Callable[[], Connection]
) -> None:
    """It passes the locked schedule over, and finds it paused at its next look."""
    failing.ends(BAD, BAD)
    held = failing.begin()
    ender, ticker = connect(), connect()
    with ender.transaction():
        claims.lock(ender, endings=[ended(held, BAD)])
        claims.end_attempts(ender, [ended(held, BAD)], guard="holder")
        tick().run_once(ticker, database_now(ticker))
    tick().run_once(ticker, database_now(ticker))
    assert failing.state() == "paused"
    assert failing.connection.execute("SELECT max(due_at) FROM occurrence").fetchone() == (held.due_at,)


def sweep(connection: Connection) -> None:
    one = Sweep(session_s=3600, dispatch_grace_s=3600, rate_per_s=200, breaker_at=0.85)
    one.run_once(connection, database_now(connection))


def test_the_sweep_pauses_too_where_it_ends_the_last_attempts(failing: Failing) -> None:
    failing.connection.execute("UPDATE schedule_revision SET retry = '{\"max_attempts\": 1}'")
    for _ in range(3):
        failing.begin()
    failing.connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    sweep(failing.connection)
    states = failing.connection.execute("SELECT DISTINCT state FROM occurrence").fetchall()
    assert (states, failing.state(), failing.pauses()) == ([("DEAD_LETTERED",)], "paused", 1)


def test_a_retry_that_would_come_too_late_is_a_failure_like_any_other(failing: Failing) -> None:
    failing.ends(BAD, BAD)
    held = failing.begin()
    late = replace(ended(held, State.RETRY_WAIT), delay_s=1.0, deadline_at=held.granted_at)
    assert end(failing.connection, late) is DEAD
    assert failing.state() == "paused"


def test_runs_that_a_claim_finds_past_their_deadline_pause_it_at_the_sweeps_next_look(
    failing: Failing,
) -> None:
    """The claim holds the run before it knows: it may not lock the schedule any more."""
    connection, ledger = failing.connection, failing.ledger
    connection.execute('UPDATE schedule_revision SET retry = \'{"max_attempts": 1, "deadline_s": 1}\'')
    for number in (1, 2, 3):
        due_at = ledger.instant(number)
        claim = claim_of(ledger.run(due_at, "QUEUED"), due_at)
        assert take(connection, claim, failing.session_id) is Refusal.EXPIRED
    assert failing.state() == "active"
    sweep(connection)
    assert failing.state() == "paused"
    assert failures.lately_dead(connection, within_s=120, limit=9) == []


def test_a_late_answer_that_an_unknown_run_failed_counts(failing: Failing) -> None:
    held = failing.begin()
    end(failing.connection, ended(held, State.UNKNOWN))
    failing.ends(BAD, BAD)
    assert failing.state() == "active"
    late = ended(held, BAD)
    with failing.connection.transaction():
        claims.lock(failing.connection, endings=[late])
        assert claims.resolve_unknown(failing.connection, [late])
    assert failing.state() == "paused"


def test_what_was_cancelled_or_skipped_is_no_end_of_the_row(failing: Failing) -> None:
    failing.ends(BAD, BAD)
    failing.ledger.run(failing.ledger.instant(10), "SKIPPED")
    failing.ledger.run(failing.ledger.instant(11), "CANCELLED")
    failing.number = 11
    failing.ends(BAD)
    assert failing.state() == "paused"
