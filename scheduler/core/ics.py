"""Days of rest out of an iCalendar file (RFC 5545): its all-day events, and the local dates of the others."""

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from scheduler.core.reading import CALENDAR_END, CALENDAR_START, Refusal
from scheduler.core.rrule import Recurrence, parse_recurrence

MOST_EVENTS: Final = 20_000
MOST_YEARS: Final = 2_000  # of all recurring events together: what reading a hostile file may take
LOOKED_BACK: Final = 11  # years before `until`
_DAY: Final = timedelta(days=1)
_LINE: Final = re.compile(r"([A-Za-z0-9-]+)((?:;[^:\"]*(?:\"[^\"]*\"[^:\"]*)*)?):(.*)", re.DOTALL)
_DATE: Final = re.compile(r"(\d{8})(?:T([01]\d|2[0-3])([0-5]\d)([0-5]\d|60)Z?)?", re.ASCII)
_DURATION: Final = re.compile(
    r"\+?P(?:(\d{1,4})W|(?:(\d{1,5})D)?(?:T(?=\d)(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,6})S)?)?)", re.ASCII
)
_TIME_OF_UNTIL: Final = re.compile(r"(UNTIL=\d{8})T\d{6}Z?")
_COUNT: Final = re.compile(r"COUNT=(0*[1-9][0-9]{0,8})")
_UTC: Final = ZoneInfo("UTC")

_Event = dict[str, list[str]]


def days_of(text: str, *, until: date) -> list[str | dict[str, str]]:
    """The events of the file as a calendar's entries, ascending: dates, and ranges of several days.

    Recurring events are followed up to `until`, from some years before it on. Raises Refusal when the file
    is not one, or would take long to read.
    """
    read = list(_events(text))
    replaced: dict[str, set[date]] = {}  # by the UID of the recurring event
    for event in read:
        if "RECURRENCE-ID" in event:
            replaced.setdefault(_uid(event), set()).add(_day(event, "RECURRENCE-ID"))
    events = [event for event in read if not _is_void(event)]
    if sum(_years(event, until) for event in events) > MOST_YEARS:
        raise Refusal("too_many", f"the recurring events of the file span more than {MOST_YEARS:,} years.")
    spans = {span for event in events for span in _spans(event, until, replaced)}
    return [_entry(first, last) for first, last in sorted(spans)]


def _years(event: _Event, until: date) -> int:
    return until.year - _first_year(event, until) + 1 if "RRULE" in event else 0


def _first_year(event: _Event, until: date) -> int:
    """A rule that counts is counted from its start."""
    start = _day(event, "DTSTART").year
    counts = "COUNT=" in event["RRULE"][0].upper()
    return min(until.year, start if counts else max(start, until.year - LOOKED_BACK))


def _entry(first: date, last: date) -> str | dict[str, str]:
    if first == last:
        return first.isoformat()
    return {"from": first.isoformat(), "to": last.isoformat()}


def _events(text: str) -> Iterator[_Event]:
    lines = re.sub(r"\r?\n[ \t]", "", text.lstrip("\ufeff").rstrip()).splitlines()
    if not lines or lines[0].strip().upper() != "BEGIN:VCALENDAR":
        raise Refusal(
            "invalid_calendar", "this is no iCalendar file: it does not begin with BEGIN:VCALENDAR."
        )
    event: _Event | None = None
    count, inner = 0, ""
    for line in lines:
        name, value = _property(line)
        value_upper = value.upper()
        if inner:  # an alarm has times of its own
            inner = "" if (name, value_upper) == ("END", inner) else inner
        elif event is not None and name == "BEGIN":
            inner = value_upper
        elif (name, value_upper) == ("BEGIN", "VEVENT"):
            event, count = {}, count + 1
            if count > MOST_EVENTS:
                raise Refusal("too_many", f"the file has more than {MOST_EVENTS:,} events.")
        elif (name, value_upper) == ("END", "VEVENT") and event is not None:
            yield event
            event = None
        elif event is not None:
            event.setdefault(name, []).append(value)
    if (name, value_upper) != ("END", "VCALENDAR") or event is not None or inner:
        raise Refusal("invalid_calendar", "the file is cut off: it does not end with END:VCALENDAR.")


