"""One attempt at a run: the job's function, what it sees, what its end means. Knows nothing of Celery."""

import json
import math
import re
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from scheduler.core.identity import idempotency_key, sub_key
from scheduler.core.retry import UNSAFE, Decision, RetryPolicy, after_failure
from scheduler.core.states import AttemptOutcome, State
from scheduler.errors import (
    Cancelled,
    Drained,
    FencepostError,
    LeaseLost,
    NotStarted,
    PermanentError,
    RetryLater,
    TimedOut,
)
from scheduler.store.claims import Claimed, Ending
from scheduler.worker.masking import masked
from scheduler.worker.registry import JobSpec

ERROR_BYTES = 16 * 1024
RESULT_BYTES = 64 * 1024
READ_CHARACTERS = 64 * 1024  # of a text whose author knew no bounds
# What a function returns whose attempt goes on elsewhere: an endpoint has accepted the run and will end it.
ACCEPTED: Final = object()
# A NUL in the text of a JSON document; an even number of backslashes before it stands for themselves.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Flag(Protocol):
    """An event of this process, or a mark on the page that it shares with its parent."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


class Recorder(Protocol):
    """Where progress goes: the worker's connection to the ledger."""

    def report_progress(self, held: "Held", progress: dict[str, Any]) -> bool: ...


@dataclass(eq=False, kw_only=True)
class Held:
    """A run that this process holds, or believes to hold: `lost` and `cancelled` are set by the session,
    `draining` by the end of the process.

    `good_until`, `sure_until` and `ends_at` are on the monotonic clock, which runs on while a process is
    stopped: whoever wakes up too late knows it at once, before any renewal could tell. Up to `sure_until`
    nobody else can have been given the run; up to `good_until` its job goes on in the belief that nobody was.
    `ends_at`: when its time limit is up; `heard_at`: when it last reported.
    """

    claimed: Claimed
    session_id: UUID
    good_until: Callable[[], float]
    sure_until: Callable[[], float] = lambda: math.inf
    lost: Flag = field(default_factory=threading.Event)
    cancelled: Flag = field(default_factory=threading.Event)
    draining: Flag = field(default_factory=threading.Event)
    ends_at: float = math.inf
    heard_at: float = math.inf

    def check(self) -> None:
        """Raises LeaseLost, Cancelled or TimedOut: the attempt is no longer wanted."""
        if self.lost.is_set() or time.monotonic() > self.good_until():
            raise LeaseLost(f"run {self.claimed.run_id} is no longer held under fence {self.claimed.fence}")
        if self.cancelled.is_set():
            raise Cancelled(f"run {self.claimed.run_id} was cancelled")
        if self.is_out_of_time():
            raise TimedOut(f"run {self.claimed.run_id} has {self._limit_passed()}")

    def check_before_beginning(self) -> None:
        """As `check`, and stricter: a job that has not begun does not begin in mere belief."""
        self.check()
        if time.monotonic() > self.sure_until():
            raise LeaseLost(f"run {self.claimed.run_id} may be another's by now")

    def is_out_of_time(self) -> bool:
        """Whether the attempt has run, or been silent, for longer than it may. The sweep ends it then, by the
        database's clock: an attempt that has run for longer only after its grace.
        """
        return self._limit_passed() is not None

    def _limit_passed(self) -> str | None:
        now, silence_s = time.monotonic(), self.claimed.heartbeat_timeout_s
        if now > self.ends_at:
            return f"run for longer than its timeout_s of {self.claimed.timeout_s}"
        if silence_s is not None and now > self.heard_at + silence_s:
            return f"been silent for longer than its heartbeat_timeout_s of {silence_s}"
        return None


