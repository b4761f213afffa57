"""An interval as dates and times of day in UTC: what it takes to rest on excluded dates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

_DAY: Final = timedelta(days=1)
_DAY_S: Final = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """`first + k * every_s` for k >= 0, in whole seconds. A `walltime.Pattern`."""

    first: datetime
    every_s: int

    @property
    def is_rolling(self) -> bool:
        return True

    def seconds_on(self, day: date) -> Sequence[int]:
        return range(self._first_second(day), _DAY_S, self.every_s)

    def next_date(self, day: date, limit: date) -> date | None:
        begin = day + _DAY
        found = (_midnight(begin) + timedelta(seconds=self._first_second(begin))).date()
        return found if found <= limit else None

    def previous_date(self, day: date, limit: date) -> date | None:
        since_first_s = (_midnight(day) - self.first) // timedelta(seconds=1)
        if since_first_s <= 0:
            return None
        steps = (since_first_s - 1) // self.every_s
        found = (self.first + timedelta(seconds=steps * self.every_s)).date()
        return found if found >= limit else None

    def _first_second(self, day: date) -> int:
        """From that midnight to the first instant not before it, which may lie on a later date."""
        until_first_s = (self.first - _midnight(day)) // timedelta(seconds=1)
        return until_first_s if until_first_s >= 0 else until_first_s % self.every_s


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
