"""The tree of errors.

FencepostError
├── TriggerError            a trigger that cannot be: field, code, detail (defined in core)
├── ValidationFailed        input with one or more faulty fields
├── Conflict                the request does not fit the present state
│   ├── StaleRevision       If-Match names an older revision
│   └── InUse               other things need what was to go
├── NotFound                no such thing for this tenant
├── LeaseLost               this attempt no longer holds its run; stop at once
├── Cancelled               somebody asked the run to stop
│   └── Drained             the worker shuts down: stop, and another takes the run up
├── TimedOut                the attempt has run, or been silent, for longer than it may
├── PermanentError          raised by a job: do not retry
├── RetryLater              raised by a job: retry, after this many seconds
├── NotStarted              raised by a job: no effect can have happened
└── NonDeterminismError     replay met another step than the recorded one
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.errors import FencepostError, TriggerError

__all__ = [
    "Cancelled",
    "Conflict",
    "Drained",
    "FencepostError",
    "FieldError",
    "InUse",
    "LeaseLost",
    "NonDeterminismError",
    "NotFound",
    "NotStarted",
    "PermanentError",
    "RetryLater",
    "StaleRevision",
    "TimedOut",
    "TriggerError",
    "ValidationFailed",
]


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """One faulty field: a dotted path, a stable code, a sentence that says what would be right."""

    field: str
    code: str
    detail: str


class ValidationFailed(FencepostError):
    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.detail}" for error in errors))
        self.errors = errors


class Conflict(FencepostError):
    """`code` is stable; `state` is the state that stood in the way, where there is one."""

    def __init__(self, detail: str, *, code: str = "conflict", state: str | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.state = state


class StaleRevision(Conflict):
    def __init__(self, current: int, *, of: str = "schedule") -> None:
        super().__init__(f"The {of} is at revision {current} now.", code="stale_revision")
        self.current = current


class InUse(Conflict):
    """`used_by`: their names."""

    def __init__(self, detail: str, *, code: str, used_by: Sequence[str]) -> None:
        super().__init__(detail, code=code)
        self.used_by = tuple(used_by)


class NotFound(FencepostError):
    pass


class LeaseLost(FencepostError):
    pass


class Cancelled(FencepostError):
    pass


class Drained(Cancelled):
    pass


class TimedOut(FencepostError):
    pass


class PermanentError(FencepostError):
    pass


class RetryLater(FencepostError):
    """`after`: seconds until the next attempt; None leaves it to the retry policy."""

    def __init__(self, detail: str = "", *, after: float | None = None) -> None:
        super().__init__(detail or "retry later")
        self.after = after


class NotStarted(FencepostError):
    pass


class NonDeterminismError(FencepostError):
    pass