class Context:
    """What a job gets as its first argument."""

    def __init__(self, held: Held, recorder: Recorder, *, drains: bool = False) -> None:
        self._held = held
        self._recorder = recorder
        self._drains = drains
        claimed = held.claimed
        self.run_id: UUID = claimed.run_id
        self.due_at: datetime = claimed.due_at
        self.attempt: int = claimed.attempt
        self.tries: int = claimed.tries
        self.fence: int = claimed.fence
        self.tenant: str = claimed.tenant
        self.payload: dict[str, Any] = claimed.payload
        self.payload_ref: str | None = claimed.payload_ref
        self.resume: Any = claimed.resume
        self.idempotency_key: str = idempotency_key(
            claimed.due_at, claimed.schedule_id, claimed.revision, claimed.origin_key
        )

    def key(self, name: str) -> str:
        """A key for one of several effects of this run, stable across its attempts."""
        return sub_key(self.idempotency_key, name)

    def check_cancelled(self) -> None:
        """Raises Cancelled if somebody wants the run stopped, LeaseLost if it is no longer ours, TimedOut
        once its time limit has passed, and Drained, for a job that declares `drains`, once the worker shuts
        down.
        """
        self._held.check()
        if self._drains and self._held.draining.is_set():
            raise Drained(f"run {self.run_id} goes back to the queue: its worker shuts down")

    def heartbeat(self, *, percent: float | None = None, note: str = "", resume: Any = None) -> None:
        """Progress for people, and `resume` for the next attempt. Renews nothing but what the job promised by
        its `heartbeat_timeout_s`: that it lives, the session says.

        Raises as `check_cancelled` does, once the progress is on record: what is drained resumes from it; and
        ValueError for what is no JSON of at most 64 KiB.
        """
        self._held.check()
        fault = _json_fault({"percent": percent, "note": note, "resume": resume}, RESULT_BYTES)
        if fault is not None:
            raise ValueError(f"ctx.heartbeat(): what is reported {fault}")
        progress = {"percent": percent, "note": note[:500], "resume": resume}
        if not self._recorder.report_progress(self._held, progress):
            self._held.lost.set()
        self._held.heard_at = time.monotonic()
        self.check_cancelled()


def attempt(held: Held, spec: JobSpec, recorder: Recorder) -> tuple[Ending, BaseException | None]:
    """Call the job once, if it is still wanted. Returns how it ended, and the exception to show to whoever
    watches.
    """
    try:
        _check_still_wanted(held)
        result = spec.function(Context(held, recorder, drains=spec.drains), **held.claimed.payload)
        if result is ACCEPTED:
            return _ending(held, Decision(state=State.RUNNING), None), None
        return _ending(held, Decision(state=State.SUCCEEDED), storable(result)), None
    except BaseException as error:
        return _failure(held, spec, error), error


def _check_still_wanted(held: Held) -> None:
    """Between its claim and this line the process may have been stopped, past its lease: the run may be
    another's by now, or settled by a person, and the job must not begin here as well. Of an unsafe effect
    it is known then that it has not happened.
    """
    try:
        held.check_before_beginning()
    except FencepostError as error:
        if held.claimed.side_effects == UNSAFE:
            raise NotStarted(f"{error}; the job was not called") from None
        raise


def _failure(held: Held, spec: JobSpec, error: BaseException) -> Ending:
    outcome, decision = _verdict(held, spec, error)
    return _ending(held, decision, None, outcome=outcome, error=describe(error))


def broken_off(held: Held, outcome: AttemptOutcome, message: str) -> Ending:
    """How an attempt ended of which the job itself can no longer tell: its process died, or was killed."""
    claimed = held.claimed
    unsafe = claimed.side_effects == UNSAFE
    decision = after_failure(
        RetryPolicy.of(claimed.retry),
        run_id=claimed.run_id,
        attempt=claimed.tries,
        side_effects=claimed.side_effects,
    )
    if outcome is AttemptOutcome.CANCELLED:
        decision = Decision(state=State.UNKNOWN if unsafe else State.CANCELLED)
    error = {"type": outcome.value, "message": message}
    return _ending(held, decision, None, outcome=outcome, error=error)


