"""Local times as instants: a walk over the dates on which patterns fire, all compared in UTC.

A *regular* date (no clock jump touches it) is pure arithmetic: its instants are the pattern's times of day,
shifted by one offset. Dates near a jump are taken together as a *run*: resolved time by time, sorted and
freed of doubles as instants, because there the order of local times is not the order of instants.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from scheduler.core import dst
from scheduler.core.calendars import Exclusions
from scheduler.core.dst import DstPolicy, Resolution

SEARCH_YEARS: Final = 60
_SEARCH: Final = timedelta(days=SEARCH_YEARS * 365.25)
_DAY: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)
_NO_EXCLUSIONS: Final = Exclusions()
_KEPT_RUNS: Final = 16
_NEVER_ASKED: Final = datetime.min.replace(tzinfo=UTC)
_FIRST_DATE: Final = date(1899, 12, 25)  # a little beyond the calendar's ends, where a zone's dates differ
_LAST_DATE: Final = date(2200, 1, 7)


class Pattern(Protocol):
    """Local dates, and the times of day on each. Knows no zones."""

    @property
    def is_rolling(self) -> bool:
        """Whether it follows elapsed time rather than naming a time of day."""

    def seconds_on(self, day: date) -> Sequence[int]:
        """The times of that date as seconds since midnight, ascending; none if the date does not match."""

    def next_date(self, day: date, limit: date) -> date | None:
        """The first matching date later than `day` and not later than `limit`."""

    def previous_date(self, day: date, limit: date) -> date | None:
        """The last matching date earlier than `day` and not earlier than `limit`."""


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The union of patterns in a zone. Datetimes are UTC in and out."""

    zone: ZoneInfo
    patterns: tuple[Pattern, ...]
    dst: DstPolicy
    exclusions: Exclusions = _NO_EXCLUSIONS
    _runs: dict[date, "_Run"] = field(default_factory=dict, init=False, repr=False, compare=False)
    _answered: list[tuple[datetime, datetime | None]] = field(
        default_factory=lambda: [(_NEVER_ASKED, None)], init=False, repr=False, compare=False
    )

    def next_after(self, instant: datetime) -> datetime | None:
        """The last answer is kept: what shares a trigger is mostly due together, and asks the same."""
        asked, answer = self._answered[0]  # one read, one write: threads see a whole pair, if an older one
        if asked != instant:
            answer = self._following(instant)
            self._answered[0] = (instant, answer)
        return answer

    def _following(self, instant: datetime) -> datetime | None:
        local = instant.astimezone(self.zone)
        day = local.date()
        if dst.is_regular(self.zone, day):
            now = _second_of_day(local)
            second = _later(self._tables(day), now)
            if second is not None:
                return instant + timedelta(seconds=second - now, microseconds=-local.microsecond)
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
                return self._to_utc(following, min(table[0] for table in self._tables(following)))
            run = self._run(following)
            if run.instants:
                return run.instants[0]
            following = self._next_date(run.last, limit)
        return None

    def previous_at_or_before(self, instant: datetime) -> datetime | None:
        local = instant.astimezone(self.zone)
        day = local.date()
        if dst.is_regular(self.zone, day):
            now = _second_of_day(local)
            second = _not_later(self._tables(day), now)
            if second is not None:
                return instant + timedelta(seconds=second - now, microseconds=-local.microsecond)
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
                return self._to_utc(preceding, max(table[-1] for table in self._tables(preceding)))
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
        """The excluded local dates of [start, end] on which a pattern would have fired."""
        first, last = (instant.astimezone(self.zone).date() for instant in (start, end))
        day = self._next_matching(first - _DAY, last)
        while day is not None:
            if self.exclusions.range_of(day) is not None:
                yield day
            day = self._next_matching(day, last)

    # -- blocks: a regular date, or a run of dates near a clock jump

    def _blocks(self, start: datetime, end: datetime) -> Iterator["_Day | _Run"]:
        """The blocks that may hold instants of [start, end), in the order of their instants."""
        first, last = (instant.astimezone(self.zone).date() for instant in (start, end))
        if not dst.is_regular(self.zone, first):
            first = dst.irregular_run(self.zone, first)[0]
        following = self._next_date(first - _DAY, last)
        while following is not None:
            if dst.is_regular(self.zone, following):
                yield _Day(midnight=self._to_utc(following, 0), tables=self._tables(following))
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
            for pattern, table in self._firing(day):
                policy = self.dst.judged(rolling=pattern.is_rolling)
                ordinary, odd = dst.resolve_day(day, table, jumps, policy)
                instants.update(ordinary, *(resolution.instants for resolution in odd))
                oddities += odd
        return _Run(first=first, last=last, instants=tuple(sorted(instants)), oddities=tuple(oddities))

    def _to_utc(self, day: date, second: int) -> datetime:
        minute = second // 60
        local = datetime(
            day.year, day.month, day.day, minute // 60, minute % 60, second % 60, tzinfo=self.zone
        )
        return local.astimezone(UTC)

    # -- times of day, exclusions applied

    def _tables(self, day: date) -> list[Sequence[int]]:
        """The times of this date, a table for each pattern that fires; none of them empty."""
        if self.exclusions.ranges:
            return [table for _, table in self._firing(day)]
        return [table for pattern in self.patterns if (table := pattern.seconds_on(day))]

    def _firing(self, day: date) -> Iterator[tuple[Pattern, Sequence[int]]]:
        if self.exclusions.range_of(day) is None:
            yield from self._matching(day)
            if self.exclusions.moves and self.exclusions.is_business_day(day):
                yield from self._moved_onto(day)

    def _matching(self, day: date) -> Iterator[tuple[Pattern, Sequence[int]]]:
        for pattern in self.patterns:
            if table := pattern.seconds_on(day):
                yield pattern, table

    def _moved_onto(self, landing: date) -> Iterator[tuple[Pattern, Sequence[int]]]:
        """What was to fire on the excluded dates between this business day and the one before it."""
        day = self.exclusions.business_day_until(landing - _DAY) + _DAY
        while day < landing:
            if self.exclusions.range_of(day) is not None:
                yield from self._matching(day)
            day += _DAY

    # -- dates, exclusions applied

    def _next_date(self, day: date, limit: date) -> date | None:
        """The first date later than `day` and not later than `limit` on which something fires."""
        if not self.exclusions.ranges:
            return self._next_matching(day, limit)
        if self.exclusions.moves:
            return self._next_moved(day, limit)
        following = self._next_matching(day, limit)
        while following is not None and (excluded := self.exclusions.range_of(following)):
            following = self._next_matching(excluded.last, limit)
        return following

    def _previous_date(self, day: date, limit: date) -> date | None:
        if not self.exclusions.ranges:
            return self._previous_matching(day, limit)
        if self.exclusions.moves:
            return self._previous_moved(day, limit)
        preceding = self._previous_matching(day, limit)
        while preceding is not None and (excluded := self.exclusions.range_of(preceding)):
            preceding = self._previous_matching(excluded.first, limit)
        return preceding

    def _next_moved(self, day: date, limit: date) -> date | None:
        """As `_next_date`, where what is excluded goes to the next business day."""
        nearest = None
        # Excluded dates since the last business day may still have their landing ahead.
        matching = self._next_matching(self.exclusions.business_day_until(day), limit)
        while matching is not None and (nearest is None or matching < nearest):
            excluded = self.exclusions.range_of(matching)
            landing = self.exclusions.business_day_from(matching) if excluded else matching
            if landing > day and (nearest is None or landing < nearest):
                nearest = landing
            matching = self._next_matching(excluded.last if excluded else matching, limit)
        return nearest if nearest is not None and nearest <= limit else None

    def _previous_moved(self, day: date, limit: date) -> date | None:
        nearest = None
        matching = self._previous_matching(day, limit)
        # Before the last business day up to `nearest`, nothing lands later than `nearest`.
        while matching is not None and (
            nearest is None or matching > self.exclusions.business_day_until(nearest)
        ):
            excluded = self.exclusions.range_of(matching)
            landing = self.exclusions.business_day_from(matching) if excluded else matching
            if landing < day and (nearest is None or landing > nearest):
                nearest = landing
            matching = self._previous_matching(excluded.first if excluded else matching, limit)
        return nearest

    def _next_matching(self, day: date, limit: date) -> date | None:
        nearest = None
        for pattern in self.patterns:
            found = pattern.next_date(day, limit)
            if found is not None:
                nearest = limit = found
        return nearest

    def _previous_matching(self, day: date, limit: date) -> date | None:
        nearest = None
        for pattern in self.patterns:
            found = pattern.previous_date(day, limit)
            if found is not None:
                nearest = limit = found
        return nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Day:
    """A regular date. Its tables may share times: what is listed or counted is their union."""

    midnight: datetime
    tables: list[Sequence[int]]

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for second in self._seconds(start, end):
            yield self.midnight + _SECOND * second

    def count_between(self, start: datetime, end: datetime) -> int:
        return len(self._seconds(start, end))

    def _seconds(self, start: datetime, end: datetime) -> Sequence[int]:
        low, high = (-((self.midnight - instant) // _SECOND) for instant in (start, end))  # rounded up
        slices = [table[bisect_left(table, low) : bisect_left(table, high)] for table in self.tables]
        return slices[0] if len(slices) == 1 else sorted(set().union(*slices))


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


def _later(tables: list[Sequence[int]], second: int) -> int | None:
    """The first time of day that is later than `second`."""
    soonest = None
    for table in tables:
        index = bisect_right(table, second)
        if index < len(table) and (soonest is None or table[index] < soonest):
            soonest = table[index]
    return soonest


def _not_later(tables: list[Sequence[int]], second: int) -> int | None:
    """The last time of day that is not later than `second`."""
    latest = None
    for table in tables:
        index = bisect_right(table, second)
        if index and (latest is None or table[index - 1] > latest):
            latest = table[index - 1]
    return latest


def _second_of_day(local: datetime) -> int:
    return 3600 * local.hour + 60 * local.minute + local.second
