"""Days of rest out of an iCalendar file (RFC 5545): its all-day events, and the local dates of the others."""

import re
from collections.abc import Iterator
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
_DATE: Final = re.compile(r"(\d{8})(?:T\d{6}Z?)?")

_TIME_OF_UNTIL: Final = re.compile(r"(UNTIL=\d{8})T\d{6}Z?")
_COUNT: Final = re.compile(r"COUNT=([0-9]{1,9})")
_UTC: Final = ZoneInfo("UTC")

_Event = dict[str, list[str]]


def days_of(text: str, *, until: date) -> list[str | dict[str, str]]:
    """The events of the file as a calendar's entries, ascending: dates, and ranges of several days.

    Recurring events are followed up to `until`, from some years before it on. Raises Refusal when the file
    is not one, or would take long to read.
    """
    events = [event for event in _events(text) if not _is_void(event)]
    if sum(_years(event, until) for event in events) > MOST_YEARS:
        raise Refusal("too_many", f"the recurring events of the file span more than {MOST_YEARS:,} years.")
    spans = {span for event in events for span in _spans(event, until)}
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
    lines = re.sub(r"\r?\n[ \t]", "", text.lstrip("\ufeff")).splitlines()
    if not lines or lines[0].strip().upper() != "BEGIN:VCALENDAR":
        raise Refusal(
            "invalid_calendar", "this is no iCalendar file: it does not begin with BEGIN:VCALENDAR."
        )
    event: _Event | None = None
    count = 0
    for line in lines:
        name, value = _property(line)
        if (name, value) == ("BEGIN", "VEVENT"):
            event, count = {}, count + 1
            if count > MOST_EVENTS:
                raise Refusal("too_many", f"the file has more than {MOST_EVENTS:,} events.")
        elif (name, value) == ("END", "VEVENT") and event is not None:
            yield event
            event = None
        elif event is not None:
            event.setdefault(name, []).append(value)


def _property(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    return (found[1].upper(), found[3].strip()) if found else ("", "")


def _is_void(event: _Event) -> bool:
    return event.get("STATUS", [""])[0].upper() == "CANCELLED"


def _spans(event: _Event, until: date) -> Iterator[tuple[date, date]]:
    """The event's first and last day, for each time it recurs. DTEND is the day after, for all-day events."""
    start = _day(event, "DTSTART")
    end = _day(event, "DTEND") if "DTEND" in event else start + _DAY
    length = max(timedelta(0), end - start - _DAY)
    if "T" in event["DTSTART"][0]:  # of an event within a day the end is no day after
        length = end - start if "DTEND" in event else timedelta(0)
    left_out = {_parsed(part) for value in event.get("EXDATE", []) for part in value.split(",")}
    for first in _recurrences(event, start, until):
        if first not in left_out:
            yield first, first + length


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
