"""Cron as instants: a walk over the local dates that match, each resolved to UTC, all compared in UTC.

A *regular* date (no clock jump touches it) is pure arithmetic: its instants are the expression's minutes of
the day, shifted by one offset. Dates near a jump are taken together as a *run*: resolved time by time, sorted
and freed of doubles as instants, because there the order of local times is not the order of instants.
"""

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from scheduler.core import dst
from scheduler.core.calendars import Exclusions
from scheduler.core.cron import CronExpression, MonthShape
from scheduler.core.dst import DstPolicy, Resolution

SEARCH_YEARS: Final = 60
_SEARCH: Final = timedelta(days=SEARCH_YEARS * 365.25)
_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_NO_EXCLUSIONS: Final = Exclusions()
_KEPT_RUNS: Final = 16
_MOVED_AT_MOST: Final = timedelta(days=366)
_FIRST_DATE: Final = date(1899, 12, 25)  # a little beyond the calendar's ends, where a zone's dates differ
_LAST_DATE: Final = date(2200, 1, 7)


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The union of cron expressions in a zone. Datetimes are UTC in and out."""

    zone: ZoneInfo
    expressions: tuple[CronExpression, ...]
    dst: DstPolicy
    exclusions: Exclusions = _NO_EXCLUSIONS
    _plans: dict[MonthShape, "_MonthPlan"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _runs: dict[date, "_Run"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def next_after(self, instant: datetime) -> datetime | None:
        local = instant.astimezone(self.zone)
        day = local.date()
        if dst.is_regular(self.zone, day):
            table = self._minutes_on(day)
            index = bisect_right(table, 60 * local.hour + local.minute)
            if index < len(table):
                return instant + (_wall(day, table[index]) - local.replace(tzinfo=None))
        else:
            run = self._run(day)
            index = bisect_right(run.instants, instant)
            if index < len(run.instants):
                return run.instants[index]
            day = run.last
        return self._first_later_than(day)

    def _first_later_than(self, day: date) -> datetime | None:
        limit = min(day + _SEARCH, _LAST_DATE)
        following = self._next_date(day, limit)
        while following is not None:
            if dst.is_regular(self.zone, following):
                return self._to_utc(following, self._minutes_on(following)[0])
            run = self._run(following)
            if run.instants:
                return run.instants[0]
            following = self._next_date(run.last, limit)
        return None

    def previous_at_or_before(self, instant: datetime) -> datetime | None:
        local = instant.astimezone(self.zone)
        day = local.date()
        if dst.is_regular(self.zone, day):
            table = self._minutes_on(day)
            index = bisect_right(table, 60 * local.hour + local.minute)
            if index:
                return instant - (local.replace(tzinfo=None) - _wall(day, table[index - 1]))
        else:
            run = self._run(day)
            index = bisect_right(run.instants, instant)
            if index:
                return run.instants[index - 1]
            day = run.first
        return self._last_earlier_than(day)

    def _last_earlier_than(self, day: date) -> datetime | None:
        limit = max(day - _SEARCH, _FIRST_DATE)
        preceding = self._previous_date(day, limit)
        while preceding is not None:
            if dst.is_regular(self.zone, preceding):
                return self._to_utc(preceding, self._minutes_on(preceding)[-1])
            run = self._run(preceding)
            if run.instants:
                return run.instants[-1]
            preceding = self._previous_date(run.first, limit)
        return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for block in self._blocks(start, end):
            yield from block.between(start, end)

    def count_between(self, start: datetime, end: datetime) -> int:
        return sum(block.count_between(start, end) for block in self._blocks(start, end))

    def oddities_between(self, start: datetime, end: datetime) -> Iterator[Resolution]:
        """The local times near the clock jumps of [start, end] that are missing or doubled, fired or not."""
        for block in self._blocks(start, end):
            if isinstance(block, _Run):
                yield from block.oddities

    def excluded_dates(self, start: datetime, end: datetime) -> Iterator[date]:
        """The excluded local dates of [start, end] on which an expression would have fired."""
        first, last = (instant.astimezone(self.zone).date() for instant in (start, end))
        day = self._next_plain(first - _DAY, last)
        while day is not None:
            if self.exclusions.range_of(day) is not None:
                yield day
            day = self._next_plain(day, last)

    # -- blocks: a regular date, or a run of dates near a clock jump

    def _blocks(self, start: datetime, end: datetime) -> Iterator["_Day | _Run"]:
        """The blocks that may hold instants of [start, end), in the order of their instants."""
        first, last = (instant.astimezone(self.zone).date() for instant in (start, end))
        if not dst.is_regular(self.zone, first):
            first = dst.irregular_run(self.zone, first)[0]
        following = self._next_date(first - _DAY, last)
        while following is not None:
            if dst.is_regular(self.zone, following):
                yield _Day(midnight=self._to_utc(following, 0), minutes=self._minutes_on(following))
            else:
                run = self._run(following)
                yield run
                following = run.last
            following = self._next_date(following, last)

    def _run(self, day: date) -> "_Run":
        first, last = dst.irregular_run(self.zone, day)
        run = self._runs.get(first)
        if run is None:
            run = self._resolved(first, last)
            if len(self._runs) >= _KEPT_RUNS:
                self._runs.clear()
            self._runs[first] = run
        return run

    def _resolved(self, first: date, last: date) -> "_Run":
        jumps = dst.jumps_of_run(self.zone, first, last)
        instants: set[datetime] = set()
        oddities: list[Resolution] = []
        for day in (first + _DAY * index for index in range((last - first).days + 1)):
            for expression in (self.expressions[index] for index in self._matching(day)):
                policy = self.dst.judged(rolling=expression.is_rolling)
                ordinary, odd = dst.resolve_day(day, expression.minutes_of_day, jumps, policy)
                instants.update(ordinary, *(resolution.instants for resolution in odd))
                oddities += odd
        return _Run(first=first, last=last, instants=tuple(sorted(instants)), oddities=tuple(oddities))

    def _to_utc(self, day: date, minute: int) -> datetime:
        return _wall(day, minute).replace(tzinfo=self.zone).astimezone(UTC)

    # -- dates and minutes of the day

    def _minutes_on(self, day: date) -> tuple[int, ...]:
        if not self.exclusions.ranges:
            return self._plan(day.year, day.month).minutes.get(day.day, ())
        return self._merged(self._matching(day))

    def _merged(self, matching: tuple[int, ...]) -> tuple[int, ...]:
        tables = [self.expressions[index].minutes_of_day for index in matching]
        return tables[0] if len(tables) == 1 else tuple(sorted(set().union(*tables)))

    def _matching(self, day: date) -> tuple[int, ...]:
        """Which of the expressions fire on this date, exclusions applied."""
        plain = self._plan(day.year, day.month).matching.get(day.day, ())
        if not self.exclusions.ranges:
            return plain
        if self.exclusions.range_of(day) is not None:
            return ()
        if self.exclusions.moves and self.exclusions.is_business_day(day):
            return tuple(sorted({*plain, *self._moved_onto(day)}))
        return plain

    def _moved_onto(self, landing: date) -> Iterator[int]:
        """The expressions of the excluded dates before this business day, back to the business day before."""
        day = landing - _DAY
        oldest = landing - _MOVED_AT_MOST
        while day > oldest and not self.exclusions.is_business_day(day):
            if self.exclusions.range_of(day) is not None:
                yield from self._plan(day.year, day.month).matching.get(day.day, ())
            day -= _DAY

    def _next_date(self, day: date, limit: date) -> date | None:
        """The first date later than `day` and not later than `limit` on which an expression fires."""
        if not self.exclusions.ranges:
            return self._next_plain(day, limit)
        if self.exclusions.moves:
            return self._search_dates(day, limit, _DAY)
        following = self._next_plain(day, limit)
        while following is not None and (excluded := self.exclusions.range_of(following)):
            following = self._next_plain(excluded.last, limit)
        return following

    def _previous_date(self, day: date, limit: date) -> date | None:
        if not self.exclusions.ranges:
            return self._previous_plain(day, limit)
        if self.exclusions.moves:
            return self._search_dates(day, limit, -_DAY)
        preceding = self._previous_plain(day, limit)
        while preceding is not None and (excluded := self.exclusions.range_of(preceding)):
            preceding = self._previous_plain(excluded.first, limit)
        return preceding

    def _search_dates(self, day: date, limit: date, step: timedelta) -> date | None:
        while day != limit:
            day += step
            if self._matching(day):
                return day
        return None

    def _next_plain(self, day: date, limit: date) -> date | None:
        year, month = day.year, day.month
        days = self._plan(year, month).days
        index = bisect_right(days, day.day)
        while index == len(days):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if (year, month) > (limit.year, limit.month):
                return None
            days, index = self._plan(year, month).days, 0
        found = date(year, month, days[index])
        return found if found <= limit else None

    def _previous_plain(self, day: date, limit: date) -> date | None:
        year, month = day.year, day.month
        days = self._plan(year, month).days
        index = bisect_left(days, day.day)
        while index == 0:
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)
            if (year, month) < (limit.year, limit.month):
                return None
            days = self._plan(year, month).days
            index = len(days)
        found = date(year, month, days[index - 1])
        return found if found >= limit else None

    def _plan(self, year: int, month: int) -> "_MonthPlan":
        shape = _month_shape(year, month)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._plans[shape] = self._planned(shape)
        return plan

    def _planned(self, shape: MonthShape) -> "_MonthPlan":
        matching: dict[int, tuple[int, ...]] = {}
        for index, expression in enumerate(self.expressions):
            for day in expression.days_in(shape):
                matching[day] = (*matching.get(day, ()), index)
        merged = {indexes: self._merged(indexes) for indexes in set(matching.values())}
        minutes = {day: merged[indexes] for day, indexes in matching.items()}
        return _MonthPlan(days=tuple(sorted(matching)), matching=matching, minutes=minutes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _MonthPlan:
    """The matching days of a month shape, and for each its expressions and its minutes of the day."""

    days: tuple[int, ...]
    matching: dict[int, tuple[int, ...]]
    minutes: dict[int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Day:
    midnight: datetime
    minutes: tuple[int, ...]

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for minute in self.minutes[self._index(start) : self._index(end)]:
            yield self.midnight + _MINUTE * minute

    def count_between(self, start: datetime, end: datetime) -> int:
        return max(0, self._index(end) - self._index(start))

    def _index(self, instant: datetime) -> int:
        whole_minutes_rounded_up = -((self.midnight - instant) // _MINUTE)
        return bisect_left(self.minutes, whole_minutes_rounded_up)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    first: date
    last: date
    instants: tuple[datetime, ...]
    oddities: tuple[Resolution, ...]

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        yield from self.instants[bisect_left(self.instants, start) : bisect_left(self.instants, end)]

    def count_between(self, start: datetime, end: datetime) -> int:
        return max(0, bisect_left(self.instants, end) - bisect_left(self.instants, start))


@lru_cache(maxsize=8192)
def _month_shape(year: int, month: int) -> MonthShape:
    monday_first, length = calendar.monthrange(year, month)
    return MonthShape(month=month, first_weekday=(monday_first + 1) % 7, length=length)


def _wall(day: date, minute: int) -> datetime:
    """The naive local time; hot, hence without `combine`."""
    return datetime(day.year, day.month, day.day, minute // 60, minute % 60)  # noqa: DTZ001
