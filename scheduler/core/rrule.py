"""Recurrence rules as calendars write them (RFC 5545), as a pattern of local dates and times.

Evaluated here and not by dateutil, which reads on from DTSTART each time and does not stop before the year
9999 where a rule matches nothing. Tests compare the two. As there, DTSTART counts only if it matches.
"""

import calendar
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from scheduler.core.reading import Refusal, shown

MAX_LENGTH: Final = 1000
MAX_COUNT: Final = 1000
_DAY: Final = timedelta(days=1)
_WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_ZERO: Final = frozenset({0})

_Candidate = TypeVar("_Candidate")


class Frequency(IntEnum):
    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


_STEP_S: Final = {Frequency.HOURLY: 3600, Frequency.MINUTELY: 60, Frequency.SECONDLY: 1}


class Weekday(NamedTuple):
    """`FR` (nth None), `2FR` or `-1FR`; Monday is 0."""

    day: int
    nth: int | None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a rule as written; empty where absent."""

    frequency: Frequency
    interval: int = 1
    count: int | None = None
    until: datetime | None = None  # aware if written in UTC, naive if local
    week_start: int = 0
    months: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    year_days: frozenset[int] = frozenset()
    weeks: frozenset[int] = frozenset()
    weekdays: frozenset[Weekday] = frozenset()
    hours: frozenset[int] = frozenset()
    minutes: frozenset[int] = frozenset()
    seconds: frozenset[int] = frozenset()
    positions: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """The local times of a rule from `start` on (naive, whole seconds) to `last`, if it ends."""

    start: datetime
    parts: Parts
    last: datetime | None = None
    _years: dict[int, tuple[date, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _periods: dict[date, Sequence[tuple[date, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def is_rolling(self) -> bool:
        return self.parts.frequency >= Frequency.HOURLY

    def seconds_on(self, day: date) -> Sequence[int]:
        """The times of this date as seconds since midnight, ascending."""
        days = self._dates(day.year)
        index = bisect_left(days, day)
        if index == len(days) or days[index] != day:
            return ()
        return self._clipped(day, self._chosen(day))

    def next_date(self, day: date, limit: date) -> date | None:
        """The first matching date later than `day` and not later than `limit`."""
        day = max(day, self.start.date() - _DAY)
        limit = limit if self.last is None else min(limit, self.last.date())
        for year in range(day.year, limit.year + 1):
            for found in self._dates(year)[bisect_right(self._dates(year), day) :]:
                if found > limit:
                    return None
                if self.seconds_on(found):
                    return found
        return None

    def previous_date(self, day: date, limit: date) -> date | None:
        """The last matching date earlier than `day` and not earlier than `limit`."""
        day = day if self.last is None else min(day, self.last.date() + _DAY)
        limit = max(limit, self.start.date())
        for year in range(day.year, limit.year - 1, -1):
            for found in reversed(self._dates(year)[: bisect_left(self._dates(year), day)]):
                if found < limit:
                    return None
                if self.seconds_on(found):
                    return found
        return None

    # -- dates

    def _dates(self, year: int) -> tuple[date, ...]:
        """The dates that the rule's date parts allow; with FREQ=HOURLY and below some may lack times."""
        dates = self._years.get(year)
        if dates is None:
            months = sorted(self.parts.months) or range(1, 13)
            days = (
                day for month in months for day in _span(date(year, month, 1), _month_length(year, month))
            )
            dates = self._years[year] = tuple(day for day in days if self._allows(day))
        return dates

    def _allows(self, day: date) -> bool:
        if not self._is_in_step(day):
            return False
        if self._positions_in_dates:
            return any(day == chosen for chosen, _ in self._positioned(day))
        return self._passes_filters(day)

    def _is_in_step(self, day: date) -> bool:
        """Whether the date's year, month, week or day is one of every `interval`."""
        start, frequency = self.start.date(), self.parts.frequency
        if frequency is Frequency.YEARLY:
            distance = day.year - start.year
        elif frequency is Frequency.MONTHLY:
            distance = 12 * (day.year - start.year) + day.month - start.month
        elif frequency is Frequency.WEEKLY:
            distance = (self._week_of(day) - self._week_of(start)).days // 7
        elif frequency is Frequency.DAILY:
            distance = (day - start).days
        else:
            distance = 0  # judged by the time of day
        return distance % self.parts.interval == 0

    def _week_of(self, day: date) -> date:
        return day - _DAY * ((day.weekday() - self.parts.week_start) % 7)

    def _passes_filters(self, day: date) -> bool:
        parts = self.parts
        if parts.months and day.month not in parts.months:
            return False
        if parts.month_days:
            length = _month_length(day.year, day.month)
            if day.day not in parts.month_days and day.day - length - 1 not in parts.month_days:
                return False
        if parts.year_days:
            number, length = day.timetuple().tm_yday, _year_length(day.year)
            if number not in parts.year_days and number - length - 1 not in parts.year_days:
                return False
        if parts.weekdays and not any(self._is_weekday(day, weekday) for weekday in parts.weekdays):
            return False
        return not parts.weeks or self._is_in_weeks(day)

    def _is_in_weeks(self, day: date) -> bool:
        """Weeks belong to the year that holds four of their days; counted from its end, too."""
        week = self._week_of(day)
        first, following = (self._first_week(self._year_of(week) + more) for more in (0, 1))
        number, count = (week - first).days // 7 + 1, (following - first).days // 7
        return number in self.parts.weeks or number - count - 1 in self.parts.weeks

    def _year_of(self, week: date) -> int:
        return (week + 3 * _DAY).year

    def _first_week(self, year: int) -> date:
        return self._week_of(date(year, 1, 4))

    def _is_weekday(self, day: date, weekday: Weekday) -> bool:
        if day.weekday() != weekday.day:
            return False
        if weekday.nth is None:
            return True
        if self.parts.frequency is Frequency.YEARLY and not self.parts.months:
            number, length = day.timetuple().tm_yday, _year_length(day.year)
        else:
            number, length = day.day, _month_length(day.year, day.month)
        from_front, from_back = (number + 6) // 7, -((length - number) // 7 + 1)
        return weekday.nth in (from_front, from_back)

    # -- times

    def _chosen(self, day: date) -> Sequence[int]:
        if self._positions_in_dates:
            return sorted(second for chosen, second in self._positioned(day) if chosen == day)
        return self._times(day)

    def _times(self, day: date) -> Sequence[int]:
        parts = self.parts
        if not self.is_rolling:
            return _product(parts.hours, parts.minutes, parts.seconds)
        step = _STEP_S[parts.frequency]
        midnight_after_start = (
            86400 * (day - self.start.date()).days - _second_of_day(self.start) // step * step
        )
        ticks = range(-midnight_after_start % (step * parts.interval), 86400, step * parts.interval)
        if parts.frequency is Frequency.SECONDLY:
            return ticks
        minutes = _ZERO if parts.frequency is Frequency.MINUTELY else parts.minutes
        within = self._at_positions(_product(_ZERO, minutes, parts.seconds))
        return [tick + second for tick in ticks if self._allows_tick(tick) for second in within]

    def _allows_tick(self, tick: int) -> bool:
        parts = self.parts
        if parts.hours and tick // 3600 not in parts.hours:
            return False
        is_minute = parts.frequency is Frequency.MINUTELY
        return not (is_minute and parts.minutes) or tick // 60 % 60 in parts.minutes

    def _clipped(self, day: date, times: Sequence[int]) -> Sequence[int]:
        """What lies between `start` and `last`."""
        if day <= self.start.date():
            times = (
                times[bisect_left(times, _second_of_day(self.start)) :] if day == self.start.date() else ()
            )
        if self.last is not None and day >= self.last.date():
            times = times[: bisect_right(times, _second_of_day(self.last))] if day == self.last.date() else ()
        return times

    # -- positions (BYSETPOS): the nth of all that a year, month, week, day, hour or minute holds

    @property
    def _positions_in_dates(self) -> bool:
        """Whether they choose among dates; below a day they choose within each hour or minute."""
        return bool(self.parts.positions) and not self.is_rolling

    def _at_positions(self, candidates: Sequence[_Candidate]) -> Sequence[_Candidate]:
        if not self.parts.positions:
            return candidates
        size = len(candidates)
        indexes = {p - 1 if p > 0 else size + p for p in self.parts.positions if abs(p) <= size}
        return [candidates[index] for index in sorted(indexes)]

    def _positioned(self, day: date) -> Sequence[tuple[date, int]]:
        first, length = self._period(day)
        found = self._periods.get(first)
        if found is None:
            found = self._periods[first] = self._positions_in(_span(first, length))
        return found

    def _positions_in(self, period: Iterator[date]) -> Sequence[tuple[date, int]]:
        days = [day for day in period if self._passes_filters(day)]
        return self._at_positions([(day, second) for day in days for second in self._times(day)])

    def _period(self, day: date) -> tuple[date, int]:
        """First day and length of the year, month, week or day around `day`."""
        if self.parts.frequency is Frequency.YEARLY:
            return date(day.year, 1, 1), _year_length(day.year)
        if self.parts.frequency is Frequency.MONTHLY:
            return day.replace(day=1), _month_length(day.year, day.month)
        if self.parts.frequency is Frequency.WEEKLY:
            return self._week_of(day), 7
        return day, 1


