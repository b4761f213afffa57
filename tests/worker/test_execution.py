"""One attempt: what the job sees, and what its end means."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler.core.identity import NOMINAL
from scheduler.core.states import AttemptOutcome, State
from scheduler.errors import (
    Cancelled,
    Drained,
    LeaseLost,
    NotStarted,
    PermanentError,
    RetryLater,
    TimedOut,
)
from scheduler.jobs import job
from scheduler.store.claims import Claimed, Ending
from scheduler.worker.execution import ERROR_BYTES, RESULT_BYTES, Context, Held, attempt, describe
from scheduler.worker.registry import JobSpec, payload_schema

CLAIMED = Claimed(
    claim_id=uuid4(),
    run_id=uuid4(),
    due_at=datetime(2026, 11, 30, 9, tzinfo=UTC),
    fence=7,
    granted_at=datetime(2026, 11, 30, 9, tzinfo=UTC),
    ends_by=datetime(2026, 11, 30, 10, tzinfo=UTC),
    attempt=1,
    tries=1,
    schedule_id=uuid4(),
    revision=1,
    origin_key=NOMINAL,
    slotted=True,
    fixed_delay=False,
    tenant_id=uuid4(),
    tenant="demo",
    target="reports.build",
    payload={"kind": "daily"},
    payload_ref=None,
    retry={"max_attempts": 3},
    timeout_s=300,
    cancel_grace_s=30,
    resume={"page": 4},
    side_effects="idempotent",
)


class Ledger:
    """Accepts or refuses progress as a lease would, and keeps it."""

    def __init__(self, *, holds: bool = True) -> None:
        self.holds = holds
        self.progress: list[dict[str, Any]] = []

    def report_progress(self, held: Held, progress: dict[str, Any]) -> bool:
        self.progress.append(progress)
        return self.holds


def held(**changes: Any) -> Held:
    return Held(
        claimed=replace(CLAIMED, **changes), session_id=uuid4(), good_until=lambda: time.monotonic() + 60
    )


def run(
    function: Callable[..., Any],
    one: Held | None = None,
    ledger: Ledger | None = None,
    *,
    drains: bool = False,
) -> Ending:
    """`one`: how the attempt stands from the moment on at which its job is called."""
    one = one or held()
    begins = Held(claimed=one.claimed, session_id=one.session_id, good_until=lambda: time.monotonic() + 60)

    def called(ctx: Context, **payload: Any) -> Any:
        vars(begins).update(vars(one))
        return function(ctx, **payload)

    spec = JobSpec(
        name="reports.build",
        function=called,
        retry=None,
        timeout_s=None,
        side_effects="idempotent",
        parameters={},
        description="",
        non_retryable=(ZeroDivisionError,),
        drains=drains,
    )
    ending, _ = attempt(begins, spec, ledger or Ledger())
    return ending


def raising(error: BaseException) -> Callable[..., Any]:
    def job(ctx: Context, kind: str) -> None:
        raise error

    return job


def test_the_job_gets_its_context_and_payload() -> None:
    seen: list[Any] = []

    def job(ctx: Context, kind: str) -> dict[str, int]:
        seen.extend([ctx.run_id, ctx.fence, ctx.attempt, ctx.tenant, ctx.resume, kind])
        return {"rows": 3}

    ending = run(job)
    assert seen == [CLAIMED.run_id, 7, 1, "demo", {"page": 4}, "daily"]
    assert (ending.state, ending.outcome, ending.result) == (
        State.SUCCEEDED,
        AttemptOutcome.SUCCEEDED,
        {"rows": 3},
    )


@pytest.mark.parametrize(
    ("error", "number", "state"),
    [
        (RuntimeError("flaky"), 1, State.RETRY_WAIT),
        (RuntimeError("flaky"), 3, State.DEAD_LETTERED),
        (PermanentError("no"), 1, State.FAILED),
        (ZeroDivisionError("listed"), 1, State.FAILED),
        (SystemExit(3), 1, State.RETRY_WAIT),
        (Cancelled("raised by itself"), 1, State.RETRY_WAIT),
    ],
)
def test_an_error_leads_where_the_policy_says(error: BaseException, number: int, state: State) -> None:
    ending = run(raising(error), held(attempt=number, tries=number))
    assert (ending.state, ending.outcome) == (state, AttemptOutcome.FAILED)
    assert ending.error is not None
    assert ending.error["type"] == type(error).__name__


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RuntimeError("anything"), State.UNKNOWN),
        (ZeroDivisionError("listed as not retryable"), State.UNKNOWN),
        (RetryLater(after=1), State.UNKNOWN),
        (SystemExit(3), State.UNKNOWN),
        (LeaseLost("lost"), State.UNKNOWN),
        (PermanentError("no"), State.FAILED),
        (NotStarted("not yet"), State.FAILED),
    ],
)
def test_of_an_unsafe_effect_only_the_job_can_say_that_it_has_not_happened(
    error: BaseException, state: State
) -> None:
    assert run(raising(error), held(side_effects="unsafe_external")).state is state


def test_an_unsafe_effect_that_was_cancelled_half_way_is_unknown() -> None:
    one = held(side_effects="unsafe_external")
    one.cancelled.set()
    ending = run(raising(Cancelled("as asked")), one)
    assert (ending.state, ending.outcome) == (State.UNKNOWN, AttemptOutcome.CANCELLED)


def lose(one: Held) -> None:
    one.lost.set()


def wake_up_late(one: Held) -> None:
    one.good_until = lambda: time.monotonic() - 1


def wake_up_in_doubt(one: Held) -> None:
    one.sure_until = lambda: time.monotonic() - 1


def cancel(one: Held) -> None:
    one.cancelled.set()


def run_out_of_time(one: Held) -> None:
    one.ends_at = time.monotonic() - 1


@pytest.mark.parametrize(
    ("happens", "outcome", "state"),
    [
        (lose, AttemptOutcome.LOST, State.RETRY_WAIT),
        (wake_up_late, AttemptOutcome.LOST, State.RETRY_WAIT),
        (wake_up_in_doubt, AttemptOutcome.LOST, State.RETRY_WAIT),
        (cancel, AttemptOutcome.CANCELLED, State.CANCELLED),
        (run_out_of_time, AttemptOutcome.TIMED_OUT, State.RETRY_WAIT),
    ],
)
def test_what_is_no_longer_wanted_between_its_claim_and_its_job_does_not_begin(
    happens: Callable[[Held], None], outcome: AttemptOutcome, state: State
) -> None:
    """Of an unsafe effect it is known then that it has not happened."""
    called: list[Context] = []
    spec = JobSpec(
        name="reports.build",
        function=lambda ctx, kind: called.append(ctx),
        retry=None,
        timeout_s=None,
        side_effects="idempotent",
        parameters={},
        description="",
    )
    safe, unsafe = held(), held(side_effects="unsafe_external")
    for one in (safe, unsafe):
        happens(one)
    ending, _ = attempt(safe, spec, Ledger())
    assert (ending.state, ending.outcome) == (state, outcome)
    ending, error = attempt(unsafe, spec, Ledger())
    assert (ending.state, type(error)) == (State.FAILED, NotStarted)
    assert called == []


def test_retry_later_sets_the_delay() -> None:
    assert run(raising(RetryLater(after=90))).delay_s == 90
    assert (run(raising(RetryLater())).delay_s or 0) <= 1


def test_a_lost_lease_is_raised_at_the_next_call_and_a_cancel_too() -> None:
    late = held()
    late.good_until = lambda: time.monotonic() - 1
    lost, cancelled = held(), held()
    lost.lost.set()
    cancelled.cancelled.set()
    for one, error in ((late, LeaseLost), (lost, LeaseLost), (cancelled, Cancelled)):
        with pytest.raises(error):
            Context(one, Ledger()).check_cancelled()
        with pytest.raises(error):
            Context(one, Ledger()).heartbeat()


def test_a_job_that_stops_because_it_was_cancelled_ends_cancelled() -> None:
    one = held()
    one.cancelled.set()
    ending = run(lambda ctx, kind: ctx.check_cancelled(), one)
    assert (ending.state, ending.outcome) == (State.CANCELLED, AttemptOutcome.CANCELLED)


def test_a_job_that_agreed_to_it_goes_back_to_the_queue_when_its_worker_drains() -> None:
    one, ledger = held(), Ledger()
    one.draining.set()
    ending = run(lambda ctx, kind: ctx.heartbeat(resume={"page": 5}), one, ledger, drains=True)
    assert (ending.state, ending.outcome) == (State.QUEUED, AttemptOutcome.SUPERSEDED)
    assert ledger.progress[0]["resume"] == {"page": 5}  # on record before the job was stopped


def test_a_drain_stops_nobody_else() -> None:
    one = held()
    one.draining.set()
    assert run(lambda ctx, kind: ctx.check_cancelled(), one).state is State.SUCCEEDED
    assert run(raising(Drained("by itself")), held(), drains=True).state is State.RETRY_WAIT
    one.cancelled.set()
    assert run(lambda ctx, kind: ctx.check_cancelled(), one, drains=True).state is State.CANCELLED


def out_of_time(**changes: Any) -> Held:
    one = held(**changes)
    one.ends_at = time.monotonic() - 0.001
    return one


def silent(**changes: Any) -> Held:
    one = held(heartbeat_timeout_s=5, **changes)
    one.heard_at = time.monotonic() - 5.001
    return one


@pytest.mark.parametrize("late", [out_of_time, silent])
@pytest.mark.parametrize(
    ("side_effects", "state"), [("fenced", "RETRY_WAIT"), ("unsafe_external", "UNKNOWN")]
)
def test_a_job_whose_time_is_up_hears_it_at_its_next_call(
    late: Callable[..., Held], side_effects: str, state: str
) -> None:
    for call in (lambda ctx, kind: ctx.check_cancelled(), lambda ctx, kind: ctx.heartbeat()):
        ending = run(call, late(side_effects=side_effects))
        assert (ending.state, ending.outcome) == (state, AttemptOutcome.TIMED_OUT)
        assert ending.error is not None
        assert ending.error["type"] == "TimedOut"
        assert ending.error["message"].partition(" than its ")[2] in (
            "timeout_s of 300",
            "heartbeat_timeout_s of 5",
        )


@pytest.mark.parametrize(
    ("error", "number", "state"),
    [
        (RuntimeError("as SoftTimeLimitExceeded is, to who knows no Celery"), 1, State.RETRY_WAIT),
        (TimedOut("swallowed, and raised again"), 3, State.DEAD_LETTERED),
        (SystemExit(1), 1, State.RETRY_WAIT),
        (PermanentError("the job knows better"), 1, State.FAILED),
        (RetryLater(after=9), 1, State.RETRY_WAIT),
    ],
)
def test_whatever_leaves_a_job_after_its_time_is_a_time_out_and_goes_where_the_policy_says(
    error: BaseException, number: int, state: State
) -> None:
    ending = run(raising(error), out_of_time(attempt=number, tries=number))
    assert (ending.state, ending.outcome) == (state, AttemptOutcome.TIMED_OUT)


def test_a_job_that_returns_after_its_time_has_succeeded() -> None:
    for late in (out_of_time(), out_of_time(side_effects="unsafe_external"), silent()):
        assert run(lambda ctx, kind: "done", late).state is State.SUCCEEDED


def test_what_is_lost_or_cancelled_is_told_as_that_though_its_time_is_up() -> None:
    lost, cancelled, draining = out_of_time(), out_of_time(), out_of_time()
    lost.lost.set()
    cancelled.cancelled.set()
    draining.draining.set()
    assert run(lambda ctx, kind: ctx.check_cancelled(), lost).outcome is AttemptOutcome.LOST
    assert run(lambda ctx, kind: ctx.check_cancelled(), cancelled).state is State.CANCELLED
    assert run(raising(Drained("in time to go back")), draining).state is State.QUEUED


def test_a_report_breaks_the_silence_that_the_job_promised() -> None:
    one = held(heartbeat_timeout_s=5)
    one.heard_at = time.monotonic() - 4
    Context(one, Ledger()).heartbeat(percent=1)
    assert one.heard_at > time.monotonic() - 1
    without_promise = held()
    without_promise.heard_at = time.monotonic() - 10**6
    without_promise.check()


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1.5}, "timeout_s"),
        ({"cancel_grace_s": -1}, "cancel_grace_s"),
        ({"heartbeat_timeout_s": True}, "heartbeat_timeout_s"),
        ({"heartbeat_timeout_s": 300}, "less than timeout_s, which is 300"),
        ({"timeout_s": 10, "heartbeat_timeout_s": 10}, "less than timeout_s, which is 10"),
    ],
)
def test_limits_of_a_job_that_cannot_be_are_refused_where_it_is_written(
    limits: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        job("tests.limits", **limits)


def test_progress_goes_to_the_ledger_and_a_refusal_is_a_lost_lease() -> None:
    ledger = Ledger()
    Context(held(), ledger).heartbeat(percent=40, note="page 4", resume={"page": 5})
    assert ledger.progress == [{"percent": 40, "note": "page 4", "resume": {"page": 5}}]
    with pytest.raises(LeaseLost):
        Context(held(), Ledger(holds=False)).heartbeat(percent=50)


def test_keys_are_the_same_in_the_next_attempt() -> None:
    first, second = Context(held(), Ledger()), Context(held(attempt=2, fence=9), Ledger())
    assert first.idempotency_key == second.idempotency_key
    assert first.key("charge") == second.key("charge") != first.key("mail")


def recursive() -> list[Any]:
    result: list[Any] = []
    result.append(result)
    return result


@pytest.mark.parametrize(
    "result", [object(), {1, 2}, float("nan"), "a\x00b", "\ud800", "x" * (RESULT_BYTES + 1), recursive()]
)
def test_a_result_that_cannot_be_kept_does_not_fail_the_run(result: Any) -> None:
    ending = run(lambda ctx, kind: result)
    assert ending.state is State.SUCCEEDED
    assert "not_stored" in ending.result
    json.dumps(ending.result, allow_nan=False)


def test_errors_are_bounded_and_masked() -> None:
    def fail() -> None:
        password = "hunter2"
        raise RuntimeError(
            f"connect postgres://bob:{password}@db/x failed; password={password}; "
            f"Authorization: Bearer {password} \x00 \ud800 " + "x" * 100_000
        )

    try:
        fail()
    except RuntimeError as error:
        text = json.dumps(describe(error))
    assert "hunter2" not in text
    assert "\\u0000" not in text
    assert len(text) < ERROR_BYTES + 3000


def test_the_payload_schema_follows_the_signature() -> None:
    def job(
        ctx: Context,
        account: str,
        pages: int = 3,
        ratio: float | None = None,
        *,
        tags: list[str],
        extra: UUID,
    ) -> None: ...

    assert payload_schema(job) == {
        "type": "object",
        "properties": {
            "account": {"type": "string"},
            "pages": {"type": "integer"},
            "ratio": {"type": ["number", "null"]},
            "tags": {"type": "array"},
            "extra": {},
        },
        "required": ["account", "tags", "extra"],
        "additionalProperties": False,
    }
    assert payload_schema(lambda ctx, **anything: None)["additionalProperties"] is True


@pytest.mark.parametrize("function", [lambda: None, lambda *, ctx: None, lambda ctx, *rest: None])
def test_a_signature_that_no_payload_fills_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError):
        payload_schema(function)
