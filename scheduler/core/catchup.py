"""Missed instants: which occurrences a round makes, given what a schedule was due for.

An instant is missed when the round meets it more than `catch_up_after_s` late. If one is, all instants up to
the round's now belong to the same catch-up; those after now, up to the look-ahead, are planned as usual.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

_MICROSECOND: Final = timedelta(microseconds=1)


class CatchUp(StrEnum):
    RUN_LATEST_ONLY = "run_latest_only"
    RUN_ALL = "run_all"
    SKIP = "skip"


class Instants(Protocol):
    """What a plan needs of a trigger."""

    def next_after(self, instant: datetime) -> datetime | None: ...
    def previous_at_or_before(self, instant: datetime) -> datetime | None: ...
    def count_between(self, start: datetime, end: datetime) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedOccurrence:
    """One row to insert.

    `coalesced` is how many instants the row stands for, its own included, and `coalesced_from` the first of
    them; 0 and None on a row that stands for its own instant alone. `skip_reason` is set on a row that is
    written for the record and never runs.
    """

    due_at: datetime
    overdue: bool = False
    coalesced: int = 0
    coalesced_from: datetime | None = None
    skip_reason: str | None = None

    @property
    def first_instant(self) -> datetime:
        return self.coalesced_from or self.due_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The rows in order of time, and the first instant that they do not account for."""

    occurrences: tuple[PlannedOccurrence, ...]
    next_due_at: datetime | None


def plan(
    trigger: Instants,
    *,
    next_due_at: datetime,
    now: datetime,
    look_ahead_s: float,
    catch_up: str,
    catch_up_limit: int,
    catch_up_window_s: float | None,
    catch_up_after_s: float,
    batch_limit: int,
) -> Plan:
    """The occurrences of one schedule in one round, at most `batch_limit` of them.

    `next_due_at` is taken as an instant even where the trigger no longer says so (new zone data, a fixed
    delay): what was stored as due is due. Every instant from it up to the look-ahead is accounted for by
    exactly one row, or is at or after the plan's `next_due_at`.
    """
    backlog = _Backlog(trigger=trigger, first=next_due_at)
    horizon = now + timedelta(seconds=look_ahead_s)
    planned: Iterator[PlannedOccurrence]
    if now > next_due_at + timedelta(seconds=catch_up_after_s):
        window_begin = None if catch_up_window_s is None else now - timedelta(seconds=catch_up_window_s)
        planned = _missed(backlog, CatchUp(catch_up), catch_up_limit, window_begin, now, horizon)
    else:
        planned = _ordinary(backlog.since(next_due_at), horizon)
    chosen = list(islice(planned, batch_limit + 1))
    if len(chosen) > batch_limit:
        return Plan(occurrences=tuple(chosen[:batch_limit]), next_due_at=chosen[batch_limit].first_instant)
    following = backlog.first_after(chosen[-1].due_at) if chosen else next_due_at
    return Plan(occurrences=tuple(chosen), next_due_at=following)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Backlog:
    """The instants from `first` on, `first` itself among them whatever the trigger says."""

    trigger: Instants
    first: datetime

    def since(self, instant: datetime | None) -> Iterator[datetime]:
        while instant is not None:
            yield instant
            instant = self.trigger.next_after(instant)

    def first_after(self, instant: datetime) -> datetime | None:
        return self.trigger.next_after(instant) if instant >= self.first else self.first

    def latest_until(self, instant: datetime) -> datetime:
        """The last instant at or before `instant`, which is not before `first`."""
        found = self.trigger.previous_at_or_before(instant)
        return self.first if found is None or found < self.first else found

    def count(self, begin: datetime, end: datetime) -> int:
        """How many instants lie in [begin, end], where `begin` is one of them."""
        return 1 + self.trigger.count_between(begin + _MICROSECOND, end + _MICROSECOND)


def _ordinary(instants: Iterator[datetime], horizon: datetime) -> Iterator[PlannedOccurrence]:
    for instant in instants:
        if instant > horizon:
            return
        yield PlannedOccurrence(due_at=instant)


def _missed(
    backlog: _Backlog,
    policy: CatchUp,
    limit: int,
    window_begin: datetime | None,
    now: datetime,
    horizon: datetime,
) -> Iterator[PlannedOccurrence]:
    """The rows of a catch-up, then the ordinary ones after now."""
    begin: datetime | None = backlog.first
    if window_begin is not None and backlog.first < window_begin:
        too_old = backlog.latest_until(window_begin - _MICROSECOND)
        yield _summary(backlog, backlog.first, too_old, skip_reason="missed")
        begin = backlog.first_after(too_old)
    if begin is not None and begin <= now:
        latest = backlog.latest_until(now)
        if policy is CatchUp.RUN_ALL:
            yield from _each(backlog, begin, latest, limit)
        else:
            skip_reason = "missed" if policy is CatchUp.SKIP else None
            yield _summary(backlog, begin, latest, skip_reason=skip_reason)
        begin = backlog.first_after(latest)
    yield from _ordinary(backlog.since(begin), horizon)


def _summary(
    backlog: _Backlog, begin: datetime, latest: datetime, *, skip_reason: str | None = None
) -> PlannedOccurrence:
    """One row at `latest` for every instant of [begin, latest]."""
    return PlannedOccurrence(
        due_at=latest,
        overdue=True,
        coalesced=backlog.count(begin, latest),
        coalesced_from=begin,
        skip_reason=skip_reason,
    )


def _each(backlog: _Backlog, begin: datetime, latest: datetime, limit: int) -> Iterator[PlannedOccurrence]:
    """A row for each of the `limit` latest instants; the oldest of them also stands for what lies before."""
    oldest_kept = latest
    for _ in range(limit - 1):
        if oldest_kept <= begin:
            break
        oldest_kept = backlog.latest_until(oldest_kept - _MICROSECOND)
    if oldest_kept > begin:
        yield _summary(backlog, begin, oldest_kept)
    else:
        yield PlannedOccurrence(due_at=oldest_kept, overdue=True)
    for instant in backlog.since(backlog.first_after(oldest_kept)):
        if instant > latest:
            return
        yield PlannedOccurrence(due_at=instant, overdue=True)