@lru_cache(maxsize=1024)
def _product(hours: frozenset[int], minutes: frozenset[int], seconds: frozenset[int]) -> tuple[int, ...]:
    times = itertools.product(sorted(hours), sorted(minutes), sorted(seconds))
    return tuple(3600 * hour + 60 * minute + second for hour, minute, second in times)


def _span(first: date, length: int) -> Iterator[date]:
    return (first + _DAY * index for index in range(length))


def _year_length(year: int) -> int:
    return 366 if calendar.isleap(year) else 365


def _month_length(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1]


def _second_of_day(local: datetime) -> int:
    return 3600 * local.hour + 60 * local.minute + local.second


# ---------------------------------------------------------------------------- parsing

MAX_TIMES_PER_DAY: Final = 2880
_LAST_DATE: Final = date(2200, 1, 7)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,6}")
_WEEKDAY: Final = re.compile(r"(?P<nth>[+-]?[0-9]{1,2})?(?P<day>MO|TU|WE|TH|FR|SA|SU)")
_UNTIL: Final = re.compile(r"(?P<date>[0-9]{8})(?:T(?P<time>[0-9]{6})(?P<utc>Z)?)?")
_EXTENSIONS: Final = ("BYEASTER",)  # of dateutil, in no calendar's file

# Name in the rule, name in Parts, and the bounds of its values; a negative lower bound counts from the end.
_LISTS: Final = {
    "BYMONTH": ("months", 1, 12),
    "BYMONTHDAY": ("month_days", -31, 31),
    "BYYEARDAY": ("year_days", -366, 366),
    "BYWEEKNO": ("weeks", -53, 53),
    "BYHOUR": ("hours", 0, 23),
    "BYMINUTE": ("minutes", 0, 59),
    "BYSECOND": ("seconds", 0, 59),
    "BYSETPOS": ("positions", -366, 366),
}
_KNOWN: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS)