def _property(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    return (found[1].upper(), found[3].strip()) if found else ("", "")


def _is_void(event: _Event) -> bool:
    return event.get("STATUS", [""])[0].upper() == "CANCELLED"


def _uid(event: _Event) -> str:
    return event.get("UID", [""])[0]


def _spans(event: _Event, until: date, replaced: Mapping[str, set[date]]) -> Iterator[tuple[date, date]]:
    """The event's first and last day, for each time it recurs and no other event stands for that time."""
    start = _day(event, "DTSTART")
    length = _length(event)
    left_out = _dates_of(event, "EXDATE")
    instead = replaced.get(_uid(event), set()) if "RRULE" in event or "RDATE" in event else set()
    for first in {*_recurrences(event, start, until), *_dates_of(event, "RDATE")}:
        if first not in left_out and first not in instead:
            yield first, first + length


def _length(event: _Event) -> timedelta:
    """From its first day to its last. A day at whose midnight it ends, as all-day events do, is not one."""
    start = _moment(event, "DTSTART")
    if "DTEND" in event:
        end = _moment(event, "DTEND")
    elif "DURATION" in event:
        end = start + _duration(event["DURATION"][0])
    else:
        end = start if "T" in event["DTSTART"][0] else start + _DAY
    last = end - timedelta(microseconds=1) if end > start else start
    return last.date() - start.date()


def _duration(value: str) -> timedelta:
    found = _DURATION.fullmatch(value.upper())
    if found is None or not any(found.groups()):
        raise Refusal("invalid_calendar", f"'{value[:40]}' is no duration such as 'P3D'.")
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)


def _dates_of(event: _Event, name: str) -> set[date]:
    return {_parsed(part) for value in event.get(name, []) for part in value.split(",")}


def _recurrences(event: _Event, start: date, until: date) -> Iterator[date]:
    if "RRULE" not in event:
        yield start
        return
    count, rule = _uncounted(re.sub(_TIME_OF_UNTIL, r"\1", event["RRULE"][0].upper()))
    try:
        recurrence = parse_recurrence(rule, datetime.combine(start, time()), _UTC)
    except Refusal as refusal:
        raise Refusal("invalid_calendar", f"an RRULE of the file cannot be read: {refusal.detail}") from None
    if recurrence.is_rolling:
        raise Refusal("invalid_calendar", "an event recurs within the day: that is no day of rest.")
    begin = max(start, date(_first_year(event, until), 1, 1))
    yield from islice(_dates(recurrence, begin, until), count)


def _uncounted(rule: str) -> tuple[int | None, str]:
    """The rule without its COUNT, which is not to be looked for beyond `until`."""
    parts = rule.split(";")
    counts = [int(found[1]) for part in parts if (found := _COUNT.fullmatch(part))]
    rest = ";".join(part for part in parts if not _COUNT.fullmatch(part))
    return (counts[0] if counts else None), rest


def _dates(recurrence: Recurrence, begin: date, until: date) -> Iterator[date]:
    found = recurrence.next_date(begin - _DAY, until)
    while found is not None:
        yield found
        found = recurrence.next_date(found, until)


def _day(event: _Event, name: str) -> date:
    if name not in event:
        raise Refusal("invalid_calendar", f"an event has no {name}.")
    return _parsed(event[name][0])


def _moment(event: _Event, name: str) -> datetime:
    day = datetime.combine(_day(event, name), time())
    found = _DATE.fullmatch(event[name][0].strip())
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:]) if found else (0, 0, 0)
    return day + timedelta(hours=hours, minutes=minutes, seconds=seconds)


def _parsed(value: str) -> date:
    found = _DATE.fullmatch(value.strip())
    try:
        if found:
            day = datetime.strptime(found[1], "%Y%m%d").date()  # noqa: DTZ007 - a date has no zone
            if CALENDAR_START.date() <= day < CALENDAR_END.date():
                return day
    except ValueError:
        pass
    raise Refusal("invalid_calendar", f"'{value[:40]}' is no date of the calendar.")
