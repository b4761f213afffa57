"""An application's existing Celery task as a target, without a changed line in it.

`FENCEPOST_TASKS` names them. A run is claimed like any other; then the task is called as Celery's worker
would: bound `self`, `before_start`, `on_success`, signals, a custom `__call__`, its result stored unless that
is ignored. What it raises is final, as in Celery. Only what the task itself retries, by `self.retry()` or
`autoretry_for`, is tried again, and the ledger does that: Celery's message for it is not published.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from inspect import getdoc, signature
from math import ceil
from typing import Any, Final
from uuid import UUID

from celery import Task, shared_task, states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Retry

from scheduler.core.reading import did_you_mean
from scheduler.errors import Cancelled, LeaseLost, NotStarted, PermanentError, RetryLater
from scheduler.topology import EXISTING_TASK
from scheduler.worker import registry, runtime
from scheduler.worker.execution import Context
from scheduler.worker.registry import JobSpec, payload_schema

_RETRIES: Final = "fencepost_retries"  # of the request: when the task asked to be run again
MOST_ATTEMPTS: Final = 100  # a revision's bound, for a task that says it may be retried without end


class UnknownTask(ValueError):
    """A name that is no task of this process."""


def register(app: Any, names: Iterable[str]) -> None:
    """Make these tasks of `app` jobs. Their modules are imported where Celery has not done so.

    Raises UnknownTask, with the nearest name that there is, and TypeError for a signature that no payload
    can fill.
    """
    for name in names:
        if name not in registry.jobs():
            registry.register(_spec(_find(app, name)))


def _find(app: Any, name: str) -> Any:
    if name not in app.tasks:
        _import_module_of(name)
    task = app.tasks.get(name)
    if task is None:
        hint = did_you_mean(name, [known for known in app.tasks if not known.startswith("celery.")])
        raise UnknownTask(f"FENCEPOST_TASKS: there is no Celery task {name!r}.{hint}")
    return task


def _import_module_of(name: str) -> None:
    module, _, _ = name.rpartition(".")
    try:
        if module:
            import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another


def _spec(task: Any) -> JobSpec:
    retries = task.max_retries
    attempts = MOST_ATTEMPTS if retries is None else min(retries + 1, MOST_ATTEMPTS)
    limit = task.soft_time_limit or task.time_limit
    return JobSpec(
        name=task.name,
        function=_Call(task),
        kind="task",
        retry={"max_attempts": attempts},
        timeout_s=ceil(limit) if limit else None,
        side_effects="idempotent",
        parameters=payload_schema(task.run, context=False),
        description=getdoc(task.run) or "",
        non_retryable=(Exception,),
    )


class _Call:
    """One attempt at an existing task: a job's function."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._trace = build_tracer(task.name, task, app=task.app)
        self.__module__, self.__qualname__ = type(task).__module__, task.name
        _keep_retries_from_the_broker(task)

    def __call__(self, ctx: Context, **payload: Any) -> Any:
        run_id = str(ctx.run_id)
        request = {
            "id": run_id,
            "root_id": run_id,
            "retries": ctx.tries - 1,
            "delivery_info": {},
            "hostname": "",
            "ignore_result": None,
            runtime.CLAIM: str(ctx.fence),
            _RETRIES: (asked := list[Any]()),
        }
        result, info, _, _ = self._trace(run_id, [], payload, request)
        if info is not None:
            return _translated(info)
        if asked:
            raise RetryLater(after=_seconds(asked[-1]))
        return result


def _unknown(name: str) -> JobSpec:
    """Ends the attempt, which is claimed by now: another worker may know the task."""

    def refuse(ctx: Context, **_: Any) -> None:
        raise NotStarted(f"{name!r} is not among this worker's FENCEPOST_TASKS")

    return JobSpec(
        name=name,
        function=refuse,
        kind="task",
        retry=None,
        timeout_s=None,
        side_effects="idempotent",
        parameters={},
        description="",
    )


def _translated(info: Any) -> Any:
    """What Celery makes of a task that did not return, in the ledger's words."""
    if info.state == states.RETRY:
        raise RetryLater(after=_seconds(info.retval.when)) from info.retval.exc
    if info.state == states.IGNORED:
        return None
    if info.state == states.REJECTED:
        if info.retval.requeue:
            raise RetryLater(after=1.0)
        raise PermanentError(f"the task rejected its message: {info.retval.reason}")
    raise info.retval


def _seconds(when: Any) -> float:
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (aware - datetime.now(UTC)).total_seconds())
    return float(when or 0)


def _keep_retries_from_the_broker(task: Any) -> None:
    """Of `Task.retry` all is kept, its counting and its errors too, but not the message that it publishes."""
    original = task.signature_from_request

    def signature_from_request(request: Any = None, args: Any = None, kwargs: Any = None, **more: Any) -> Any:
        request = task.request if request is None else request
        if request.get(runtime.CLAIM) is None:
            return original(request, args, kwargs, **more)
        if (args or kwargs is not None) and not _are_the_same(task, args or (), kwargs or {}, request.kwargs):
            raise PermanentError("a retry with other arguments: a run keeps the payload it was made with")
        return _Unpublished(request, more.get("eta") or more.get("countdown"))

    task.signature_from_request = signature_from_request


def _are_the_same(task: Any, args: Any, kwargs: Any, payload: Any) -> bool:
    """Whether a retry's arguments, in places or by name, are those of this attempt."""
    shape = signature(task.run)
    try:
        asked, made = shape.bind(*args, **kwargs), shape.bind(**payload)
    except TypeError:
        return False
    asked.apply_defaults()
    made.apply_defaults()
    return asked == made


class _Unpublished:
    """Stands for the message of a retry: the ledger announces the next attempt."""

    def __init__(self, request: Any, when: Any) -> None:
        self.args, self.kwargs = (), dict(request.kwargs)  # Celery's error tells them when retries run out
        self._asked = request.get(_RETRIES)
        self._when = when

    def apply_async(self) -> None:
        """With `throw=False` the task returns all the same, and Celery would run it again."""
        self._asked.append(self._when)


@shared_task(name=EXISTING_TASK, bind=True, typing=False, ignore_result=True)
def run_existing_task(task: Task, *_: Any, **__: Any) -> None:
    """What a worker runs for every target of this kind; which one it is, the envelope says."""
    name = task.request.get("target")
    spec = registry.jobs().get(name) or _unknown(name)
    error = runtime.execute_here(UUID(task.request.get(runtime.CLAIM)), spec)
    if isinstance(error, (LeaseLost, Cancelled, RetryLater, Retry)):
        raise Ignore
    if error is not None:
        raise error
