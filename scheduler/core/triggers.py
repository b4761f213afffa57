"""What a schedule's `trigger` object means: the instants at which it is due.

`parse_trigger` turns the API's JSON into a `Trigger`, or raises `TriggerError` naming the field. A trigger is
a frozen value; every answer is a function of its arguments. Datetimes are aware going in and UTC coming out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo, available_timezones

from scheduler.core import dst, notes
from scheduler.core.calendars import DateRange, Exclusions, OnExcluded
from scheduler.core.cron import DayMatch, parse_expression
from scheduler.core.dst import DstPolicy, Nonexistent, Repeated
from scheduler.core.errors import TriggerError
from scheduler.core.grid import Grid
from scheduler.core.reading import CALENDAR_END, CALENDAR_START, Field, did_you_mean, shown
from scheduler.core.rrule import parse_recurrence
from scheduler.core.walltime import SEARCH_YEARS, WallClock

__all__ = ["Kind", "PreviewInstant", "Trigger", "TriggerError", "TriggerTerms", "parse_trigger", "trigger_of"]

MAX_EXPRESSIONS: Final = 10
MAX_EXCLUSIONS: Final = 1000
MAX_CALENDAR_ENTRIES: Final = 100_000
MAX_INTERVAL_S: Final = 10 * 366 * 86400
MAX_TEXT: Final = 2_000_000

# "Never fires" must not depend on today's date, so it is judged from a fixed one: the year of the zone data.
_NEVER_FIRES_FROM: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TWO_DAYS: Final = timedelta(days=2)
_LONGEST_REST: Final = timedelta(days=366)


class Kind(StrEnum):
    ONCE = "once"
    CRON = "cron"
    INTERVAL = "interval"
    RRULE = "rrule"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewInstant:
    """An instant as a person wants to see it; `notes` say what clock, calendar or day rule did."""

    utc: datetime
    local: datetime
    notes: tuple[str, ...]


class Rule(Protocol):
    """The unbounded instants of one kind of trigger, in UTC."""

    def next_after(self, instant: datetime) -> datetime | None: ...
    def previous_at_or_before(self, instant: datetime) -> datetime | None: ...
    def between(self, start: datetime, end: datetime) -> Iterator[datetime]: ...
    def count_between(self, start: datetime, end: datetime) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A single instant."""

    at: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at if instant < self.at else None

    def previous_at_or_before(self, instant: datetime) -> datetime | None:
        return self.at if self.at <= instant else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        if start <= self.at < end:
            yield self.at

    def count_between(self, start: datetime, end: datetime) -> int:
        return int(start <= self.at < end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """`first + k * every` for k >= 0. Counted, never accumulated, so that it cannot drift."""

    first: datetime
    every: timedelta

    def next_after(self, instant: datetime) -> datetime | None:
        return self._nth(max(0, (instant - self.first) // self.every + 1))

    def previous_at_or_before(self, instant: datetime) -> datetime | None:
        index = (instant - self.first) // self.every
        return self._nth(index) if index >= 0 else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for index in range(self._count_before(start), self._count_before(end)):
            yield self._nth(index)

    def count_between(self, start: datetime, end: datetime) -> int:
        return max(0, self._count_before(end) - self._count_before(start))

    def _nth(self, index: int) -> datetime:
        return self.first + self.every * index

    def _count_before(self, instant: datetime) -> int:
        rounded_up = -((self.first - instant) // self.every)
        return max(0, rounded_up)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """When a schedule is due. Hashable, and equal to every trigger with the same meaning.

    `first` and `last` are the inclusive bounds: the schedule's own, inside the calendar of 1900 to 2199.
    """

    kind: Kind
    rule: Rule
    zone: ZoneInfo
    first: datetime
    last: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        """The first due instant strictly later than `instant`; None when there is none within 60 years."""
        begin = _utc(instant)
        if begin >= self.last:
            return None
        found = self.rule.next_after(begin if begin >= self.first else self.first - _MICROSECOND)
        return found if found is not None and found <= self.last else None

    def next_after_end(self, ended_at: datetime) -> datetime | None:
        """The due instant that follows a run which ended then (mode `fixed_delay`)."""
        every = self._every()
        if every is None:
            return self.next_after(ended_at)
        found = max(_whole_millisecond_from(_utc(ended_at) + every), self.first)
        if isinstance(self.rule, WallClock):
            found = self.rule.exclusions.first_open(found, every)
        return found if found <= self.last else None

    def _every(self) -> timedelta | None:
        """An interval's; None for the other kinds."""
        if isinstance(self.rule, WallClock) and isinstance(self.rule.patterns[0], Grid):
            return timedelta(seconds=self.rule.patterns[0].every_s)
        return self.rule.every if isinstance(self.rule, Interval) else None

    def previous_at_or_before(self, instant: datetime) -> datetime | None:
        """The last due instant not later than `instant`."""
        end = min(_utc(instant), self.last)
        found = self.rule.previous_at_or_before(end) if end >= self.first else None
        return found if found is not None and found >= self.first else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The due instants of [start, end), ascending."""
        return self.rule.between(*self._clipped(start, end))

    def count_between(self, start: datetime, end: datetime) -> int:
        """How many due instants [start, end) holds, without listing them."""
        return self.rule.count_between(*self._clipped(start, end))

    def preview(self, start: datetime, count: int) -> list[PreviewInstant]:
        """The first `count` due instants from `start` (included) on, with what there is to say of each."""
        earlier = max(_utc(start), CALENDAR_START) - _MICROSECOND
        previewed: list[PreviewInstant] = []
        while len(previewed) < count and (instant := self.next_after(earlier)) is not None:
            remarks = tuple(self._notes(earlier, instant, first=not previewed))
            previewed.append(PreviewInstant(utc=instant, local=self._local(instant), notes=remarks))
            earlier = instant
        return previewed

    def _local(self, instant: datetime) -> datetime:
        # At a fixed offset: by PEP 495 a repeated time that carries its zone equals no time of another zone.
        local = instant.astimezone(self.zone)
        return local.replace(tzinfo=timezone(local.utcoffset() or timedelta(0)), fold=0)

    def _notes(self, earlier: datetime, instant: datetime, *, first: bool) -> Iterator[str]:
        if isinstance(self.rule, WallClock):
            if first:
                yield from notes.on_day_fields(self.rule)
            yield from notes.on_clock_jumps(self.rule, earlier, instant)
            yield from notes.on_exclusions(self.rule, earlier, instant)

    def _clipped(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        begin = min(max(_utc(start), self.first), CALENDAR_END)
        return begin, max(begin, min(_utc(end), self.last + _MICROSECOND))


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"expected an aware datetime, got the naive {instant.isoformat()}")
    return instant.astimezone(UTC)


def _whole_millisecond_from(instant: datetime) -> datetime:
    """Due instants are whole milliseconds; a delay is never cut short by one."""
    return instant + timedelta(microseconds=-instant.microsecond % 1000)


# ---------------------------------------------------------------------------- parsing


class TriggerTerms(Protocol):
    """What of a definition decides about its instants: a revision, a due schedule, a draft that was read."""

    @property
    def trigger(self) -> dict[str, Any]: ...
    @property
    def start_at(self) -> datetime | None: ...
    @property
    def end_at(self) -> datetime | None: ...
    @property
    def exclusions(self) -> list[dict[str, Any]]: ...
    @property
    def on_excluded(self) -> str: ...
    @property
    def calendars(self) -> dict[str, list[Any]]: ...


def trigger_of(terms: TriggerTerms) -> Trigger:
    """Raises TriggerError when what was stored can no longer be read."""
    return parse_trigger(
        terms.trigger,
        start_at=terms.start_at,
        end_at=terms.end_at,
        exclusions=terms.exclusions,
        on_excluded=terms.on_excluded,
        calendars=terms.calendars,
    )


def parse_trigger(
    trigger: Mapping[str, Any],
    *,
    start_at: datetime | str | None = None,
    end_at: datetime | str | None = None,
    exclusions: Sequence[Mapping[str, Any]] = (),
    on_excluded: str | None = None,
    calendars: Mapping[str, Sequence[Any]] | None = None,
    default_anchor: datetime | str | None = None,
) -> Trigger:
    """The meaning of a `trigger` object of the API under the bounds of its schedule.

    `calendars` gives the tenant's calendars by name, each a list of dates (`"2026-12-25"`) or of exclusion
    objects. `default_anchor` serves an interval that names none: the second of creation, itself not due.
    Raises TriggerError for whatever is not right, and nothing else. Equal input is parsed once.
    """
    bounds = {
        "start_at": start_at,
        "end_at": end_at,
        "exclusions": exclusions,
        "on_excluded": on_excluded,
        "calendars": calendars,
        "default_anchor": default_anchor,
    }
    return _parse(_canonical({"trigger": trigger, **bounds}))


def _canonical(document: Mapping[str, object]) -> str:
    """The document as JSON text: the key of the memo, and a copy that holds nothing but JSON."""
    try:
        text = _CANONICAL.encode(document)
    except (TypeError, ValueError, RecursionError):
        raise TriggerError(
            "trigger", "invalid_json", "the trigger is not a JSON document of a reasonable depth."
        ) from None
    if len(text) > MAX_TEXT:
        raise TriggerError("trigger", "too_long", "the trigger is too long.")
    return text


def _date_text(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, allow_nan=False, default=_date_text)


@lru_cache(maxsize=4096)
def _parse(canonical: str) -> Trigger:
    document = json.loads(canonical)
    fields = {name: Field(path=name, value=value) for name, value in document.items()}
    kind, body = _only_kind(fields["trigger"])
    first, last = _bounds(fields)
    zone, rule = _PARSERS[kind](body, fields)
    return Trigger(kind=kind, rule=rule, zone=zone, first=first, last=last)


def _only_kind(trigger: Field) -> tuple[Kind, Field]:
    found = trigger.members([kind.value for kind in Kind])
    if len(found) != 1:
        raise trigger.refuse("exactly_one_kind", f"expected exactly one of {', '.join(Kind)}.")
    name, body = found.popitem()
    return Kind(name), body


def _bounds(fields: Mapping[str, Field]) -> tuple[datetime, datetime]:
    first, last = CALENDAR_START, CALENDAR_END - _MICROSECOND
    if fields["start_at"].value is not None:
        first = fields["start_at"].instant()
    if fields["end_at"].value is not None:
        last = fields["end_at"].instant()
    if last < first:
        raise fields["end_at"].refuse("out_of_range", "end_at lies before start_at.")
    return first, last


def _parse_once(body: Field, fields: Mapping[str, Field]) -> tuple[ZoneInfo, Rule]:
    members = body.members(["at", "timezone"], required=["at"])
    if _exclusions(fields):
        raise fields["exclusions"].refuse("not_applicable", "a schedule that runs once rests on no date.")
    zone = _zone(members["timezone"]) if "timezone" in members else None
    at = members["at"].timestamp()
    if at.tzinfo is None:
        if zone is None:
            raise members["at"].refuse(
                "offset_required", "name an offset ('Z', '+01:00'), or give a timezone."
            )
        at = members["at"].within_calendar(dst.time_of_day(at, zone))
    return zone or _ZONE_UTC, Moment(at=at)


def _parse_interval(body: Field, fields: Mapping[str, Field]) -> tuple[ZoneInfo, Rule]:
    members = body.members(["every_s", "anchor"], required=["every_s"])
    every = timedelta(seconds=members["every_s"].integer(at_least=1, at_most=MAX_INTERVAL_S))
    if "anchor" in members:
        first = members["anchor"].instant()
    elif fields["default_anchor"].value is None:
        raise body.child("anchor", None).refuse("required", "this field is required.")
    else:
        first = fields["default_anchor"].instant().replace(microsecond=0) + every
    exclusions = _exclusions(fields)
    if not exclusions:
        return _ZONE_UTC, Interval(first=first, every=every)
    if first.microsecond:
        detail = "with exclusions, the anchor is a whole second."
        raise body.child("anchor", None).refuse("whole_second_required", detail)
    grid = Grid(first=first, every_s=int(every.total_seconds()))
    clock = WallClock(zone=_ZONE_UTC, patterns=(grid,), dst=DstPolicy(), exclusions=exclusions)
    _refuse_if_never(clock, fields["exclusions"], since=max(_NEVER_FIRES_FROM, first - _TWO_DAYS))
    return _ZONE_UTC, clock


def _parse_rrule(body: Field, fields: Mapping[str, Field]) -> tuple[ZoneInfo, Rule]:
    required = ["rule", "dtstart", "timezone"]
    members = body.members([*required, "dst"], required=required)
    zone = _zone(members["timezone"])
    policy = _dst_policy(members["dst"]) if "dst" in members else DstPolicy()
    start = members["dtstart"].timestamp()
    if start.tzinfo is not None or start.microsecond:
        raise members["dtstart"].refuse("local_time_required", "expected a local time in whole seconds.")
    recurrence = members["rule"].parsed(lambda text: parse_recurrence(text, start, zone))
    clock = WallClock(zone=zone, patterns=(recurrence,), dst=policy, exclusions=_exclusions(fields))
    _refuse_if_never(clock, members["rule"], since=start.replace(tzinfo=UTC) - _TWO_DAYS)
    return zone, clock


def _parse_cron(body: Field, fields: Mapping[str, Field]) -> tuple[ZoneInfo, Rule]:
    members = body.members(
        ["expressions", "timezone", "dst", "day_match"], required=["expressions", "timezone"]
    )
    zone = _zone(members["timezone"])
    day_match = DayMatch(members["day_match"].choice(list(DayMatch)) if "day_match" in members else "classic")
    policy = _dst_policy(members["dst"]) if "dst" in members else DstPolicy()
    expressions = members["expressions"].items(at_least=1, at_most=MAX_EXPRESSIONS)
    parsed = [item.parsed(lambda text: parse_expression(text, day_match)) for item in expressions]
    for expression, item in zip(parsed, expressions, strict=True):
        _refuse_if_never(WallClock(zone=zone, patterns=(expression,), dst=policy), item)
    clock = WallClock(
        zone=zone, patterns=tuple(dict.fromkeys(parsed)), dst=policy, exclusions=_exclusions(fields)
    )
    if clock.exclusions:
        _refuse_if_never(clock, fields["exclusions"])
    return zone, clock


def _refuse_if_never(clock: WallClock, author: Field, *, since: datetime = _NEVER_FIRES_FROM) -> None:
    if clock.next_after(since) is None:
        raise author.refuse("never_fires", f"this never fires: no instant within {SEARCH_YEARS} years.")


def _dst_policy(body: Field) -> DstPolicy:
    members = body.members(["nonexistent", "repeated"])
    nonexistent, repeated = Nonexistent.AUTO, Repeated.AUTO
    if "nonexistent" in members:
        nonexistent = Nonexistent(members["nonexistent"].choice(list(Nonexistent)))
    if "repeated" in members:
        repeated = Repeated(members["repeated"].choice(list(Repeated)))
    return DstPolicy(nonexistent=nonexistent, repeated=repeated)


_PARSERS: Final = {
    Kind.ONCE: _parse_once,
    Kind.CRON: _parse_cron,
    Kind.INTERVAL: _parse_interval,
    Kind.RRULE: _parse_rrule,
}

_ZONE_UTC: Final = ZoneInfo("UTC")


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone(name: Field) -> ZoneInfo:
    key = name.text()
    if key not in _zone_names():
        hint = did_you_mean(key, _zone_names())
        raise name.refuse("unknown_timezone", f"unknown time zone {shown(key)}.{hint}")
    return ZoneInfo(key)


# ---------------------------------------------------------------------------- exclusions


def _exclusions(fields: Mapping[str, Field]) -> Exclusions:
    on_excluded = OnExcluded.SKIP
    if fields["on_excluded"].value is not None:
        on_excluded = OnExcluded(fields["on_excluded"].choice(list(OnExcluded)))
    entries = fields["exclusions"].items(at_least=0, at_most=MAX_EXCLUSIONS)
    ranges = [found for entry in entries for found in _excluded(entry, fields["calendars"])]
    exclusions = Exclusions.of(ranges, on_excluded)
    if exclusions.moves and exclusions.longest_rest() > _LONGEST_REST:
        detail = "with on_excluded 'next_business_day', a business day is needed at least once a year."
        raise fields["exclusions"].refuse("out_of_range", detail)
    return exclusions


def _excluded(entry: Field, calendars: Field) -> list[DateRange]:
    members = entry.members(["date", "from", "to", "calendar"])
    given = set(members)
    if given == {"calendar"}:
        return _calendar(members["calendar"], calendars)
    if given == {"date"}:
        day = members["date"].day()
        return [DateRange(first=day, last=day)]
    if given == {"from", "to"}:
        return [_date_range(members["from"], members["to"])]
    raise entry.refuse("invalid_exclusion", "expected {'date'}, {'from', 'to'} or {'calendar'}.")


def _date_range(first: Field, last: Field) -> DateRange:
    days = DateRange(first=first.day(), last=last.day())
    if days.last < days.first:
        raise last.refuse("out_of_range", "'to' lies before 'from'.")
    return days


def _calendar(name: Field, calendars: Field) -> list[DateRange]:
    known: Mapping[str, object] = calendars.value if isinstance(calendars.value, Mapping) else {}
    key = name.text()
    if key not in known:
        raise name.refuse(
            "unknown_calendar", f"unknown calendar {shown(key)}.{did_you_mean(key, list(known))}"
        )
    entries = calendars.child(key, known[key]).items(at_least=0, at_most=MAX_CALENDAR_ENTRIES)
    return [_calendar_entry(entry) for entry in entries]


def _calendar_entry(entry: Field) -> DateRange:
    if isinstance(entry.value, str):
        return DateRange(first=entry.day(), last=entry.day())
    members = entry.members(["date", "from", "to"])
    if "date" in members:
        return DateRange(first=members["date"].day(), last=members["date"].day())
    members = entry.members(["from", "to"], required=["from", "to"])
    return _date_range(members["from"], members["to"])
