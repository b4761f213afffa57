"""What users import.

from scheduler.jobs import Context, PermanentError, Retry, RetryLater, job

@job("reports.build", retry=Retry(max_attempts=5), timeout_s=600)
def build_report(ctx: Context, kind: str = "daily"):
    ...
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from inspect import getdoc
from typing import Any
from uuid import UUID

from celery import shared_task
from celery.exceptions import Ignore

from scheduler.core.retry import UNSAFE
from scheduler.errors import (
    Cancelled,
    Drained,
    LeaseLost,
    NotStarted,
    PermanentError,
    RetryLater,
    TimedOut,
)
from scheduler.on_request import JobTask, cron, every, run_now, schedule, schedule_at
from scheduler.topology import EXISTING_TASK, HTTP_TASK
from scheduler.worker import registry, runtime
from scheduler.worker.execution import Context
from scheduler.worker.reconciler import Hook, UnknownRun
from scheduler.worker.registry import Function, JobSpec, payload_schema

__all__ = [
    "Cancelled",
    "Context",
    "Drained",
    "LeaseLost",
    "NotStarted",
    "PermanentError",
    "Retry",
    "RetryLater",
    "TimedOut",
    "UnknownRun",
    "cron",
    "every",
    "job",
    "run_now",
    "schedule",
    "schedule_at",
]

SIDE_EFFECTS = ("idempotent", "fenced", UNSAFE)
DEFAULT_TIMEOUT_S = 300  # as `definitions` has it


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how soon again, in seconds. `deadline_s`: no attempt begins later than this after the due
    instant. `non_retryable`: exception types that fail the run at once.
    """

    max_attempts: int = 5
    initial_interval_s: float = 1.0
    backoff: float = 2.0
    max_interval_s: float = 300.0
    deadline_s: float | None = None
    non_retryable: tuple[type[BaseException], ...] = ()


def job(
    name: str,
    *,
    retry: Retry | None = None,
    timeout_s: int | None = None,
    cancel_grace_s: int | None = None,
    heartbeat_timeout_s: int | None = None,
    side_effects: str = "idempotent",
    drains: bool = False,
    store_result: bool = False,
    reconcile: Hook | None = None,
) -> Callable[[Function], Any]:
    """Make a function a job: a Celery task of this name that runs under a fence.

    The function gets a `Context`, then the schedule's payload as keyword arguments; the payload is checked
    against its signature when a schedule is saved. Calling the job with a context calls the function.
    `manage.py apply` makes it known as a target. Raises ValueError or TypeError for a job that cannot be.

    `timeout_s` bounds an attempt: once it has passed, the job's next call to its context raises TimedOut, and
    whatever exception leaves the job then is told as a time-out. `cancel_grace_s` later the run is taken from
    a job that goes on all the same. `heartbeat_timeout_s`, for a job that promises to call `ctx.heartbeat()`:
    the longest silence; must be less than `timeout_s`. A schedule may say otherwise for each of the three.

    `side_effects`: what becomes of an attempt that ends without a clear answer. `idempotent` and `fenced`
    jobs are tried again, `unsafe_external` ones never by themselves: once begun, whatever is not a return, a
    PermanentError or a NotStarted (which fails the run) leaves it UNKNOWN until a person says how it ended.

    `reconcile`, for an `unsafe_external` job: called as `reconcile(run: UnknownRun)` where it is not known
    how a run ended, it finds out and answers "succeeded", "failed", "retry" (no effect has happened: try it
    again) or None (not known yet). It is asked until it knows, less and less often, and may take as long as a
    session (30 s); one that raises is asked again.

    `drains`: when its worker shuts down the job would rather stop than be waited for. Then
    `ctx.check_cancelled()` and `ctx.heartbeat()` raise Drained; another worker takes the run up with the
    `resume` that was last reported, and the attempt that was broken off is not counted.

    `store_result`: keep what the job returns in the application's Celery result backend too, under the run's
    id. The ledger keeps a bounded copy in any case, and only that one is written under the fence.
    """
    if name in (HTTP_TASK, EXISTING_TASK):
        raise ValueError(f"job {name!r}: this name is the product's own")
    if side_effects not in SIDE_EFFECTS:
        raise ValueError(f"job {name!r}: side_effects {side_effects!r} is none of {', '.join(SIDE_EFFECTS)}")
    if drains and side_effects == UNSAFE:
        raise ValueError(f"job {name!r}: an {UNSAFE} job is waited for, it cannot have drains=True")
    if reconcile is not None and side_effects != UNSAFE:
        raise ValueError(f"job {name!r}: only an {UNSAFE} job has runs to reconcile")
    _check_limits(name, timeout_s, cancel_grace_s, heartbeat_timeout_s)

    def decorate(function: Function) -> Any:
        spec = _spec(
            name,
            function,
            retry,
            timeout_s=timeout_s,
            cancel_grace_s=cancel_grace_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            side_effects=side_effects,
            drains=drains,
            reconcile=reconcile,
        )
        registry.register(spec)
        return celery_task(spec, store_result=store_result)

    return decorate


def _check_limits(
    name: str, timeout_s: int | None, cancel_grace_s: int | None, heartbeat_timeout_s: int | None
) -> None:
    given = {"timeout_s": (timeout_s, 1), "cancel_grace_s": (cancel_grace_s, 0)}
    for limit, (value, least) in {**given, "heartbeat_timeout_s": (heartbeat_timeout_s, 1)}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"job {name!r}: {limit} is {value!r}, not a whole number from {least}")
    most = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    if heartbeat_timeout_s is not None and heartbeat_timeout_s >= most:
        raise ValueError(f"job {name!r}: heartbeat_timeout_s must be less than timeout_s, which is {most}")


def _spec(name: str, function: Function, retry: Retry | None, **more: Any) -> JobSpec:
    settings = asdict(retry) if retry else None
    non_retryable = settings.pop("non_retryable") if settings else ()
    return JobSpec(
        name=name,
        function=function,
        retry=settings,
        parameters=payload_schema(function),
        description=getdoc(function) or "",
        non_retryable=non_retryable,
        **more,
    )


def celery_task(spec: JobSpec, *, store_result: bool = False) -> Any:
    """The task by which a worker runs what it has claimed."""

    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            return spec.function(*args, **kwargs)
        claim_id = task.request.get(runtime.CLAIM)
        if claim_id is None:
            raise RuntimeError(f"job {spec.name!r} runs from its schedule, not by delay() or apply_async()")
        returned: list[Any] = []
        keeping = replace(spec, function=_keeping(spec.function, returned)) if store_result else spec
        error = runtime.execute_here(UUID(claim_id), keeping)
        if isinstance(error, (LeaseLost, Cancelled, RetryLater)):
            raise Ignore  # neither a success nor a failure to Celery's monitors
        if error is not None and not isinstance(error, Exception):
            # A pool would take a SystemExit for the end of its worker.
            raise RuntimeError(repr(error)) from error
        if error is not None:
            raise error
        return returned[0] if returned else None

    run.__name__ = spec.function.__name__
    run.__doc__ = spec.function.__doc__
    run.__module__ = spec.function.__module__
    return shared_task(name=spec.name, base=JobTask, bind=True, typing=False, ignore_result=not store_result)(
        run
    )


def _keeping(function: Function, returned: list[Any]) -> Function:
    """The function, with what it returns noted for Celery as well."""

    def call(*args: Any, **payload: Any) -> Any:
        returned.append(function(*args, **payload))
        return returned[0]

    return call
