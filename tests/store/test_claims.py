"""Claims and ends on real rows: who wins, what the losers hear, and what a void fence can still do."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from scheduler.core.states import AttemptOutcome, Refusal, State
from scheduler.store import claims, sessions
from scheduler.store.claims import Claim, Claimed, Ending
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]


@pytest.fixture
def session_id(connection: Connection) -> UUID:
    return open_session(connection)


def open_session(connection: Connection, length_s: float = 30) -> UUID:
    session_id = uuid4()
    sessions.open_session(
        connection, session_id, kind="worker", worker="host:1", capacity=8, length_s=length_s
    )
    return session_id


def claim_of(run_id: UUID, due_at: datetime) -> Claim:
    return Claim(run_id=run_id, due_at=due_at, claim_id=uuid4())


def take(connection: Connection, claim: Claim, session_id: UUID) -> Claimed | Refusal:
    with connection.transaction():
        claims.lock(connection, claims=[claim])
        refusals = claims.claim(connection, [claim], session_id=session_id)
    refusal = refusals[claim.claim_id]
    return refusal or claims.claimed(connection, [claim.claim_id])[claim.claim_id]


def take_queued(ledger: HandMadeLedger, connection: Connection, session_id: UUID, **columns: Any) -> Claimed:
    due_at = ledger.instant(1)
    held = take(connection, claim_of(ledger.run(due_at, "QUEUED", **columns), due_at), session_id)
    assert isinstance(held, Claimed)
    return held


def ending(held: Claimed, state: State = State.SUCCEEDED, **fields: Any) -> Ending:
    outcome = AttemptOutcome.SUCCEEDED if state is State.SUCCEEDED else AttemptOutcome.FAILED
    return Ending(
        run_id=held.run_id,
        due_at=held.due_at,
        fence=held.fence,
        schedule_id=held.schedule_id,
        slotted=held.slotted,
        state=state,
        **{"outcome": outcome, **fields},
    )


def end(connection: Connection, one: Ending, guard: claims.Guard = "holder") -> State | None:
    with connection.transaction():
        claims.lock(connection, endings=[one])
        ended = claims.end_attempts(connection, [one], guard=guard)
    return State(ended[one.fence].state) if one.fence in ended else None


def test_a_claim_takes_a_larger_fence_and_leaves_a_lease_and_an_attempt(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    first = take_queued(ledger, connection, session_id)
    due_at = ledger.instant(2)
    second = take(connection, claim_of(ledger.run(due_at, "QUEUED"), due_at), session_id)
    assert isinstance(second, Claimed)
    assert second.fence > first.fence
    assert (first.attempt, first.target, first.payload, first.tenant) == (1, "demo.record", {}, "demo")
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (2,)
    attempts = connection.execute("SELECT number, worker, outcome FROM attempt ORDER BY fence").fetchall()
    assert attempts == [(1, "host:1", None)] * 2


@pytest.mark.parametrize(
    ("state", "columns", "refusal"),
    [
        ("RUNNING", {"fence": 7, "attempt_count": 1}, Refusal.ALREADY_HELD),
        ("PENDING", {}, Refusal.ALREADY_HELD),
        ("SUCCEEDED", {}, Refusal.ALREADY_HELD),
        ("CANCELLED", {}, Refusal.CANCELLED),
        ("QUEUED", {"dispatch_at": datetime.fromisoformat("2199-01-01T00:00Z")}, Refusal.TOO_EARLY),
        ("QUEUED", {"attempt_count": 5}, Refusal.EXHAUSTED),
    ],
)
def test_a_claim_that_cannot_win_hears_why_and_changes_nothing_else(
    state: str,
    columns: dict[str, Any],
    refusal: Refusal,
    ledger: HandMadeLedger,
    connection: Connection,
    session_id: UUID,
) -> None:
    due_at = ledger.instant(1)
    claim = claim_of(ledger.run(due_at, state, **columns), due_at)
    assert take(connection, claim, session_id) is refusal
    after = "DEAD_LETTERED" if refusal is Refusal.EXHAUSTED else state
    assert connection.execute("SELECT state FROM occurrence").fetchone() == (after,)
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (0,)


def test_a_run_that_is_not_there_is_not_found(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    assert take(connection, claim_of(uuid4(), ledger.instant(1)), session_id) is Refusal.NOT_FOUND


def test_no_claim_without_a_live_session(ledger: HandMadeLedger, connection: Connection) -> None:
    due_at = ledger.instant(1)
    claim = claim_of(ledger.run(due_at, "QUEUED"), due_at)
    assert take(connection, claim, uuid4()) is Refusal.SESSION_LOST
    assert take(connection, claim, open_session(connection, length_s=-1)) is Refusal.SESSION_LOST
    assert connection.execute("SELECT state FROM occurrence").fetchone() == ("QUEUED",)


def test_of_two_claims_at_once_one_wins(
    ledger: HandMadeLedger,
    connect: Callable[[], Connection],
    session_id: UUID,
    wait_for_lock: Callable[[int], None],
) -> None:
    """The second waits for the first's commit, then reads the run as the first left it."""
    due_at = ledger.instant(1)
    run_id = ledger.run(due_at, "QUEUED")
    first, second = connect(), connect()
    answers: list[Claimed | Refusal] = []
    with first.transaction():
        early = claim_of(run_id, due_at)
        claims.lock(first, claims=[early])
        assert claims.claim(first, [early], session_id=session_id) == {early.claim_id: None}
        other = threading.Thread(
            target=lambda: answers.append(take(second, claim_of(run_id, due_at), session_id))
        )
        other.start()
        wait_for_lock(second.info.backend_pid)
    other.join(10)
    assert answers == [Refusal.ALREADY_HELD]
    assert second.execute("SELECT attempt_count FROM occurrence").fetchone() == (1,)


