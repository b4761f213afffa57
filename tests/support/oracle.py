"""Brute force for cron in local time: every minute of a window, one by one. Shares no code with core.

Slow and plain on purpose. Good for windows of days in which the zone's offsets are whole minutes (1973 on).
"""

from calendar import monthrange
from collections import defaultdict
from datetime import date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = ["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


def instants(
    expressions: list[str],
    zone: str,
    start: datetime,
    end: datetime,
    *,
    nonexistent: str = "auto",
    repeated: str = "auto",
    day_match: str = "classic",
) -> list[datetime]:
    """The UTC instants of [start, end) at which any of the expressions fires."""
    shown = _clock_readings(ZoneInfo(zone), start, end)
    found: set[datetime] = set()
    for expression in expressions:
        rolling = _is_rolling(expression)
        skip = nonexistent == "skip" or (nonexistent == "auto" and rolling)
        passes = repeated if repeated != "auto" else ("both" if rolling else "first")
        found.update(_fires(expression, shown, skip=skip, passes=passes, day_match=day_match))
    return sorted(instant for instant in found if start <= instant < end)


def _clock_readings(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """(instant, what the wall clock shows) for each minute of the window and three days on either side."""
    instant = (start - timedelta(days=3)).replace(second=0, microsecond=0)
    readings = []
    while instant < end + timedelta(days=3):
        readings.append((instant, instant.astimezone(zone).replace(tzinfo=None)))
        instant += MINUTE
    return readings


def _fires(
    expression: str, shown: list[tuple[datetime, datetime]], *, skip: bool, passes: str, day_match: str
) -> set[datetime]:
    showings: dict[datetime, list[datetime]] = defaultdict(list)
    fires = set()
    previous = shown[0][1] - MINUTE
    for instant, wall in shown:
        if matches(expression, wall, day_match):
            showings[wall].append(instant)
        hidden = previous + MINUTE
        while not skip and hidden < wall:
            if matches(expression, hidden, day_match):
                fires.add(instant)
            hidden += MINUTE
        previous = wall
    for found in showings.values():
        fires.update({"first": found[:1], "second": found[-1:], "both": found}[passes])
    return fires


def _is_rolling(expression: str) -> bool:
    minute, hour = expression.upper().split()[:2]
    return minute[0] in "*?" or hour[0] in "*?" or all(_in_field(hour, h, 0, 23, 24) for h in range(24))


def matches(expression: str, wall: datetime, day_match: str) -> bool:
    minute, hour, day, month, weekday = _fields(expression)
    return (
        _in_field(minute, wall.minute, 0, 59, 60)
        and _in_field(hour, wall.hour, 0, 23, 24)
        and _in_field(month, wall.month, 1, 12, 12)
        and _day_matches(day, weekday, wall.date(), day_match)
    )


@cache
def _fields(expression: str) -> tuple[str, str, str, str, str]:
    minute, hour, day, month, weekday = expression.upper().split()
    for index, name in enumerate(MONTHS[1:], 1):
        month = month.replace(name, str(index))
    for index, name in enumerate(WEEKDAYS):
        weekday = weekday.replace(name, str(index))
    return minute, hour, day, month, weekday


@cache
def _day_matches(day: str, weekday: str, today: date, day_match: str) -> bool:
    by_day = any(_is_named_day(item, today) for item in day.split(","))
    by_weekday = any(_is_named_weekday(item, today) for item in weekday.split(","))
    free = {
        "classic": lambda text: text[0] in "*?",
        "either": lambda text: text in "*?",
        "both": lambda text: True,
    }
    if free[day_match](day) or free[day_match](weekday):
        return by_day and by_weekday
    return by_day or by_weekday


def _is_named_day(item: str, today: date) -> bool:
    length = monthrange(today.year, today.month)[1]
    if item == "LW":
        return today.day == max(d for d in range(1, length + 1) if today.replace(day=d).isoweekday() < 6)
    if item.endswith("W"):
        wanted = int(item[:-1])
        weekdays = [d for d in range(1, length + 1) if today.replace(day=d).isoweekday() < 6]
        # A Saturday is nearer to its Friday, a Sunday to its Monday; both are one day away.
        return wanted <= length and today.day == min(weekdays, key=lambda d: abs(d - wanted))
    if item.startswith("L"):
        return today.day == length - int(item[2:] or 0)
    return _in_item(item, today.day, 1, 31, 31)


def _is_named_weekday(item: str, today: date) -> bool:
    weekday = today.isoweekday() % 7
    if item.endswith("L"):
        is_last = today.day + 7 > monthrange(today.year, today.month)[1]
        return is_last and weekday == int(item[:-1]) % 7
    if "#" in item:
        wanted, nth = item.split("#")
        return weekday == int(wanted) % 7 and (today.day + 6) // 7 == int(nth)
    return _in_item(item, weekday, 0, 6, 7) or (weekday == 0 and "7" in item and _in_item(item, 7, 0, 7, 7))


@cache
def _in_field(text: str, value: int, first: int, last: int, size: int) -> bool:
    return any(_in_item(item, value, first, last, size) for item in text.split(","))


def _in_item(item: str, value: int, first: int, last: int, size: int) -> bool:
    body, _, step_text = item.partition("/")
    step = int(step_text or 1)
    if body in ("*", "?"):
        return (value - first) % step == 0
    low_text, _, high_text = body.partition("-")
    low = int(low_text)
    high = int(high_text) if high_text else (last if step_text else low)
    if low > high:
        value, high = (value if value >= low else value + size), high + size
    return low <= value <= high and (value - low) % step == 0
