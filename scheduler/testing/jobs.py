"""Jobs under test: run one without a broker or a database, deliver it twice, crash it at every point.

from scheduler.testing.jobs import assert_repeatable, run_job

def test_the_invoice_is_sent():
    outcome = run_job(send_invoice, {"invoice_id": 7})
    assert outcome.state == "SUCCEEDED"

def test_a_second_attempt_sends_nothing_twice():
    assert_repeatable(send_invoice, {"invoice_id": 7}, effects=lambda: list(mailbox))
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from scheduler.core.identity import run_id
from scheduler.core.states import State
from scheduler.payloads import check
from scheduler.store.claims import Claimed
from scheduler.worker import registry
from scheduler.worker.execution import Context, Held, attempt
from scheduler.worker.registry import JobSpec

Effects = TypeVar("Effects")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt ended. `delay_s` with RETRY_WAIT; `error` has `type`, `message` and `traceback`."""

    state: State
    result: Any
    error: Mapping[str, Any] | None
    delay_s: float | None
    progress: tuple[Mapping[str, Any], ...]
    exception: BaseException | None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run that was cut off `at` a call of its context, or after its end, and then tried again."""

    at: str
    second: Outcome


class NotRepeatable(AssertionError):
    """A job left other effects when it was tried again than it leaves when it runs once."""


class _Crash(BaseException):
    """The process died here: nothing in the job may catch it, as nothing catches a kill."""


def run_job(
    job: Any,
    payload: Mapping[str, Any] | None = None,
    *,
    attempt_number: int = 1,
    due_at: datetime | None = None,
    resume: Any = None,
    tenant: str = "test",
    cancelled: bool = False,
    lost: bool = False,
) -> Outcome:
    """One attempt in this thread. `job` is what `@job` made of a function, or a job's name.

    The payload is checked as it is when a schedule is saved: raises ValueError when it does not fit.
    `cancelled` and `lost`: what the job's next call to its context meets.
    """
    spec = _spec(job)
    run = _Run(spec, {} if payload is None else payload, due_at=due_at, tenant=tenant)
    return run.attempt(number=attempt_number, resume=resume, cancelled=cancelled, lost=lost)


def deliver_twice(job: Any, payload: Mapping[str, Any] | None = None) -> tuple[Outcome, Outcome]:
    """The same run attempted twice, as after a worker that died between the effect and its record: the same
    run id and idempotency key, a larger fence.
    """
    run = _Run(_spec(job), {} if payload is None else payload)
    return run.attempt(number=1), run.attempt(number=2)


def crash_at_every_call(job: Any, payload: Mapping[str, Any] | None = None) -> Iterator[Trial]:
    """Runs of the job, each cut off one call of its context later than the one before, the last of them after
    the job's end; each is then tried again with what its heartbeats left in `resume`.
    """
    spec, cut = _spec(job), 1
    while True:
        run = _Run(spec, {} if payload is None else payload)
        at = run.crash(after_calls=cut)
        yield Trial(at=at, second=run.attempt(number=2, resume=run.resume))
        if at == "end":
            return
        cut += 1


def assert_repeatable(
    job: Any, payload: Mapping[str, Any] | None = None, *, effects: Callable[[], Effects]
) -> None:
    """Fail with NotRepeatable unless the job leaves the same, tried again after a crash at any call of its
    context or after its end, as when it runs once.

    `effects` tells what the job has left since it was last asked, in a form that can be compared.
    """
    spec = _spec(job)
    effects()
    once = run_job(spec, payload)
    if once.exception is not None:
        raise NotRepeatable(f"{spec.name} does not even run once") from once.exception
    expected = effects()
    for trial in crash_at_every_call(spec, payload):
        found = effects()
        if trial.second.exception is not None:
            raise NotRepeatable(f"{spec.name}, cut off at {trial.at}, fails when tried again") from (
                trial.second.exception
            )
        if found != expected:
            detail = f"cut off at {trial.at} and tried again it left {found!r}, once it leaves {expected!r}"
            raise NotRepeatable(f"{spec.name}: {detail}")


def _spec(job: Any) -> JobSpec:
    if isinstance(job, JobSpec):
        return job
    name = job if isinstance(job, str) else job.name
    known = registry.jobs().get(name)
    if known is None:
        raise ValueError(f"{name!r} is no job: is its module imported?")
    return known


class _Progress:
    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []

    def report_progress(self, held: Held, progress: dict[str, Any]) -> bool:
        self.reports.append(json.loads(json.dumps(progress)))  # as the ledger would give it back
        return True


@dataclass
class _Run:
    """A run that is on no ledger."""

    spec: JobSpec
    payload: Mapping[str, Any]
    due_at: datetime | None = None
    tenant: str = "test"
    claimed: Claimed = field(init=False)
    progress: _Progress = field(default_factory=_Progress)

    def __post_init__(self) -> None:
        given = dict(self.payload) if isinstance(self.payload, Mapping) else self.payload
        errors = check(given, max_bytes=2**16, target=self.spec.name, parameters=self.spec.parameters)
        if errors:
            raise ValueError("; ".join(f"{error.field}: {error.detail}" for error in errors))
        payload = json.loads(json.dumps(given))  # the job gets what the ledger would give it
        now = datetime.now(UTC)
        due_at = (self.due_at or now).replace(microsecond=0)
        self.claimed = claimed_for(self.spec, payload, due_at=due_at, now=now, tenant=self.tenant)

    @property
    def resume(self) -> Any:
        return self.progress.reports[-1]["resume"] if self.progress.reports else None

    def attempt(
        self, *, number: int, resume: Any = None, cancelled: bool = False, lost: bool = False
    ) -> Outcome:
        held, reports = self._held(number, resume), _Progress()
        if cancelled:
            held.cancelled.set()
        if lost:
            held.lost.set()
        ending, error = attempt(held, self.spec, reports)
        return Outcome(
            state=ending.state,
            result=ending.result,
            error=ending.error,
            delay_s=ending.delay_s,
            progress=tuple(reports.reports),
            exception=error,
        )

    def crash(self, *, after_calls: int) -> str:
        """Run it until the process dies at that call of the context; where that was, or `end`."""
        context = _Mortal(self._held(1, None), self.progress, lives=after_calls)
        try:
            self.spec.function(context, **self.claimed.payload)
        except _Crash:
            return context.died_at
        return "end"

    def _held(self, number: int, resume: Any) -> Held:
        claimed = replace(
            self.claimed, attempt=number, tries=number, fence=self.claimed.fence + number, resume=resume
        )
        return Held(claimed=claimed, session_id=uuid4(), good_until=lambda: time.monotonic() + 3600)


class _Mortal(Context):
    """A context under which the process dies: after its n-th call has done what it does."""

    def __init__(self, held: Held, progress: _Progress, *, lives: int) -> None:
        super().__init__(held, progress)
        self._lives = lives
        self._calls = 0
        self.died_at = ""

    def key(self, name: str) -> str:
        self._called(f"key({name!r})")
        return super().key(name)

    def check_cancelled(self) -> None:
        super().check_cancelled()
        self._called("check_cancelled()")

    def heartbeat(self, *, percent: float | None = None, note: str = "", resume: Any = None) -> None:
        before = self._calls
        self._lives += 1  # what it calls within is not a point of its own
        super().heartbeat(percent=percent, note=note, resume=resume)
        self._calls, self._lives = before, self._lives - 1
        self._called("heartbeat()")

    def _called(self, what: str) -> None:
        self._calls += 1
        if self._calls == self._lives:
            self.died_at = f"call {self._calls}, {what}"
            raise _Crash


def claimed_for(
    spec: JobSpec, payload: dict[str, Any], *, due_at: datetime, now: datetime, tenant: str
) -> Claimed:
    """What a claim of a run of this job would answer."""
    timeout_s = spec.timeout_s or 300
    return Claimed(
        claim_id=uuid4(),
        run_id=run_id(due_at, uuid4().bytes[:10]),
        due_at=due_at,
        fence=1000,
        granted_at=now,
        ends_by=now + timedelta(seconds=timeout_s),
        attempt=1,
        tries=1,
        schedule_id=UUID(int=1),
        revision=1,
        origin_key=uuid4(),  # each run has keys of its own
        slotted=False,
        fixed_delay=False,
        tenant_id=UUID(int=2),
        tenant=tenant,
        target=spec.name,
        payload=payload,
        payload_ref=None,
        retry=dict(spec.retry or {}),
        timeout_s=timeout_s,
        cancel_grace_s=30,
        resume=None,
        side_effects=spec.side_effects,
    )