def test_an_end_closes_lease_and_attempt(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    assert end(connection, ending(held, result={"rows": 3})) is State.SUCCEEDED
    assert connection.execute("SELECT state, result FROM occurrence").fetchone() == ("SUCCEEDED", {"rows": 3})
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (0,)
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == ("succeeded",)


def test_a_failure_that_may_be_repeated_is_on_the_agenda(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    assert end(connection, ending(held, State.RETRY_WAIT, delay_s=20.0)) is State.RETRY_WAIT
    agenda = connection.execute(
        "SELECT b.run_id, b.generation, b.dispatch_at = o.dispatch_at,"
        " b.dispatch_at - clock_timestamp() BETWEEN interval '15 s' AND interval '20 s'"
        " FROM outbox b JOIN occurrence o ON o.id = b.run_id"
    ).fetchall()
    assert agenda == [(held.run_id, 2, True, True)]


def test_an_end_under_a_void_fence_changes_nothing(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    late = take_queued(ledger, connection, session_id)
    connection.execute("UPDATE session SET expires_at = clock_timestamp() - interval '1 s'")
    lost = ending(late, State.RETRY_WAIT, outcome=AttemptOutcome.LOST, delay_s=0.0)
    assert end(connection, lost, "dead") is State.RETRY_WAIT
    assert end(connection, ending(late)) is None
    assert connection.execute("SELECT state FROM occurrence").fetchone() == ("RETRY_WAIT",)
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == ("lost",)


UNSAFE = "UPDATE target SET side_effects = 'unsafe_external'"


@pytest.mark.parametrize("state", [State.RETRY_WAIT, State.QUEUED])
def test_the_database_refuses_to_repeat_an_unsafe_effect(
    state: State, ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    connection.execute(UNSAFE)
    with pytest.raises(psycopg.errors.CheckViolation, match="not repeated by itself"):
        end(connection, ending(held, state, delay_s=0.0))
    assert end(connection, ending(held, State.UNKNOWN)) is State.UNKNOWN


@pytest.mark.parametrize("known", [State.SUCCEEDED, State.FAILED])
def test_an_unknown_outcome_is_resolved_under_the_last_fence_alone(
    known: State, ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id, overlap="skip")
    slot = [held.schedule_id, held.run_id, held.due_at]
    connection.execute("INSERT INTO overlap_slot VALUES (%s, %s, %s)", slot)
    end(connection, ending(held, State.UNKNOWN, outcome=AttemptOutcome.LOST))
    late = ending(held, known)
    for other in (replace(late, fence=held.fence - 1), ending(held, State.UNKNOWN)):
        assert claims.resolve_unknown(connection, [other]) == {}
    assert connection.execute("SELECT run_id FROM overlap_slot").fetchone() == (held.run_id,)
    assert claims.resolve_unknown(connection, [late])[held.fence].state == known
    assert claims.resolve_unknown(connection, [late]) == {}
    assert connection.execute("SELECT run_id FROM overlap_slot").fetchone() == (None,)
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == (late.outcome,)


def test_a_cancellation_makes_no_answer_of_an_unknown_outcome(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    connection.execute("UPDATE occurrence SET cancel_requested_at = clock_timestamp()")
    assert end(connection, ending(held, State.UNKNOWN)) is State.UNKNOWN


def test_a_holder_whose_time_is_up_ends_what_nobody_has_taken_from_it(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    """After an outage of the database an end may come before the renewal."""
    held = take_queued(ledger, connection, session_id)
    connection.execute("UPDATE session SET expires_at = clock_timestamp() - interval '1 s'")
    assert end(connection, ending(held)) is State.SUCCEEDED
    lost = ending(held, State.RETRY_WAIT, outcome=AttemptOutcome.LOST, delay_s=0.0)
    assert end(connection, lost, "dead") is None


def test_the_sweep_cannot_end_what_a_live_session_holds(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    lost = ending(held, State.RETRY_WAIT, outcome=AttemptOutcome.LOST, delay_s=0.0)
    assert end(connection, lost, "dead") is None
    assert end(connection, lost, "overdue") is None
    connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    assert end(connection, lost, "overdue") is State.RETRY_WAIT


def test_an_end_that_is_repeated_after_a_lost_answer_is_recognised(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    end(connection, ending(held))
    assert claims.already_ended(connection, [ending(held)]) == {held.fence}
    assert claims.already_ended(connection, [ending(held, State.FAILED)]) == set()


def test_a_cancelled_run_ends_cancelled_unless_it_succeeded(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    connection.execute("UPDATE occurrence SET cancel_requested_at = clock_timestamp()")
    assert end(connection, ending(held, State.RETRY_WAIT, delay_s=1.0)) is State.CANCELLED
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


@pytest.mark.parametrize(("state", "keeps"), [(State.RETRY_WAIT, True), (State.SUCCEEDED, False)])
def test_the_slot_goes_with_a_terminal_state_and_stays_with_a_retry(
    state: State, keeps: bool, ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id, overlap="skip")
    connection.execute(
        "INSERT INTO overlap_slot VALUES (%s, %s, %s)", [held.schedule_id, held.run_id, held.due_at]
    )
    end(connection, ending(held, state, delay_s=1.0))
    holder = connection.execute("SELECT run_id FROM overlap_slot").fetchone()
    assert holder == ((held.run_id,) if keeps else (None,))


def test_leases_unknown_to_their_process_are_given_up_once_they_are_old(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    before, after = held.granted_at, connection.execute("SELECT clock_timestamp()").fetchone()
    assert after is not None
    assert sessions.disown_leases(connection, session_id, fences=[], listed_at=before) == 0
    assert sessions.disown_leases(connection, session_id, fences=[held.fence], listed_at=after[0]) == 0
    assert sessions.disown_leases(connection, session_id, fences=[], listed_at=after[0]) == 1
    lost = ending(held, State.RETRY_WAIT, outcome=AttemptOutcome.LOST, delay_s=0.0)
    assert end(connection, lost, "dead") is State.RETRY_WAIT


def test_batches_that_share_runs_in_any_order_do_not_deadlock(
    ledger: HandMadeLedger, connect: Callable[[], Connection], session_id: UUID
) -> None:
    due = [ledger.instant(number) for number in range(1, 41)]
    runs = [(ledger.run(due_at, "QUEUED"), due_at) for due_at in due]
    wins: list[UUID] = []

    def claim_all(connection: Connection, order: list[tuple[UUID, datetime]]) -> None:
        batch = [claim_of(run_id, due_at) for run_id, due_at in order]
        with connection.transaction():
            claims.lock(connection, claims=batch)
            answers = claims.claim(connection, batch, session_id=session_id)
        wins.extend(claim.run_id for claim in batch if answers[claim.claim_id] is None)

    orders = [runs, runs[::-1], runs[20:] + runs[:20], runs[::2] + runs[1::2]]
    threads = [threading.Thread(target=claim_all, args=(connect(), order)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(wins) == sorted(run_id for run_id, _ in runs)


def test_a_drained_run_is_queued_again_in_its_slot_and_its_attempt_is_not_counted(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id, overlap="skip")
    connection.execute(
        "INSERT INTO overlap_slot VALUES (%s, %s, %s)", [held.schedule_id, held.run_id, held.due_at]
    )
    drained = ending(held, State.QUEUED, outcome=AttemptOutcome.SUPERSEDED)
    assert end(connection, drained) is State.QUEUED
    assert end(connection, drained) is None  # its lease is gone, and with it the fence
    run = connection.execute("SELECT generation, attempt_count, finished_at FROM occurrence").fetchone()
    assert run == (2, 0, None)
    assert connection.execute("SELECT generation FROM outbox").fetchall() == [(2,)]
    assert connection.execute("SELECT run_id FROM overlap_slot").fetchone() == (held.run_id,)
    again = take(connection, claim_of(held.run_id, held.due_at), session_id)
    assert isinstance(again, Claimed)
    assert (again.attempt, again.tries, again.fence > held.fence) == (1, 1, True)
    assert connection.execute("SELECT outcome FROM attempt ORDER BY fence").fetchall() == [
        ("superseded",),
        (None,),
    ]


def test_a_run_that_was_cancelled_is_not_queued_again_by_a_drain(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id)
    connection.execute("UPDATE occurrence SET cancel_requested_at = clock_timestamp()")
    assert end(connection, ending(held, State.QUEUED, outcome=AttemptOutcome.SUPERSEDED)) is State.CANCELLED
    assert connection.execute("SELECT attempt_count FROM occurrence").fetchone() == (1,)
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == ("cancelled",)


def test_forgiven_attempts_are_no_part_of_the_budget(
    ledger: HandMadeLedger, connection: Connection, session_id: UUID
) -> None:
    held = take_queued(ledger, connection, session_id, attempt_count=5, attempts_forgiven=5)
    assert (held.attempt, held.tries) == (6, 1)
