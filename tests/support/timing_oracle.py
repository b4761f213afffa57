"""Makes tests/cases/timing.jsonl: triggers with fields that the other case files lack, and their instants.

    python -m tests.support.timing_oracle > tests/cases/timing.jsonl

Brute force over the minutes of a window, by rules written down as plain conditions; nothing of the core.
"""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from tests.support import oracle

MINUTE, DAY, WEEK = timedelta(minutes=1), timedelta(days=1), timedelta(days=7)

# Windows of a few weeks: an ordinary one, and ones around clock changes of several kinds.
WINDOWS = [
    ("UTC", "2026-02-10T00:00Z", 40),
    ("Europe/Berlin", "2026-03-20T00:00Z", 21),
    ("Europe/Berlin", "2026-10-15T00:00Z", 21),
    ("America/New_York", "2026-10-25T00:00Z", 18),
    ("Australia/Lord_Howe", "2026-03-30T00:00Z", 14),
    ("Asia/Kathmandu", "2026-06-01T00:00Z", 35),
    ("Pacific/Apia", "2011-12-20T00:00Z", 20),
]
UNIONS = [
    ["0 9 * * *", "30 2 * * *"],
    ["*/30 8-9 * * *", "0 9 * * MON", "15 9 L * *"],
    ["0 */6 * * *", "0 12 * * *"],
    ["30 1 * * *", "30 2 * * *", "30 3 * * *"],
]
RRULES: list[tuple[str, Callable[[datetime, datetime], bool]]] = [
    ("FREQ=DAILY", lambda wall, start: True),
    ("FREQ=DAILY;INTERVAL=3", lambda wall, start: (wall.date() - start.date()).days % 3 == 0),
    ("FREQ=WEEKLY;BYDAY=MO,WE", lambda wall, start: wall.weekday() in (0, 2)),
    ("FREQ=MONTHLY;BYDAY=2TU", lambda wall, start: wall.weekday() == 1 and 8 <= wall.day <= 14),
    ("FREQ=MONTHLY;BYMONTHDAY=-1", lambda wall, start: (wall + DAY).day == 1),
    (
        "FREQ=MONTHLY;BYDAY=-1FR",
        lambda wall, start: wall.weekday() == 4 and (wall + 7 * DAY).month != wall.month,
    ),
    ("FREQ=YEARLY;BYMONTH=3,11", lambda wall, start: wall.month in (3, 11) and wall.day == start.day),
]
TIMES = [time(2, 30), time(9, 0), time(0, 0)]


def cases() -> Iterator[dict[str, Any]]:
    for zone, begin, days in WINDOWS:
        start = datetime.fromisoformat(begin)
        end = start + days * DAY
        for expressions in UNIONS:
            yield from _unions(expressions, zone, start, end)
        for rule, matches in RRULES:
            for at in TIMES:
                yield _rrule(rule, matches, at, zone, start, end)
        for hour in (1, 2, 3):
            yield _once(zone, start, end, hour)
    yield from _intervals()