def parse_recurrence(text: str, start: datetime, zone: ZoneInfo) -> Recurrence:
    """The rule that `text` says from the naive local `start` on.

    `zone` serves an UNTIL written in UTC. Raises Refusal with the part and the reason.
    """
    if len(text) > MAX_LENGTH:
        raise Refusal("too_long", f"a rule has at most {MAX_LENGTH} characters.")
    parts = _completed(_parts(_named_values(text)), start)
    _refuse_unsupported(parts)
    last = parts.until
    if last is not None and last.tzinfo is not None:
        last = last.astimezone(zone).replace(tzinfo=None)
    recurrence = Recurrence(start=start, parts=parts, last=last)
    if parts.count is None:
        return recurrence
    return replace(recurrence, last=_last_counted(recurrence, parts.count))


def _named_values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in text.upper().removeprefix("RRULE:").split(";"):
        name, _, value = item.partition("=")
        if name in _EXTENSIONS:
            detail = f"{name} is no part of RFC 5545; name the dates in a calendar, or several schedules."
            raise Refusal("unknown_part", detail)
        if name not in _KNOWN:
            raise Refusal("unknown_part", f"unknown part {shown(item)}; a rule reads 'FREQ=WEEKLY;BYDAY=MO'.")
        if name in values:
            raise Refusal("invalid_syntax", f"{name} occurs twice.")
        values[name] = value
    if "FREQ" not in values:
        raise Refusal("required", "the rule needs a FREQ, such as 'FREQ=DAILY'.")
    return values


