"""Why a trigger is not due at an instant: excluded, a matter of the clock, or simply not its time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from scheduler.core.dst import Resolution
from scheduler.core.triggers import Trigger
from scheduler.core.walltime import WallClock

_MICROSECOND: Final = timedelta(microseconds=1)


class Absence(StrEnum):
    EXCLUDED = "excluded"
    DST = "dst"
    OUT_OF_BOUNDS = "out_of_bounds"
    NOT_DUE = "not_due"


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    reason: Absence
    sentence: str


def is_due(trigger: Trigger, instant: datetime) -> bool:
    return trigger.previous_at_or_before(instant) == instant


def why_not_due(trigger: Trigger, unbounded: Trigger, instant: datetime) -> Why:
    """`unbounded`: the same trigger without bounds and exclusions. `instant` is not due by `trigger`."""
    if is_due(unbounded, instant):
        return _held_back(trigger, instant)
    return _by_clock(unbounded, instant) or Why(
        reason=Absence.NOT_DUE, sentence=f"It is no due instant. {_neighbours(trigger, instant)}"
    )


def _held_back(trigger: Trigger, instant: datetime) -> Why:
    if not trigger.first <= instant <= trigger.last:
        bound, at = ("start_at", trigger.first) if instant < trigger.first else ("end_at", trigger.last)
        side = "before" if bound == "start_at" else "after"
        return Why(reason=Absence.OUT_OF_BOUNDS, sentence=f"It lies {side} {bound}, {_shown(at)}.")
    rule = trigger.rule
    assert isinstance(rule, WallClock)
    day = instant.astimezone(trigger.zone).date()
    sentence = f"{day} is excluded: skipped."
    if rule.exclusions.moves:
        sentence = f"{day} is excluded: moved to {rule.exclusions.business_day_from(day)}."
    return Why(reason=Absence.EXCLUDED, sentence=sentence)


def _by_clock(trigger: Trigger, instant: datetime) -> Why | None:
    """Local times of the schedule that the clock doubles, or hides, at this very instant."""
    if not isinstance(trigger.rule, WallClock):
        return None
    zone = trigger.zone.key
    for oddity in trigger.rule.oddities_between(instant - _MICROSECOND, instant + _MICROSECOND):
        if instant in oddity.existing and oddity.instants and instant not in oddity.instants:
            number = "second" if instant == oddity.existing[-1] else "first"
            return _clock(oddity, f"occurs twice in {zone}: the {number} pass does not fire.")
        if oddity.gap_end == instant and not oddity.instants:
            return _clock(oddity, f"does not exist in {zone}: skipped.")
    return None


def _clock(oddity: Resolution, what: str) -> Why:
    return Why(reason=Absence.DST, sentence=f"{oddity.local:%Y-%m-%d %H:%M} {what}")


def _neighbours(trigger: Trigger, instant: datetime) -> str:
    before, after = trigger.previous_at_or_before(instant), trigger.next_after(instant)
    parts = [
        f"the last one before is {_shown(before)}" if before else "there is none before",
        f"the next one is {_shown(after)}" if after else "there is none after",
    ]
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _shown(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
