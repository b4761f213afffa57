"""Wall time to UTC: where a zone's clock jumps, and what becomes of local times that a jump hides or repeats.

A zone's offset is asked of zoneinfo and nothing else. In the pinned data no zone moves its clock twice within
six days (tests/core/test_dst.py checks it for all of them), so that a jump is alone in its neighbourhood.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_DAY_S: Final = 86400
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class Nonexistent(StrEnum):
    """What happens to a local time that the clock jumps over."""

    AUTO = "auto"
    SKIP = "skip"
    SHIFT_FORWARD = "shift_forward"


class Repeated(StrEnum):
    """Which pass of a local time counts when the clock shows it twice."""

    AUTO = "auto"
    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


@dataclass(frozen=True, kw_only=True, slots=True)
class DstPolicy:
    nonexistent: Nonexistent = Nonexistent.AUTO
    repeated: Repeated = Repeated.AUTO

    def judged(self, *, rolling: bool) -> "DstPolicy":
        """This policy with `auto` decided: what rolls follows elapsed time, the rest names a time of day."""
        nonexistent, repeated = self.nonexistent, self.repeated
        if nonexistent is Nonexistent.AUTO:
            nonexistent = Nonexistent.SKIP if rolling else Nonexistent.SHIFT_FORWARD
        if repeated is Repeated.AUTO:
            repeated = Repeated.BOTH if rolling else Repeated.FIRST
        return DstPolicy(nonexistent=nonexistent, repeated=repeated)


@dataclass(frozen=True, kw_only=True, slots=True)
class Jump:
    """A change of a zone's offset: from `at` (UTC, the first second of the new offset) on."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def last_local_before(self) -> datetime:
        """What the clock would have shown at `at`, had it not jumped (naive)."""
        return (self.at + self.before).replace(tzinfo=None)

    @property
    def first_local_after(self) -> datetime:
        return (self.at + self.after).replace(tzinfo=None)

    def dates(self) -> tuple[date, ...]:
        """The local dates whose wall times it hides, repeats or touches."""
        first, last = sorted((self.last_local_before.date(), self.first_local_after.date()))
        return tuple(first + _DAY * index for index in range((last - first).days + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """What one naive local time means: where it exists and where it fires (UTC, ascending)."""

    local: datetime
    existing: tuple[datetime, ...]
    instants: tuple[datetime, ...]
    gap_end: datetime | None = None  # set when it does not exist


@lru_cache(maxsize=16384)
def jump_at(zone: ZoneInfo, day: date) -> Jump | None:
    """The jump that hides, repeats or touches wall times of this local date, if there is one.

    Such a jump lies within a day of the date as UTC counts it, and is alone there: where the offset is the
    same on both sides, there is none.
    """
    left = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) - _DAY_S
    right = left + 3 * _DAY_S
    before, after = _offset(zone, left), _offset(zone, right)
    if before == after:
        return None
    jump = Jump(at=_first_second_of(zone, after, left, right), before=before, after=after)
    return jump if day in jump.dates() else None


def _first_second_of(zone: ZoneInfo, offset: timedelta, left: int, right: int) -> datetime:
    """The first second in (left, right] at which the zone has `offset`, by bisection."""
    while right - left > 1:
        middle = (left + right) // 2
        if _offset(zone, middle) == offset:
            right = middle
        else:
            left = middle
    return datetime.fromtimestamp(right, UTC)


def _offset(zone: ZoneInfo, epoch_s: int) -> timedelta:
    offset = datetime.fromtimestamp(epoch_s, zone).utcoffset()
    assert offset is not None, "a ZoneInfo always knows its offset"
    return offset


def is_regular(zone: ZoneInfo, day: date) -> bool:
    """Whether every wall time of this local date exists exactly once, at one offset."""
    return jump_at(zone, day) is None


def irregular_run(zone: ZoneInfo, day: date) -> tuple[date, date]:
    """First and last of the consecutive irregular dates around `day`.

    Near a jump the order of local times is not the order of instants, even across midnight (St. John's used
    to go back at 00:01). Outside such a run the instants of one date all precede those of the next.
    """
    first = last = day
    while not is_regular(zone, first - _DAY):
        first -= _DAY
    while not is_regular(zone, last + _DAY):
        last += _DAY
    return first, last


def jumps_of_run(zone: ZoneInfo, first: date, last: date) -> tuple[Jump, ...]:
    """The jumps behind a run of irregular dates, in order."""
    dates = (first + _DAY * index for index in range((last - first).days + 1))
    jumps = {jump.at: jump for day in dates if (jump := jump_at(zone, day)) is not None}
    return tuple(jumps[at] for at in sorted(jumps))


def resolve_day(
    day: date, seconds: Sequence[int], jumps: tuple[Jump, ...], policy: DstPolicy
) -> tuple[list[datetime], list[Resolution]]:
    """The instants of the ordinary times of a local date, and what becomes of the missing and doubled ones.

    Two jumps are days apart, so that between the wall times which they touch one offset holds.
    """
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    ordinary: list[datetime] = []
    odd: list[Resolution] = []
    done, offset = 0, jumps[0].before
    for jump in jumps:
        first, beyond = sorted((jump.at + jump.before, jump.at + jump.after))
        low, high = (bisect_left(seconds, -((midnight - wall) // _SECOND)) for wall in (first, beyond))
        ordinary += [midnight - offset + _SECOND * second for second in seconds[done:low]]
        odd += [
            resolve((midnight + _SECOND * second).replace(tzinfo=None), jumps, policy)
            for second in seconds[low:high]
        ]
        done, offset = high, jump.after
    ordinary += [midnight - offset + _SECOND * second for second in seconds[done:]]
    return ordinary, odd


def resolve(local: datetime, jumps: tuple[Jump, ...], policy: DstPolicy) -> Resolution:
    """The instants of a naive local time, given the (one or more) jumps of its neighbourhood.

    The offset is constant between two jumps; the local time exists once for each stretch that contains
    `local - offset`. Asking each stretch also gets right what fold=0/1 cannot say.
    """
    existing = _existing(local, jumps)
    if existing:
        return Resolution(local=local, existing=existing, instants=_passes(existing, policy))
    gap_end = next(jump.at for jump in jumps if jump.last_local_before <= local < jump.first_local_after)
    shifted = (gap_end,) if policy.nonexistent is Nonexistent.SHIFT_FORWARD else ()
    return Resolution(local=local, existing=(), instants=shifted, gap_end=gap_end)


def _existing(local: datetime, jumps: tuple[Jump, ...]) -> tuple[datetime, ...]:
    as_utc = local.replace(tzinfo=UTC)
    instants = []
    begin = _LONG_AGO
    offset = jumps[0].before
    for jump in jumps:
        if begin <= as_utc - offset < jump.at:
            instants.append(as_utc - offset)
        begin, offset = jump.at, jump.after
    if begin <= as_utc - offset:
        instants.append(as_utc - offset)
    return tuple(instants)


def _passes(existing: tuple[datetime, ...], policy: DstPolicy) -> tuple[datetime, ...]:
    if policy.repeated is Repeated.BOTH:
        return existing
    return existing[-1:] if policy.repeated is Repeated.SECOND else existing[:1]


def time_of_day(local: datetime, zone: ZoneInfo) -> datetime:
    """The instant of one naive local time, as a daily job takes it: after the gap, or the first of two."""
    if is_regular(zone, local.date()):
        return local.replace(tzinfo=zone).astimezone(UTC)
    jumps = jumps_of_run(zone, *irregular_run(zone, local.date()))
    return resolve(local, jumps, DstPolicy().judged(rolling=False)).instants[0]