def _verdict(held: Held, spec: JobSpec, error: BaseException) -> tuple[AttemptOutcome, Decision]:
    claimed = held.claimed
    unsafe = claimed.side_effects == UNSAFE
    if isinstance(error, Cancelled) and held.cancelled.is_set():
        return AttemptOutcome.CANCELLED, Decision(state=State.UNKNOWN if unsafe else State.CANCELLED)
    if isinstance(error, Drained) and held.draining.is_set():
        return AttemptOutcome.SUPERSEDED, Decision(state=State.QUEUED)
    # Of an unsafe effect only the job itself can say that it has not happened.
    final: tuple[type[BaseException], ...] = (PermanentError, NotStarted)
    if not unsafe:
        final = (PermanentError, *spec.non_retryable)
    decision = after_failure(
        RetryPolicy.of(claimed.retry),
        run_id=claimed.run_id,
        attempt=claimed.tries,
        side_effects=claimed.side_effects,
        permanent=isinstance(error, final) and not isinstance(error, RetryLater),
        asked_delay_s=error.after if isinstance(error, RetryLater) else None,
    )
    return _outcome(held, error), decision


def _outcome(held: Held, error: BaseException) -> AttemptOutcome:
    """Whatever leaves a job after its time limit is told as that: who raised it depends on the pool. A job
    that returns all the same has succeeded.
    """
    if isinstance(error, LeaseLost):
        return AttemptOutcome.LOST
    return AttemptOutcome.TIMED_OUT if held.is_out_of_time() else AttemptOutcome.FAILED


def _ending(
    held: Held,
    decision: Decision,
    result: Any,
    *,
    outcome: AttemptOutcome = AttemptOutcome.SUCCEEDED,
    error: dict[str, Any] | None = None,
) -> Ending:
    claimed = held.claimed
    return Ending(
        run_id=claimed.run_id,
        due_at=claimed.due_at,
        fence=claimed.fence,
        schedule_id=claimed.schedule_id,
        slotted=claimed.slotted,
        fixed_delay=claimed.fixed_delay,
        state=decision.state,
        outcome=outcome,
        result=result,
        error=error,
        delay_s=decision.delay_s,
        deadline_at=claimed.deadline_at,
        pause_after=claimed.pause_after,
    )


def storable(result: Any, *, limit: int = RESULT_BYTES) -> Any:
    """The result as Postgres can keep it. A run whose work is done does not fail for what it returns: what
    is no bounded JSON is replaced by a note that says so.
    """
    fault = _json_fault(result, limit)
    return result if fault is None else {"not_stored": f"the result {fault}"}


def _json_fault(value: Any, most: int) -> str | None:
    """Why Postgres could not keep `value` as JSON of at most so many bytes, or None."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode("utf-8"))
    except Exception as error:  # its own classes may raise anything while they are read
        return f"is no JSON: {type(error).__name__}: {_text_of(error)}"[:500]
    if _NUL.search(text):
        return "has a NUL character, which cannot be stored"
    return None if size <= most else f"has {size} bytes, more than {most}"


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message and traceback, masked, cut to 16 KiB: the end of a traceback says most.

    Never raises, whatever the exception does when it is looked at.
    """
    return {
        "type": _first_bytes(_clean(type(error).__qualname__), 200),
        "message": _first_bytes(_clean(_text_of(error)[:READ_CHARACTERS]), 2000),
        "traceback": _last_bytes(_clean(_traceback_of(error)[-READ_CHARACTERS:]), ERROR_BYTES - 3000),
    }


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:
        return f"its text cannot be read: {type(another).__name__}"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as another:
        return f"its traceback cannot be read: {type(another).__name__}"


def _clean(text: str) -> str:
    return masked(text).replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _first_bytes(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def _last_bytes(text: str, most: int) -> str:
    return text.encode()[-most:].decode(errors="ignore")
