"""Who may have a schedule's slot: one run at a time, unless the policy is `allow`.

A slot is taken at release and goes with a terminal state only; a run that waits for it is parked. The
caller holds the slot's row locked, so that nobody parks or frees meanwhile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID


class Overlap(StrEnum):
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_RUNNING = "cancel_running"
    ALLOW = "allow"


class Entry(StrEnum):
    """What becomes of a run that comes to the slot."""

    ENTER = "enter"
    SKIP = "skip"
    PARK = "park"


@dataclass(kw_only=True, slots=True)
class Slot:
    """A slot as read under its lock, and as the batch leaves it.

    `parked` counts the runs that wait; `first_parked` is the one whose turn is next, `replaceable` the one
    that waits only until a newer one comes. `holder_is_promised`: see `is_promised`.
    """

    holder: UUID | None = None
    holder_due_at: datetime | None = None
    holder_is_promised: bool = False
    parked: int = 0
    first_parked: UUID | None = None
    replaceable: UUID | None = None


class Comer(Protocol):
    """A run that comes to the slot, in order of its due instant."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def due_at(self) -> datetime: ...
    @property
    def overlap(self) -> str: ...
    @property
    def buffer_limit(self) -> int: ...
    @property
    def is_parked(self) -> bool: ...
    @property
    def overdue(self) -> bool: ...
    @property
    def asked_anew(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`displaced`: the parked run that a newer one replaces. `cancel_holder`: the active one is to stop."""

    entry: Entry
    displaced: UUID | None = None
    cancel_holder: bool = False


def admit(comer: Comer, slot: Slot) -> Verdict:
    """Decide, and leave `slot` as it is after that."""
    if slot.holder in (None, comer.run_id) and _is_next(comer, slot):
        _enter(comer, slot)
        return Verdict(entry=Entry.ENTER)
    return _WAITING[Overlap(comer.overlap)](comer, slot)


def _is_next(comer: Comer, slot: Slot) -> bool:
    """Runs enter in order: a newer one goes behind those that are parked already. A retry kept the slot."""
    return slot.holder == comer.run_id or slot.first_parked in (None, comer.run_id)


def _enter(comer: Comer, slot: Slot) -> None:
    slot.holder, slot.holder_due_at = comer.run_id, comer.due_at
    slot.holder_is_promised = is_promised(comer)
    if slot.first_parked == comer.run_id:
        slot.parked -= 1
        slot.first_parked = None  # whoever is next is found when this one ends
    if slot.replaceable == comer.run_id:
        slot.replaceable = None


def is_promised(comer: Comer) -> bool:
    """A run that was promised: a missed instant that is made good, or one that a person has redriven. Newer
    ones take neither its place in line nor its slot.

    It stands under `buffer_all` whatever its schedule's policy (see `catchup`), on its row too.
    """
    return (comer.overdue or comer.asked_anew) and comer.overlap == Overlap.BUFFER_ALL


def leave(comer: Comer, slot: Slot) -> None:
    """Out of line without having run. Who is next, if others wait, is not known here: until the next look
    nobody goes before them.
    """
    if not comer.is_parked:
        return
    slot.parked -= 1
    if slot.replaceable == comer.run_id:
        slot.replaceable = None
    if slot.first_parked == comer.run_id and slot.parked == 0:
        slot.first_parked = None


def _skip(comer: Comer, slot: Slot) -> Verdict:
    """What is parked all the same came from a catch-up that runs everything, and goes on waiting."""
    return Verdict(entry=Entry.PARK if comer.is_parked else Entry.SKIP)


def _buffer_one(comer: Comer, slot: Slot) -> Verdict:
    """At most one waits like this: a newer one takes its place. Those under `buffer_all` keep theirs."""
    if comer.is_parked:
        return Verdict(entry=Entry.PARK)
    displaced, slot.replaceable = slot.replaceable, comer.run_id
    if displaced is None:
        slot.parked += 1
    if slot.first_parked in (None, displaced):
        slot.first_parked = comer.run_id
    return Verdict(entry=Entry.PARK, displaced=displaced)


def _buffer_all(comer: Comer, slot: Slot) -> Verdict:
    if comer.is_parked:
        return Verdict(entry=Entry.PARK)
    if slot.parked >= comer.buffer_limit:
        return Verdict(entry=Entry.SKIP)
    slot.parked += 1
    slot.first_parked = slot.first_parked or comer.run_id
    return Verdict(entry=Entry.PARK)


def _cancel_running(comer: Comer, slot: Slot) -> Verdict:
    """The active run is asked to stop; the newest run waits for its end, and no other of its kind."""
    verdict = _buffer_one(comer, slot)
    stops = slot.holder is not None and not slot.holder_is_promised
    return Verdict(entry=verdict.entry, displaced=verdict.displaced, cancel_holder=stops)


_WAITING: Mapping[Overlap, Callable[[Comer, Slot], Verdict]] = {
    Overlap.SKIP: _skip,
    Overlap.BUFFER_ONE: _buffer_one,
    Overlap.BUFFER_ALL: _buffer_all,
    Overlap.CANCEL_RUNNING: _cancel_running,
}
