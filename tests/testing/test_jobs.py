"""What applications test their jobs with: one attempt, two deliveries, a crash at every call."""

from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler.errors import Cancelled, LeaseLost, NotStarted, RetryLater
from scheduler.jobs import Context, Retry, job
from scheduler.testing.jobs import (
    NotRepeatable,
    assert_repeatable,
    crash_at_every_call,
    deliver_twice,
    run_job,
)

mailbox: list[Any] = []
sent: set[str] = set()


@job("tests.jobs.careful", retry=Retry(max_attempts=3))
def careful(ctx: Context, invoice: int) -> int:
    """Asks before it sends."""
    ctx.heartbeat(percent=10, resume={"seen": ctx.attempt})
    for number in range(2):
        if (key := ctx.key(f"mail-{number}")) not in sent:
            sent.add(key)
            mailbox.append((invoice, number))
    ctx.check_cancelled()
    return invoice


@job("tests.jobs.careless")
def careless(ctx: Context, invoice: int) -> None:
    mailbox.append(invoice)
    ctx.heartbeat()


@job("tests.jobs.half", retry=Retry(max_attempts=2))
def half(ctx: Context) -> None:
    """Remembers in `resume` what it has done, and so is right but for the call in between."""
    if ctx.resume is None:
        mailbox.append("first")
        ctx.heartbeat(resume="first is sent")
    mailbox.append("second")


@job("tests.jobs.failing")
def failing(ctx: Context, how: str) -> None:
    raise {"later": RetryLater(after=7), "bug": ValueError("password=hunter2")}[how]


@job("tests.jobs.payment", side_effects="unsafe_external")
def payment(ctx: Context, connected: bool) -> None:
    raise TimeoutError if connected else NotStarted


def emptied() -> list[Any]:
    found = list(mailbox)
    mailbox.clear()
    return found


@pytest.fixture(autouse=True)
def _empty() -> None:
    mailbox.clear()
    sent.clear()


def test_an_attempt_tells_how_it_ended() -> None:
    done = run_job(careful, {"invoice": 7})
    assert (done.state, done.result, done.exception) == ("SUCCEEDED", 7, None)
    assert done.progress[0]["percent"] == 10

    retried = run_job(failing, {"how": "later"})
    assert (retried.state, retried.delay_s) == ("RETRY_WAIT", 7)
    last = run_job(failing, {"how": "bug"}, attempt_number=5)
    assert (last.state, last.error and last.error["message"]) == ("DEAD_LETTERED", "password=***")


def test_an_unsafe_job_is_judged_as_such() -> None:
    assert run_job(payment, {"connected": True}).state == "UNKNOWN"
    assert run_job(payment, {"connected": False}).state == "FAILED"


def test_a_job_meets_what_it_is_told_to_meet() -> None:
    assert isinstance(run_job(careful, {"invoice": 1}, cancelled=True).exception, Cancelled)
    assert isinstance(run_job(careful, {"invoice": 1}, lost=True).exception, LeaseLost)
    due_at = datetime(2027, 1, 1, tzinfo=UTC)
    seen: list[Context] = []

    @job("tests.jobs.curious")
    def curious(ctx: Context) -> None:
        seen.append(ctx)

    run_job(curious, due_at=due_at, resume={"page": 4}, tenant="acme", attempt_number=2)
    (ctx,) = seen
    assert (ctx.due_at, ctx.resume, ctx.tenant, ctx.attempt) == (due_at, {"page": 4}, "acme", 2)


def test_a_payload_that_does_not_fit_is_refused_as_when_it_is_saved() -> None:
    with pytest.raises(ValueError, match=r"payload\.invoice: expected a whole number"):
        run_job(careful, {"invoice": "seven"})
    with pytest.raises(ValueError, match="is no job"):
        run_job("tests.jobs.nobody")


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (5, r"payload: expected an object\."),
        ([], r"payload: expected an object\."),
        ({"invoice": datetime(2030, 1, 1, tzinfo=UTC)}, r"payload\.invoice: expected a JSON value"),
        ({7: "seven"}, r"payload: a member's name: expected a text"),
    ],
)
def test_a_payload_that_no_ledger_could_keep_is_refused_too(payload: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_job(careful, payload)


def test_two_deliveries_have_one_key_and_two_fences() -> None:
    keys: list[tuple[str, int]] = []

    @job("tests.jobs.keyed")
    def keyed(ctx: Context) -> None:
        keys.append((ctx.idempotency_key, ctx.fence))

    deliver_twice(keyed)
    (first, low), (second, high) = keys
    assert first == second
    assert low < high


def test_a_crash_at_every_call_and_after_the_end() -> None:
    places = [trial.at for trial in crash_at_every_call(careful, {"invoice": 7})]
    assert places == [
        "call 1, heartbeat()",
        "call 2, key('mail-0')",
        "call 3, key('mail-1')",
        "call 4, check_cancelled()",
        "end",
    ]


def test_a_job_that_asks_before_it_acts_is_repeatable() -> None:
    assert_repeatable(careful, {"invoice": 7}, effects=emptied)


@pytest.mark.parametrize(
    ("careless_job", "payload", "where"),
    [
        (careless, {"invoice": 7}, r"cut off at call 1, heartbeat\(\) and tried again it left \[7, 7\]"),
        (half, {}, r"cut off at end and tried again it left"),
    ],
)
def test_one_that_does_not_is_found_out(careless_job: Any, payload: dict[str, Any], where: str) -> None:
    with pytest.raises(NotRepeatable, match=where):
        assert_repeatable(careless_job, payload, effects=emptied)


def test_one_that_never_works_is_no_proof() -> None:
    with pytest.raises(NotRepeatable, match="does not even run once"):
        assert_repeatable(failing, {"how": "bug"}, effects=emptied)