def _case(
    trigger: dict[str, Any], start: datetime, end: datetime, found: list[datetime], **fields: Any
) -> dict[str, Any]:
    shown = [_text(instant) for instant in found]
    return {"trigger": trigger, **fields, "start": _text(start), "end": _text(end), "expected": shown}


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _unions(expressions: list[str], zone: str, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
    trigger = {"cron": {"expressions": expressions, "timezone": zone}}
    found = oracle.instants(expressions, zone, start, end)
    yield _case(trigger, start, end, found)
    first, last = found[len(found) // 3], found[-2]
    inside = [instant for instant in found if first <= instant <= last]
    yield _case(trigger, start, end, inside, start_at=_text(first), end_at=_text(last))
    rests = [
        (start.date() + 3 * DAY, start.date() + 3 * DAY),
        (start.date() + 8 * DAY, start.date() + 11 * DAY),
    ]
    listed = [{"date": f"{rests[0][0]}"}, {"from": f"{rests[1][0]}", "to": f"{rests[1][1]}"}]
    for on_excluded in ("skip", "next_business_day"):
        kept = _rested(expressions, zone, start, end, rests, on_excluded)
        yield _case(trigger, start, end, kept, exclusions=listed, on_excluded=on_excluded)


def _rested(
    expressions: list[str],
    zone: str,
    start: datetime,
    end: datetime,
    rests: list[tuple[date, date]],
    on_excluded: str,
) -> list[datetime]:
    """Expression by expression: what is moved keeps its local time, and is resolved as its expression is."""
    shown = dict(_readings(zone, start - 12 * DAY, end + 12 * DAY))
    found: set[datetime] = set()
    for expression in expressions:
        for day in sorted({wall.date() for wall in shown.values()}):
            if any(first <= day <= last for first, last in rests):
                continue
            sources = [day]
            if on_excluded == "next_business_day" and day.weekday() < 5:
                sources += _moved_to(day, rests)
            walls = {
                datetime.combine(day, time(minute // 60, minute % 60))
                for source in sources
                for minute in _minutes_of(expression, source)
            }
            for wall in walls:
                found.update(_resolved(wall, zone, start, end, oracle._is_rolling(expression)))
    return sorted(instant for instant in found if start <= instant < end)


def _moved_to(day: date, rests: list[tuple[date, date]]) -> list[date]:
    """The excluded dates since the last business day before `day`."""
    excluded, earlier = [], day - DAY
    while earlier.weekday() >= 5 or any(first <= earlier <= last for first, last in rests):
        if any(first <= earlier <= last for first, last in rests):
            excluded.append(earlier)
        earlier -= DAY
    return excluded


@lru_cache(maxsize=100_000)
def _minutes_of(expression: str, day: date) -> tuple[int, ...]:
    midnight = datetime.combine(day, time())
    return tuple(m for m in range(1440) if oracle.matches(expression, midnight + m * MINUTE, "classic"))


@lru_cache(maxsize=64)
def _readings(zone: str, start: datetime, end: datetime) -> tuple[tuple[datetime, datetime], ...]:
    return tuple(oracle._clock_readings(ZoneInfo(zone), start, end))


@lru_cache(maxsize=64)
def _passes(zone: str, start: datetime, end: datetime) -> dict[datetime, list[datetime]]:
    passes: dict[datetime, list[datetime]] = {}
    for instant, wall in _readings(zone, start - 12 * DAY, end + 12 * DAY):
        passes.setdefault(wall, []).append(instant)
    return passes


def _resolved(wall: datetime, zone: str, start: datetime, end: datetime, rolling: bool) -> list[datetime]:
    passes = _passes(zone, start, end)
    if wall in passes:
        return passes[wall] if rolling else passes[wall][:1]
    if rolling:
        return []
    later = [instants[0] for shown, instants in passes.items() if shown > wall]
    return [min(later)] if later else []


def _rrule(
    rule: str,
    matches: Callable[[datetime, datetime], bool],
    at: time,
    zone: str,
    start: datetime,
    end: datetime,
) -> dict[str, Any]:
    begins = datetime.combine(start.date() + 2 * DAY, at)
    found: set[datetime] = set()
    wall = begins
    while wall.date() <= end.date() + DAY:
        if matches(wall, begins):
            found.update(_resolved(wall, zone, start, end, rolling=False))
        wall += DAY
    kept = sorted(instant for instant in found if start <= instant < end)
    trigger = {"rrule": {"rule": rule, "dtstart": begins.isoformat(), "timezone": zone}}
    return _case(trigger, start, end, kept)


def _once(zone: str, start: datetime, end: datetime, hour: int) -> dict[str, Any]:
    """On the window's middle day, where the clocks of most windows change within a day or two."""
    wall = datetime.combine(start.date() + 9 * DAY, time(hour, 15))
    found = _resolved(wall, zone, start, end, rolling=False)
    return _case({"once": {"at": wall.isoformat(), "timezone": zone}}, start, end, found)


def _intervals() -> Iterator[dict[str, Any]]:
    start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 8, tzinfo=UTC)
    for every_s in (5400, 3600, 25 * 3600, 100_000):
        for anchor in ("2026-02-20T01:02:03Z", "2026-03-03T12:00:00Z", "2026-03-01T00:00:00.250Z"):
            trigger = {"interval": {"every_s": every_s, "anchor": anchor}}
            found, at = [], datetime.fromisoformat(anchor)
            while at < end:
                if at >= start:
                    found.append(at)
                at += timedelta(seconds=every_s)
            yield _case(trigger, start, end, found)
            if "." not in anchor:
                kept = [
                    instant for instant in found if instant.date() not in (date(2026, 3, 4), date(2026, 3, 5))
                ]
                rest = [{"from": "2026-03-04", "to": "2026-03-05"}]
                yield _case(trigger, start, end, kept, exclusions=rest)


if __name__ == "__main__":
    for case in cases():
        sys.stdout.write(json.dumps(case) + "\n")
