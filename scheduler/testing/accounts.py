"""I1: every due instant has exactly one run, or one reason. Nominal time is held against the ledger."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import chain, groupby
from typing import TypeAlias
from uuid import UUID

from scheduler.core.identity import whole_millisecond
from scheduler.core.triggers import Trigger, TriggerError, parse_trigger
from scheduler.store.invariants import Breach, NominalRow, Reign, Window

_MICROSECOND = timedelta(microseconds=1)

Entry: TypeAlias = Reign | NominalRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """A due instant and the revision in force at it."""

    due_at: datetime
    revision: int


def unbalanced(reigns: Iterable[Reign], rows: Iterable[NominalRow], window: Window) -> Iterator[Breach]:
    """What is missing or surplus. Both inputs are ordered by schedule id descending, and read once."""
    entries: Iterator[Entry] = merge(reigns, rows, key=_reigns_first)
    for schedule_id, of_schedule in groupby(entries, key=lambda entry: entry.schedule_id):
        yield from _balance(schedule_id, of_schedule, window)


def _reigns_first(entry: Entry) -> tuple[int, bool]:
    return -entry.schedule_id.int, isinstance(entry, NominalRow)


def _balance(schedule_id: UUID, entries: Iterator[Entry], window: Window) -> Iterator[Breach]:
    reigns, rows = _split(entries)
    try:
        triggers = [_trigger(reign) for reign in reigns if not reign.faulted]
    except TriggerError as error:
        yield Breach(subject=str(schedule_id), detail=f"its trigger cannot be read: {error}")
        return
    readable = [reign for reign in reigns if not reign.faulted]
    expected = _Timeline(chain.from_iterable(map(_instants, readable, triggers)))
    for row in rows:
        for problem in _settle(row, expected, window):
            yield Breach(subject=str(schedule_id), detail=problem)
    for gap in _missing(expected.take_to(window.until)):
        yield Breach(subject=str(schedule_id), detail=gap)


def _split(entries: Iterator[Entry]) -> tuple[list[Reign], Iterator[NominalRow]]:
    """The few revisions as a list, the many rows still as a stream."""
    reigns: list[Reign] = []
    for entry in entries:
        if isinstance(entry, NominalRow):
            return reigns, (row for row in chain([entry], entries) if isinstance(row, NominalRow))
        reigns.append(entry)
    return reigns, iter(())


class _Timeline:
    """Due instants in order, taken off the front as rows account for them."""

    def __init__(self, instants: Iterator[Instant]) -> None:
        self._instants = instants
        self._next = next(instants, None)

    def take_before(self, end: datetime) -> Iterator[Instant]:
        while self._next is not None and self._next.due_at < end:
            yield self._advance(self._next)

    def take_to(self, end: datetime, revision: int | None = None) -> Iterator[Instant]:
        """Up to and including `end`; only while `revision`, if given, is in force."""
        while self._next is not None and self._next.due_at <= end:
            if revision is not None and self._next.revision != revision:
                return
            yield self._advance(self._next)

    def _advance(self, instant: Instant) -> Instant:
        self._next = next(self._instants, None)
        return instant


def _settle(row: NominalRow, expected: _Timeline, window: Window) -> Iterator[str]:
    """Take the instants that `row` stands for off the timeline; say what does not fit."""
    begins = row.coalesced_from or row.due_at
    yield from _missing(expected.take_before(begins))
    if row.called_off:
        deque(expected.take_to(row.due_at), maxlen=0)  # the reason for its instant, if that is still due
        return
    count, last = 0, None
    for instant in expected.take_to(row.due_at, row.revision):
        count, last = count + 1, instant.due_at
    inside = (window.since is None or begins > window.since) and row.due_at <= window.until
    if not inside:
        return
    if last != row.due_at:
        yield f"{_when(row.due_at)} has a run of revision {row.revision}, but is none of its due instants"
    elif count != max(row.coalesced, 1):
        yield (
            f"the run of {_when(row.due_at)} stands for {max(row.coalesced, 1)} instants from"
            f" {_when(begins)} on; there are {count}"
        )


def _missing(instants: Iterator[Instant]) -> Iterator[str]:
    """One sentence for a whole gap, however long."""
    first = next(instants, None)
    if first is None:
        return
    count, last = 1, first
    for instant in instants:
        count, last = count + 1, instant
    span = _when(first.due_at) if count == 1 else f"{_when(first.due_at)} to {_when(last.due_at)}"
    yield f"{count} due {'instant' if count == 1 else 'instants'} without run or reason: {span}"


def _trigger(reign: Reign) -> Trigger:
    return parse_trigger(reign.trigger, start_at=reign.start_at, end_at=reign.end_at)


def _instants(reign: Reign, trigger: Trigger) -> Iterator[Instant]:
    """Of (begins_after, ends_at], less (began, resumed] of each pause."""
    for begin, end in _stretches(reign):
        for instant in trigger.between(begin + _MICROSECOND, end + _MICROSECOND):
            yield Instant(due_at=whole_millisecond(instant), revision=reign.revision)


def _stretches(reign: Reign) -> Iterator[tuple[datetime, datetime]]:
    begin = reign.begins_after
    for began, resumed in zip(reign.paused_at, reign.resumed_from, strict=True):
        if begin < min(began, reign.ends_at):
            yield begin, min(began, reign.ends_at)
        begin = max(begin, resumed)
    if begin < reign.ends_at:
        yield begin, reign.ends_at


def _when(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
