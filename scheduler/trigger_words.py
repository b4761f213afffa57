"""A trigger in plain words. For triggers that core has accepted: nothing here judges them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron_descriptor import ExpressionDescriptor, Options

_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))

# cron-descriptor reads five fields only.
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def plain_words(trigger: Mapping[str, Any]) -> str:
    """A short sentence without its full stop, such as ``At 09:00, Monday through Friday``."""
    if "cron" in trigger:
        return _cron_words(trigger["cron"])
    if "interval" in trigger:
        return _interval_words(int(trigger["interval"]["every_s"]))
    if "once" in trigger:
        return f"Once, at {trigger['once']['at']}"
    return "By a recurrence rule"


def zone_name(trigger: Mapping[str, Any]) -> str:
    """The zone that people think in when they think of this trigger."""
    (body,) = trigger.values()
    return body.get("timezone") or "UTC"


def zone_of(trigger: Mapping[str, Any]) -> ZoneInfo:
    return ZoneInfo(zone_name(trigger))


def _cron_words(cron: Mapping[str, Any]) -> str:
    day_match = cron.get("day_match", "classic")
    return "; ".join(_expression_words(expression, day_match) for expression in cron["expressions"])


@lru_cache(maxsize=1024)
def _expression_words(expression: str, day_match: str) -> str:
    """The expression itself where words would mislead, or where there are none."""
    fields = _MACROS.get(expression.strip().lower(), expression).split()
    if len(fields) == 5 and _joins_days_by_and(fields[2], fields[4], day_match):
        return expression
    options = Options(locale_code="en_US", use_24hour_time_format=True)
    try:
        return ExpressionDescriptor(" ".join(fields), options).get_full_description()
    except Exception:  # it stumbles over rare forms in its own ways, and words are only a comfort
        return expression


def _joins_days_by_and(day_of_month: str, day_of_week: str, day_match: str) -> bool:
    """cron-descriptor always says "or" between two restricted day fields; by these rules both must match."""
    if day_of_month in "*?" or day_of_week in "*?":
        return False
    starred = day_of_month.startswith("*") or day_of_week.startswith("*")
    return day_match == "both" or (day_match == "classic" and starred)


def _interval_words(seconds: int) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    count = seconds // size
    return f"Every {unit}" if count == 1 else f"Every {count:,} {unit}s"