def _parts(values: dict[str, str]) -> Parts:
    lists: dict[str, frozenset[int]] = {
        _LISTS[name][0]: _integers(name, value) for name, value in values.items() if name in _LISTS
    }
    return Parts(
        frequency=_frequency(values["FREQ"]),
        interval=_integer("INTERVAL", values.get("INTERVAL", "1"), 1, 100_000),
        count=_integer("COUNT", values["COUNT"], 1, MAX_COUNT) if "COUNT" in values else None,
        until=_until(values["UNTIL"]) if "UNTIL" in values else None,
        week_start=_plain_weekday(values.get("WKST", "MO")),
        weekdays=frozenset(map(_weekday, values["BYDAY"].split(","))) if "BYDAY" in values else frozenset(),
        **lists,
    )


def _completed(parts: Parts, start: datetime) -> Parts:
    """The rule with what it leaves open taken from DTSTART."""
    frequency = parts.frequency
    more: dict[str, Any] = {}
    if not (parts.month_days or parts.year_days or parts.weekdays):
        if frequency is Frequency.YEARLY and not parts.months:
            more["months"] = frozenset({start.month})
        if frequency in (Frequency.YEARLY, Frequency.MONTHLY):
            more["month_days"] = frozenset({start.day})
        if frequency is Frequency.WEEKLY:
            more["weekdays"] = frozenset({Weekday(start.weekday(), None)})
    if frequency < Frequency.HOURLY and not parts.hours:
        more["hours"] = frozenset({start.hour})
    if frequency < Frequency.MINUTELY and not parts.minutes:
        more["minutes"] = frozenset({start.minute})
    if frequency < Frequency.SECONDLY and not parts.seconds:
        more["seconds"] = frozenset({start.second})
    return replace(parts, **more)


def _refuse_unsupported(parts: Parts) -> None:
    frequency = parts.frequency
    if parts.count is not None and parts.until is not None:
        raise Refusal("invalid_syntax", "COUNT and UNTIL exclude each other.")
    _refuse_weeks(parts)
    if frequency > Frequency.MONTHLY and any(weekday.nth for weekday in parts.weekdays):
        raise Refusal("invalid_syntax", "BYDAY takes a number only with FREQ=MONTHLY or FREQ=YEARLY.")
    if frequency is Frequency.SECONDLY and parts.positions:
        raise Refusal("invalid_syntax", "BYSETPOS chooses among several: a second holds one instant.")
    if frequency is Frequency.SECONDLY and (parts.hours or parts.minutes or parts.seconds):
        raise Refusal("not_supported_yet", "FREQ=SECONDLY takes no BYHOUR, BYMINUTE or BYSECOND yet.")
    ticks = {Frequency.HOURLY: 24, Frequency.MINUTELY: 1440}.get(frequency, len(parts.hours))
    minutes = 1 if frequency is Frequency.MINUTELY else len(parts.minutes)
    if frequency >= Frequency.HOURLY and parts.positions:
        _refuse_positions_beyond(minutes * len(parts.seconds), parts)
    if frequency is not Frequency.SECONDLY and ticks * minutes * len(parts.seconds) > MAX_TIMES_PER_DAY:
        raise Refusal("out_of_range", f"the rule names more than {MAX_TIMES_PER_DAY} times a day.")


