"""Schedules at rest: active, with no next instant until a run of theirs has ended, or is decided.

A `fixed_delay` schedule rests while its run is under way. One that has handed out all its `max_occurrences`
rests until none of them can turn into SKIPPED any more, for what was skipped does not count.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scheduler.core.triggers import Trigger


class Mode(StrEnum):
    FIXED_RATE = "fixed_rate"
    FIXED_DELAY = "fixed_delay"


@dataclass(frozen=True, kw_only=True, slots=True)
class NominalRuns:
    """The runs of a schedule's due instants so far. `counted` leaves out what was skipped, and is exact only
    where a limit asks for it; `undecided`: some may still be skipped."""

    counted: int
    undecided: bool
    last_due_at: datetime | None
    last_ended_at: datetime | None  # None: the last one has not ended, or there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """What comes next: an instant; rest; or, with neither, nothing any more."""

    next_due_at: datetime | None
    rests: bool = False


def aim(
    trigger: Trigger, *, mode: str, max_occurrences: int | None, runs: NominalRuns, begin: datetime
) -> Aim:
    """Where a schedule goes on after `begin`, given what it has run."""
    if max_occurrences is not None and runs.counted >= max_occurrences:
        return Aim(next_due_at=None, rests=runs.undecided)
    if mode == Mode.FIXED_RATE or runs.last_due_at is None:
        return Aim(next_due_at=trigger.next_after(begin))
    if runs.last_ended_at is None:
        return Aim(next_due_at=None, rests=True)
    armed = trigger.next_after_end(runs.last_ended_at)
    if armed is not None and armed <= begin:
        armed = trigger.next_after_end(begin)
    return Aim(next_due_at=armed)
