"""Limits of time on real rows: a run that would begin too late does not begin, and nobody waits for it."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.clock import database_now
from scheduler.core import retry
from scheduler.core.retry import Decision
from scheduler.core.states import AttemptOutcome, Refusal, State
from scheduler.processes.sweep import Sweep
from scheduler.store import claims, schedules
from scheduler.store import sweep as sweep_store
from scheduler.store.claims import Claimed
from scheduler.store.schedules import RunKey
from tests.store.test_claims import claim_of, end, ending, open_session, take
from tests.store.test_overlap import Schedule
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until

Connection = psycopg.Connection[Any]

ON_REAL_ROWS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
AN_HOUR = timedelta(hours=1)  # between the first due instant of a ledger made by hand, and now


@pytest.fixture
def session_id(connection: Connection) -> UUID:
    return open_session(connection)


@pytest.fixture
def schedule_of(ledger: HandMadeLedger, connection: Connection) -> Callable[[str], Schedule]:
    return lambda policy: Schedule(ledger, connection, policy)


def limit(connection: Connection, **columns: float | None) -> None:
    """Of all revisions; `deadline_s` is one of the retry policy."""
    if "deadline_s" in columns:
        connection.execute(
            "UPDATE schedule_revision SET retry = retry || jsonb_build_object('deadline_s', %s::float8)",
            [columns.pop("deadline_s")],
        )
    for name, value in columns.items():
        connection.execute(f"UPDATE schedule_revision SET {name} = %s".encode(), [value])


def row_of(connection: Connection, run_id: UUID) -> tuple[Any, ...]:
    """(state, reason, attempts)."""
    found = connection.execute(
        "SELECT state, coalesce(skip_reason, dead_letter_reason), attempt_count"
        " FROM occurrence WHERE id = %s",
        [run_id],
    ).fetchone()
    assert found is not None
    return tuple(found)


# The claim ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"schedule_to_start_s": 60}, ("SKIPPED", "expired", 0)),
        ({"deadline_s": 60}, ("DEAD_LETTERED", "expired", 0)),
        ({"schedule_to_start_s": 60, "deadline_s": 60}, ("SKIPPED", "expired", 0)),
    ],
)
def test_a_claim_that_comes_too_late_ends_the_run_and_wakes_the_next(
    limits: dict[str, float], left: tuple[Any, ...], schedule_of: Callable[[str], Schedule]
) -> None:
    schedule = schedule_of("buffer_all")
    first, second = schedule.come_due(), schedule.come_due()
    limit(schedule.connection, **limits)
    claim = claim_of(first, schedule.key(first).due_at)
    assert take(schedule.connection, claim, schedule.session_id) is Refusal.EXPIRED
    assert row_of(schedule.connection, first) == left
    assert schedule.connection.execute("SELECT count(*) FROM lease").fetchone() == (0,)
    limit(schedule.connection, schedule_to_start_s=None, deadline_s=None)
    schedule.round()
    assert row_of(schedule.connection, second)[0] == "QUEUED"


def test_a_run_that_has_begun_once_is_bound_by_its_deadline_alone(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    due_at = ledger.instant(1)
    run_id = ledger.run(due_at, "QUEUED", attempt_count=1, started_at=due_at)
    limit(connection, schedule_to_start_s=60, deadline_s=2 * 3600)
    held = take(connection, claim_of(run_id, due_at), session_id)
    assert isinstance(held, Claimed)
    assert held.deadline_at == due_at + 2 * AN_HOUR


def test_a_run_that_expired_arms_its_schedule_again(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    """A fixed delay waits for the end of the run, whatever end that is."""
    due_at = ledger.instant(1)
    limit(connection, schedule_to_start_s=60)
    connection.execute("UPDATE schedule_revision SET mode = 'fixed_delay'")
    connection.execute("UPDATE schedule SET next_due_at = NULL, last_due_at = %s", [due_at])
    take(connection, claim_of(ledger.run(due_at, "QUEUED"), due_at), session_id)
    armed = connection.execute("SELECT next_due_at > clock_timestamp() FROM schedule").fetchone()
    assert armed == (True,)


@ON_REAL_ROWS
@given(ahead_ms=st.integers(-8, 8))
def test_whether_a_claim_is_in_time_the_core_would_say_too(
    ahead_ms: int, ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    now = database_now(connection)
    connection.execute("TRUNCATE occurrence, attempt, lease")
    due_at = ledger.instant(1)
    run_id = ledger.run(due_at, "QUEUED")
    deadline_at = now + timedelta(milliseconds=ahead_ms)
    limit(connection, deadline_s=(deadline_at - due_at).total_seconds())
    held = take(connection, claim_of(run_id, due_at), session_id)
    if isinstance(held, Claimed):
        assert held.deadline_at == deadline_at
        assert retry.may_begin(at=held.granted_at, deadline_at=deadline_at)
    else:
        (ended,) = connection.execute("SELECT finished_at FROM occurrence").fetchone() or (now,)
        assert not retry.may_begin(at=ended, deadline_at=deadline_at)


# The end of an attempt ----------------------------------------------------------------------------


@ON_REAL_ROWS
@given(delay_ms=st.integers(0, 20), ahead_ms=st.integers(-2, 30))
def test_whether_a_retry_would_be_in_time_the_core_would_say_too(
    delay_ms: int, ahead_ms: int, ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    connection.execute("TRUNCATE occurrence, attempt, lease, outbox")
    due_at = ledger.instant(1)
    limit(connection, deadline_s=None)
    held = take(connection, claim_of(ledger.run(due_at, "QUEUED"), due_at), session_id)
    assert isinstance(held, Claimed)
    deadline_at = database_now(connection) + timedelta(milliseconds=ahead_ms)
    delay_s = delay_ms / 1000
    failed = ending(held, State.RETRY_WAIT, delay_s=delay_s, deadline_at=deadline_at)
    state = end(connection, failed)
    row = connection.execute(
        "SELECT o.dispatch_at, o.finished_at, o.dead_letter_reason, a.finished_at,"
        " (SELECT count(*) FROM outbox b WHERE b.run_id = o.id)"
        " FROM occurrence o JOIN attempt a ON a.run_id = o.id"
    ).fetchone()
    assert row is not None
    dispatch_at, finished_at, reason, ended_at, rows = row
    asked = Decision(state=State.RETRY_WAIT, delay_s=delay_s)
    assert state is retry.in_time(asked, now=ended_at, deadline_at=deadline_at).state
    if state is State.RETRY_WAIT:
        assert (dispatch_at, finished_at, reason, rows) == (
            ended_at + timedelta(seconds=delay_s),
            None,
            None,
            1,
        )
        assert dispatch_at <= deadline_at
    else:
        assert (finished_at, reason, rows) == (ended_at, "expired", 0)


def test_a_retry_that_is_too_late_gives_the_slot_on_at_once(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("buffer_all")
    first, second = schedule.come_due(), schedule.come_due()
    limit(schedule.connection, deadline_s=2 * 3600)
    held = schedule.begin(first)
    late = ending(held, State.RETRY_WAIT, delay_s=2 * 3600.0, deadline_at=held.deadline_at)
    assert end(schedule.connection, late) is State.DEAD_LETTERED
    schedule.round()
    assert row_of(schedule.connection, second)[0] == "QUEUED"


def test_attempts_that_are_used_up_are_told_from_time_that_is(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    due_at = ledger.instant(1)
    held = take(connection, claim_of(ledger.run(due_at, "QUEUED"), due_at), session_id)
    assert isinstance(held, Claimed)
    assert end(connection, ending(held, State.DEAD_LETTERED)) is State.DEAD_LETTERED
    assert row_of(connection, held.run_id) == ("DEAD_LETTERED", "exhausted", 1)


def test_a_redrive_gives_a_whole_deadline(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    due_at = ledger.instant(1)
    run_id = ledger.run(due_at, "DEAD_LETTERED", dead_letter_reason="expired")
    limit(connection, deadline_s=60, schedule_to_start_s=60)
    assert schedules.redrive(connection, RunKey(due_at, run_id))
    assert row_of(connection, run_id) == ("PENDING", None, 0)
    connection.execute(
        "UPDATE occurrence SET state = 'QUEUED', wait_reason = NULL, generation = 1, queued_at = dispatch_at"
    )
    held = take(connection, claim_of(run_id, due_at), session_id)
    assert isinstance(held, Claimed)
    assert held.deadline_at is not None
    assert timedelta(seconds=50) < held.deadline_at - held.granted_at <= timedelta(seconds=60)


# The release --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allow", "skip", "buffer_one", "buffer_all", "cancel_running"])
def test_a_run_whose_release_comes_too_late_is_skipped(
    policy: str, schedule_of: Callable[[str], Schedule]
) -> None:
    schedule = schedule_of(policy)
    limit(schedule.connection, schedule_to_start_s=60)
    late = schedule.come_due()
    assert row_of(schedule.connection, late) == ("SKIPPED", "expired", 0)
    assert schedule.connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def in_a_moment(schedule: Schedule, run_id: UUID, seconds: float) -> datetime:
    """Have the run's time to start end so soon."""
    at = database_now(schedule.connection) + timedelta(seconds=seconds)
    schedule.connection.execute(
        "UPDATE occurrence SET dispatch_at = %s - interval '60 s' WHERE id = %s", [at, run_id]
    )
    return at


