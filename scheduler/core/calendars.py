"""Dates on which a schedule rests, and where its instants go instead."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from typing import Final

_DAY: Final = timedelta(days=1)
_SATURDAY: Final = 5  # date.weekday()


class OnExcluded(StrEnum):
    SKIP = "skip"
    NEXT_BUSINESS_DAY = "next_business_day"


@dataclass(frozen=True, kw_only=True, slots=True)
class DateRange:
    """Local dates from `first` to `last`, both included."""

    first: date
    last: date


@dataclass(frozen=True, kw_only=True)
class Exclusions:
    """Excluded dates as disjoint ascending ranges that do not touch each other."""

    ranges: tuple[DateRange, ...] = ()
    on_excluded: OnExcluded = OnExcluded.SKIP

    @classmethod
    def of(cls, ranges: Iterable[DateRange], on_excluded: OnExcluded) -> "Exclusions":
        return cls(ranges=tuple(_merged(ranges)), on_excluded=on_excluded)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def moves(self) -> bool:
        return bool(self.ranges) and self.on_excluded is OnExcluded.NEXT_BUSINESS_DAY

    def range_of(self, day: date) -> DateRange | None:
        """The excluded range that contains `day`, if any."""
        index = bisect_right(self.ranges, day, key=lambda excluded: excluded.first) - 1
        if index >= 0 and day <= self.ranges[index].last:
            return self.ranges[index]
        return None

    def is_business_day(self, day: date) -> bool:
        """Monday to Friday, and not excluded."""
        return day.weekday() < _SATURDAY and self.range_of(day) is None

    def business_day_from(self, day: date) -> date:
        """The first business day that is not earlier than `day`: where an excluded date's instants go."""
        while not self.is_business_day(day):
            excluded = self.range_of(day)
            day = (excluded.last if excluded else day) + _DAY
        return day

    def business_day_until(self, day: date) -> date:
        """The last business day that is not later than `day`."""
        while not self.is_business_day(day):
            excluded = self.range_of(day)
            day = (excluded.first if excluded else day) - _DAY
        return day

    def first_open(self, instant: datetime, every: timedelta) -> datetime:
        """Where a delay ends that would end at `instant`: on an excluded date it is waited for once more, as
        often as it takes, or `instant` moves to the time of day that it has on the next business day.
        """
        while (excluded := self.range_of(instant.date())) is not None:
            if self.moves:
                return instant + (self.business_day_from(instant.date()) - instant.date())
            beyond = datetime.combine(excluded.last + _DAY, time(), instant.tzinfo)
            instant += every * -((instant - beyond) // every)  # rounded up
        return instant

    def longest_rest(self) -> timedelta:
        """The longest time between two business days that an exclusion causes."""
        longest, previous = timedelta(0), date.min
        for excluded in self.ranges:
            if excluded.first < previous:  # part of the rest measured last
                continue
            previous = self.business_day_from(excluded.first)
            longest = max(longest, previous - self.business_day_until(excluded.first))
        return longest


def _merged(ranges: Iterable[DateRange]) -> list[DateRange]:
    merged: list[DateRange] = []
    for item in sorted(ranges, key=lambda excluded: excluded.first):
        if merged and item.first <= merged[-1].last + _DAY:
            last = max(merged[-1].last, item.last)
            merged[-1] = DateRange(first=merged[-1].first, last=last)
        else:
            merged.append(item)
    return merged
