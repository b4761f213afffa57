"""The fields of a schedule: what each may hold, its default, and how a value is read.

A reader takes a `Field` and gives the value to store; it raises TriggerError with the field's name.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from scheduler import payloads
from scheduler.core.identity import whole_millisecond
from scheduler.core.reading import Field, shown
from scheduler.models import Target

NAME_LENGTH: Final = 200
CALENDAR_NAME_LENGTH: Final = 100
TEXT_LENGTH: Final = 10_000
REFERENCE_LENGTH: Final = 2_000
TAGS: Final = 20
TAG_LENGTH: Final = 50
FARTHEST_ONCE: Final = timedelta(days=3653)

MOST_FAILURES: Final = 1000

DAY_S: Final = 86_400
YEAR_S: Final = 366 * DAY_S

DEFAULT_RETRY: Final[dict[str, Any]] = {
    "max_attempts": 5,
    "initial_interval_s": 1,
    "backoff": 2.0,
    "max_interval_s": 300,
    "deadline_s": None,
}

# Whole numbers, of seconds where the name says so: (default, lowest, highest).
NUMBERS: Final = {
    "flexible_window_s": (0, 0, YEAR_S),
    "catch_up_limit": (100, 1, 1000),
    "catch_up_after_s": (60, 1, YEAR_S),
    "timeout_s": (300, 1, 7 * DAY_S),
    "cancel_grace_s": (30, 0, DAY_S),
    "late_after_s": (30, 1, YEAR_S),
    "buffer_limit": (1000, 1, 100_000),
}

# The same where null, the default, means that there is no limit.
LIMITS: Final = {
    "max_occurrences": (1, 1_000_000_000),
    "catch_up_window_s": (1, YEAR_S),
    "schedule_to_start_s": (1, YEAR_S),
    "heartbeat_timeout_s": (1, 7 * DAY_S),
}

# Which of the numbers above a target has defaults of its own for.
OF_TARGET: Final = ("timeout_s", "cancel_grace_s", "heartbeat_timeout_s")

# Policies by their values: (built, part of the contract but not built yet). The first is the default.
CHOICES: Final = {
    "catch_up": (("run_latest_only", "run_all", "skip"), ()),
    "overlap": (("skip", "buffer_one", "buffer_all", "cancel_running", "allow"), ()),
    "priority": (("normal",), ("high", "low")),
    "mode": (("fixed_rate", "fixed_delay"), ()),
    "on_excluded": (("skip", "next_business_day"), ()),
}

DECISIONS: Final = (
    "payload",
    "payload_ref",
    "trigger",
    "start_at",
    "end_at",
    "max_occurrences",
    "exclusions",
    "on_excluded",
    "flexible_window_s",
    "mode",
    "catch_up",
    "catch_up_limit",
    "catch_up_window_s",
    "catch_up_after_s",
    "overlap",
    "buffer_limit",
    "retry",
    "timeout_s",
    "cancel_grace_s",
    "schedule_to_start_s",
    "heartbeat_timeout_s",
    "on_failure",
    "late_after_s",
    "priority",
    "tags",
    "description",
)

FIELDS: Final = frozenset(["name", "target", *DECISIONS, *CHOICES])

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def rfc3339(instant: datetime) -> str:
    """`2026-12-01T08:00:00Z`, with a fraction only where there is one."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def printable(name: str) -> str:
    """A stranger's field name as part of an error: safe to encode, however odd it is."""
    return name if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name) else "?"


def instant(field: Field) -> datetime:
    return whole_millisecond(field.instant())


def text_of(field: Field, length: int) -> str:
    text = field.text()
    fault = payloads.text_fault(text)
    if fault is not None:
        raise field.refuse(*fault)
    if len(text) > length:
        raise field.refuse("too_long", f"expected at most {length:,} characters, got {len(text):,}.")
    return text


def name_of(field: Field, length: int = NAME_LENGTH) -> str:
    name = text_of(field, length)
    if not name.strip() or name != name.strip() or _CONTROL.search(name):
        raise field.refuse(
            "invalid_text", "expected a name without control characters or blanks at its ends."
        )
    return name


def tags_of(field: Field) -> list[str]:
    tags = [text_of(item, TAG_LENGTH) for item in field.items(at_least=0, at_most=TAGS)]
    if any(not tag or _CONTROL.search(tag) for tag in tags) or len(set(tags)) < len(tags):
        raise field.refuse("invalid_tags", "expected different, printable, non-empty texts.")
    return tags


def own_number(target: Target | None, name: str) -> int | None:
    return getattr(target, name) if target is not None and name in OF_TARGET else None


def default_retry(target: Target | None) -> dict[str, Any]:
    own = target.retry if target is not None and target.retry else {}
    return {**DEFAULT_RETRY, **{name: own[name] for name in DEFAULT_RETRY if own.get(name) is not None}}


def retry_of(field: Field) -> dict[str, Any]:
    members = field.members(DEFAULT_RETRY)
    retry = dict(DEFAULT_RETRY)
    if "max_attempts" in members:
        retry["max_attempts"] = members["max_attempts"].integer(at_least=1, at_most=100)
    for name, lowest, highest in (
        ("initial_interval_s", 0, DAY_S),
        ("backoff", 1, 100),
        ("max_interval_s", 0, 7 * DAY_S),
        ("deadline_s", 1, YEAR_S),
    ):
        if name in members:
            retry[name] = number_of(members[name], lowest, highest)
    return retry


def pause_after(field: Field) -> int | None:
    members = field.members(("pause_after",))
    if "pause_after" not in members:
        return None
    return members["pause_after"].integer(at_least=1, at_most=MOST_FAILURES)


def number_of(field: Field, lowest: float, highest: float) -> int | float:
    if isinstance(field.value, bool) or not isinstance(field.value, int | float):
        raise field.refuse("invalid_type", f"expected a number, got {shown(field.value)}.")
    if not lowest <= field.value <= highest:  # false for NaN too
        raise field.refuse("out_of_range", f"expected a number from {lowest:g} to {highest:g}.")
    return field.value