def test_a_parked_run_is_looked_at_when_its_time_is_up(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("buffer_all")
    first, second = schedule.come_due(), schedule.write()
    limit(schedule.connection, schedule_to_start_s=60)
    up_at = in_a_moment(schedule, second, 0.3)
    schedule.round()
    parked = schedule.connection.execute(
        "SELECT o.state, b.dispatch_at FROM occurrence o JOIN outbox b ON b.run_id = o.id WHERE o.id = %s",
        [second],
    ).fetchone()
    assert parked == ("PENDING", up_at)

    def skipped() -> bool:
        schedule.round()
        return row_of(schedule.connection, second) == ("SKIPPED", "expired", 0)

    wait_until(skipped)
    assert row_of(schedule.connection, first)[0] == "QUEUED"


@pytest.mark.parametrize("others", [1, 2])
def test_one_that_expires_at_the_head_of_the_line_leaves_the_slot_to_those_behind(
    others: int, schedule_of: Callable[[str], Schedule]
) -> None:
    """The end of the active run wakes the first in line alone; when that one is too late by then, it is on
    whoever skips it to wake the next.
    """
    schedule = schedule_of("buffer_all")
    first = schedule.begin(schedule.come_due())
    schedule.connection.execute("UPDATE schedule_revision SET buffer_limit = 9")
    behind = [schedule.come_due() for _ in range(1 + others)]
    limit(schedule.connection, schedule_to_start_s=2 * 3600)
    in_a_moment(schedule, behind[0], -2 * 3600)
    schedule.end(first, State.SUCCEEDED)
    schedule.round()
    schedule.round()
    assert row_of(schedule.connection, behind[0]) == ("SKIPPED", "expired", 0)
    assert row_of(schedule.connection, behind[1])[0] == "QUEUED"


# What a person has redriven -----------------------------------------------------------------------


def redriven(schedule: Schedule, run_id: UUID) -> None:
    with schedule.connection.transaction():
        schedules.lock_run(schedule.connection, schedule.key(run_id))
        assert schedules.redrive(schedule.connection, schedule.key(run_id))


@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all", "cancel_running"])
def test_a_redriven_run_waits_for_a_slot_that_is_taken_and_newer_ones_neither_displace_nor_stop_it(
    policy: str, schedule_of: Callable[[str], Schedule]
) -> None:
    schedule = schedule_of(policy)
    failed = schedule.come_due()
    schedule.end(schedule.begin(failed), State.FAILED)
    active = schedule.begin(schedule.come_due())
    redriven(schedule, failed)
    schedule.round()
    for _ in range(3):  # more than the buffer of two holds
        schedule.come_due()
    assert row_of(schedule.connection, failed)[0] == "PENDING"
    schedule.end(active, State.SUCCEEDED)
    schedule.round()
    held = schedule.begin(failed)
    schedule.come_due()
    assert not schedule.asked_to_stop(failed)
    schedule.end(held, State.SUCCEEDED)
    assert row_of(schedule.connection, failed) == ("SUCCEEDED", None, 2)


# Silence and time-outs ----------------------------------------------------------------------------


def make_sweep() -> Sweep:
    return Sweep(session_s=3600, dispatch_grace_s=60, rate_per_s=200, breaker_at=0.85)


def sweep(connection: Connection) -> None:
    make_sweep().run_once(connection, database_now(connection))


def last_attempt(connection: Connection) -> tuple[Any, ...]:
    found = connection.execute(
        "SELECT o.state, a.outcome, a.error->>'message' FROM occurrence o JOIN attempt a ON a.run_id = o.id"
    ).fetchone()
    assert found is not None
    return tuple(found)


def held_run(ledger: HandMadeLedger, connection: Connection, session_id: UUID, **limits: int) -> Claimed:
    limit(connection, **limits)
    due_at = ledger.instant(1)
    held = take(connection, claim_of(ledger.run(due_at, "QUEUED"), due_at), session_id)
    assert isinstance(held, Claimed)
    return held


def test_a_run_goes_on_until_its_time_and_its_grace_are_up_and_no_longer(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = held_run(ledger, connection, session_id, timeout_s=60, cancel_grace_s=5)
    assert held.ends_by - held.granted_at == timedelta(seconds=65)
    sweep(connection)
    assert last_attempt(connection)[0] == "RUNNING"
    connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    sweep(connection)
    assert last_attempt(connection) == (
        "RETRY_WAIT",
        "timed_out",
        "The attempt ran past timeout_s and cancel_grace_s.",
    )


def test_a_job_that_promised_to_report_is_ended_when_it_is_silent_for_too_long(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = held_run(ledger, connection, session_id, heartbeat_timeout_s=20)
    assert held.heartbeat_timeout_s == 20
    connection.execute("UPDATE lease SET silent_by = clock_timestamp() + interval '1 ms'")
    assert claims.report_progress(connection, held, {"percent": 1})
    (ahead,) = connection.execute(
        "SELECT silent_by - clock_timestamp() > interval '15 s' FROM lease"
    ).fetchone() or (False,)
    assert ahead
    sweep(connection)
    assert last_attempt(connection)[0] == "RUNNING"
    connection.execute("UPDATE lease SET silent_by = clock_timestamp()")
    sweep(connection)
    assert last_attempt(connection) == (
        "RETRY_WAIT",
        "timed_out",
        "The job had not reported for longer than heartbeat_timeout_s.",
    )
    assert not claims.report_progress(connection, held, {"percent": 2})


def test_a_job_that_promised_nothing_may_be_silent(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = held_run(ledger, connection, session_id)
    assert claims.report_progress(connection, held, {"percent": 1})
    assert connection.execute("SELECT silence_s, silent_by FROM lease").fetchone() == (None, None)


def test_a_report_that_comes_while_the_sweep_looks_saves_the_run(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    """Found silent, then heard: the guard looks again under the run's lock."""
    held = held_run(ledger, connection, session_id, heartbeat_timeout_s=20)
    connection.execute("UPDATE lease SET silent_by = clock_timestamp()")
    (found,) = sweep_store.overdue_leases(connection, silent=True, limit=9)
    assert found.is_silent
    claims.report_progress(connection, held, {"percent": 1})
    timed_out = ending(held, State.RETRY_WAIT, outcome=AttemptOutcome.TIMED_OUT, delay_s=0.0)
    assert end(connection, timed_out, "overdue") is None


def test_nobody_is_held_to_a_silence_in_which_the_database_was_away(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held_run(ledger, connection, session_id, heartbeat_timeout_s=20)
    one = make_sweep()
    one.run_once(connection, database_now(connection))
    connection.execute("UPDATE sweep_turn SET looked_at = clock_timestamp() - interval '2 hours'")
    connection.execute("UPDATE lease SET silent_by = clock_timestamp()")
    one.run_once(connection, database_now(connection))
    assert last_attempt(connection)[0] == "RUNNING"


def test_an_end_and_a_report_at_once_do_not_wait_for_each_other(
    ledger: HandMadeLedger,
    connection: Connection,
    connect: Callable[[], Connection],
    session_id: UUID,
    wait_for_lock: Callable[[int], None],
) -> None:
    """Both lock the run before its lease."""
    held = held_run(ledger, connection, session_id, heartbeat_timeout_s=20)
    ender, reporter, answers = connect(), connect(), list[bool]()
    with ender.transaction():
        claims.lock(ender, endings=[ending(held)])
        report = threading.Thread(
            target=lambda: answers.append(claims.report_progress(reporter, held, {"percent": 1}))
        )
        report.start()
        wait_for_lock(reporter.info.backend_pid)
        claims.end_attempts(ender, [ending(held)], guard="holder")
    report.join(10)
    assert answers == [False]
