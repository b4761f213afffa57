"""How states, instants and errors look to people. Pure functions; the template tags only render."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from scheduler.core.states import State

# A tone is a colour and a shape; see dashboard.css.
_TONES: dict[str, str] = {
    State.SUCCEEDED: "good",
    State.FAILED: "bad",
    State.DEAD_LETTERED: "bad",
    State.UNKNOWN: "warn",
    State.RUNNING: "busy",
    State.QUEUED: "busy",
    State.PENDING: "wait",
    State.RETRY_WAIT: "warn",
    State.SUSPENDED: "wait",
    State.SKIPPED: "quiet",
    State.CANCELLED: "quiet",
    # of schedules
    "active": "good",
    "paused": "warn",
    "faulted": "bad",
    "late": "warn",
    "completed": "quiet",
    "cancelled": "quiet",
    # of attempts
    "succeeded": "good",
    "failed": "bad",
    "timed_out": "bad",
    "lost": "warn",
    "superseded": "warn",
}

_WORDS: dict[str, str] = {
    State.RETRY_WAIT: "Waiting to retry",
    State.DEAD_LETTERED: "Dead-lettered",
    State.UNKNOWN: "Outcome unknown",
}

# What a person has to look at.
NEEDS_ATTENTION = (State.FAILED, State.DEAD_LETTERED, State.UNKNOWN)

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, kw_only=True)
class ErrorText:
    """An error as stored by a worker, for reading: one line, and the rest where there is more."""

    headline: str
    details: str


def tone(state: str) -> str:
    return _TONES.get(state, "quiet")


def state_words(state: str) -> str:
    return _WORDS.get(state, state.replace("_", " ").capitalize())


def local_text(instant: datetime, zone: tzinfo) -> str:
    """``Tue 1 Dec 2026, 09:00 CET``; with seconds where there are any."""
    local = instant.astimezone(zone)
    clock = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return f"{local:%a} {local.day} {local:%b %Y}, {clock} {_zone_text(local)}"


def offset_text(local: datetime) -> str:
    """``UTC+01:00``"""
    return f"UTC{local.isoformat()[-6:]}"


def utc_text(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def machine_text(instant: datetime) -> str:
    """RFC 3339 in UTC, as the API writes it."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def distance(instant: datetime, now: datetime) -> str:
    """``in 14 h``, ``3 min ago``: for orientation, so rounded down to one unit."""
    seconds = int((instant - now).total_seconds())
    amount = _span_text(abs(seconds))
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else _span_text(int(seconds))


def error_text(error: Any) -> ErrorText:
    """Workers store an object with `type` and `message`; whatever else is there goes into the details."""
    if not isinstance(error, dict):
        return ErrorText(headline=str(error), details="")
    parts = [str(error[name]) for name in ("type", "message") if error.get(name)]
    rest = [f"{name}: {value}" for name, value in error.items() if name not in ("type", "message") and value]
    return ErrorText(headline=": ".join(parts) or "No message", details="\n".join(rest))


def _zone_text(local: datetime) -> str:
    """Zones without letters of their own are named by zoneinfo as `+0545`; the offset reads better."""
    name = local.tzname() or ""
    return name if name.isalpha() else offset_text(local)


def _span_text(seconds: int) -> str:
    for size, unit in _SPANS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