def _refuse_positions_beyond(size: int, parts: Parts) -> None:
    """What no hour or minute holds is seen here: a search would look at each of 60 years."""
    if min(map(abs, parts.positions)) > size:
        detail = f"BYSETPOS: each {parts.frequency.name[:-2].lower()} holds {size} of such times."
        raise Refusal("never_fires", detail)


def _refuse_weeks(parts: Parts) -> None:
    """Without BYDAY readers disagree: some take the weekday of DTSTART, others all seven days."""
    if not parts.weeks:
        return
    if parts.frequency is not Frequency.YEARLY:
        raise Refusal("invalid_syntax", "BYWEEKNO belongs to FREQ=YEARLY.")
    if not parts.weekdays:
        raise Refusal("required", "BYWEEKNO needs the days: 'FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO'.")
    if any(weekday.nth for weekday in parts.weekdays):
        raise Refusal("invalid_syntax", "with BYWEEKNO, BYDAY takes no number.")


def _last_counted(recurrence: Recurrence, count: int) -> datetime | None:
    """The local time of the rule's last occurrence; None if the calendar ends first."""
    day = recurrence.next_date(recurrence.start.date() - _DAY, _LAST_DATE)
    while day is not None:
        times = recurrence.seconds_on(day)
        if count <= len(times):
            # A rule counts in local wall time, which has no offset before it is resolved.
            midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001
            return midnight + timedelta(seconds=times[count - 1])
        count -= len(times)
        day = recurrence.next_date(day, _LAST_DATE)
    return None


def _frequency(text: str) -> Frequency:
    if text not in Frequency.__members__:
        raise Refusal(
            "invalid_choice", f"FREQ={shown(text)} is not one of {', '.join(Frequency.__members__)}."
        )
    return Frequency[text]


def _integers(name: str, text: str) -> frozenset[int]:
    _, lowest, highest = _LISTS[name]
    values = frozenset(_integer(name, item, lowest, highest) for item in text.split(","))
    if lowest < 0 and 0 in values:
        raise Refusal("out_of_range", f"{name} counts from 1, or from the end by -1.")
    return values


def _integer(name: str, text: str, lowest: int, highest: int) -> int:
    if _INTEGER.fullmatch(text) is None or not lowest <= int(text) <= highest:
        raise Refusal("out_of_range", f"{name}: {shown(text)} is not a number from {lowest} to {highest}.")
    return int(text)


def _weekday(text: str) -> Weekday:
    found = _WEEKDAY.fullmatch(text)
    if found is None or (found["nth"] and not 1 <= abs(int(found["nth"])) <= 53):
        raise Refusal("invalid_syntax", f"BYDAY: {shown(text)} is not such as 'FR', '2FR' or '-1FR'.")
    return Weekday(_WEEKDAYS.index(found["day"]), int(found["nth"]) if found["nth"] else None)


def _plain_weekday(text: str) -> int:
    if text not in _WEEKDAYS:
        raise Refusal("invalid_choice", f"WKST: {shown(text)} is not one of {', '.join(_WEEKDAYS)}.")
    return _WEEKDAYS.index(text)


def _until(text: str) -> datetime:
    found = _UNTIL.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        # Wall time of the rule's zone, unless it ends with Z: see the return.
        until = datetime.strptime(found["date"] + (found["time"] or "000000"), "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        raise Refusal("invalid_timestamp", f"UNTIL: {shown(text)} is not '20261231T235959Z'.") from None
    return until.replace(tzinfo=UTC) if found["utc"] else until
