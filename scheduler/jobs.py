"""What users import.

from scheduler.jobs import Context, PermanentError, Retry, RetryLater, job

@job("reports.build", retry=Retry(max_attempts=5), timeout_s=600)
def build_report(ctx: Context, kind: str = "daily"):
    ...
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from inspect import getdoc
from typing import Any
from uuid import UUID

from celery import shared_task
from celery.exceptions import Ignore

from scheduler.core.retry import UNSAFE
from scheduler.errors import Cancelled, Drained, LeaseLost, NotStarted, PermanentError, RetryLater
from scheduler.worker import registry, runtime
from scheduler.worker.execution import Context
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
    "job",
]

SIDE_EFFECTS = ("idempotent", "fenced", UNSAFE)


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
    side_effects: str = "idempotent",
    drains: bool = False,
) -> Callable[[Function], Any]:
    """Make a function a job: a Celery task of this name that runs under a fence.

    The function gets a `Context`, then the schedule's payload as keyword arguments; the payload is checked
    against its signature when a schedule is saved. Calling the job with a context calls the function.
    `manage.py apply` makes it known as a target. Raises ValueError or TypeError for a job that cannot be.

    `side_effects`: what becomes of an attempt that ends without a clear answer. `idempotent` and `fenced`
    jobs are tried again, `unsafe_external` ones never by themselves: once begun, whatever is not a return, a
    PermanentError or a NotStarted (which fails the run) leaves it UNKNOWN until a person says how it ended.

    `drains`: when its worker shuts down the job would rather stop than be waited for. Then
    `ctx.check_cancelled()` and `ctx.heartbeat()` raise Drained; another worker takes the run up with the
    `resume` that was last reported, and the attempt that was broken off is not counted.
    """
    if side_effects not in SIDE_EFFECTS:
        raise ValueError(f"job {name!r}: side_effects {side_effects!r} is none of {', '.join(SIDE_EFFECTS)}")
    if drains and side_effects == UNSAFE:
        raise ValueError(f"job {name!r}: an {UNSAFE} job is waited for, it cannot have drains=True")

    def decorate(function: Function) -> Any:
        spec = _spec(name, function, retry, timeout_s, side_effects, drains)
        registry.register(spec)
        return _celery_task(spec)

    return decorate


def _spec(
    name: str,
    function: Function,
    retry: Retry | None,
    timeout_s: int | None,
    side_effects: str,
    drains: bool,
) -> JobSpec:
    settings = asdict(retry) if retry else None
    non_retryable = settings.pop("non_retryable") if settings else ()
    return JobSpec(
        name=name,
        function=function,
        retry=settings,
        timeout_s=timeout_s,
        side_effects=side_effects,
        parameters=payload_schema(function),
        description=getdoc(function) or "",
        non_retryable=non_retryable,
        drains=drains,
    )


def _celery_task(spec: JobSpec) -> Any:
    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            return spec.function(*args, **kwargs)
        claim_id = task.request.get("fencepost_claim")
        if claim_id is None:
            raise RuntimeError(f"job {spec.name!r} runs from its schedule, not by delay() or apply_async()")
        error = runtime.execute_here(UUID(claim_id), spec)
        if isinstance(error, (LeaseLost, Cancelled, RetryLater)):
            raise Ignore  # neither a success nor a failure to Celery's monitors
        if error is not None:
            raise error
        return None

    run.__name__ = spec.function.__name__
    run.__doc__ = spec.function.__doc__
    run.__module__ = spec.function.__module__
    return shared_task(name=spec.name, bind=True, typing=False, ignore_result=True)(run)
