"""What a preview says about an instant, in words: what clock, calendar and day rule did to it."""

from collections.abc import Iterator
from datetime import date, datetime
from typing import Final

from scheduler.core.cron import CronExpression, DayMatch
from scheduler.core.dst import Resolution
from scheduler.core.walltime import WallClock

_LISTED: Final = 5

_DAY_RULES: Final = {
    DayMatch.CLASSIC: "fires when either matches (day_match 'classic')",
    DayMatch.EITHER: "fires when either matches (day_match 'either')",
    DayMatch.BOTH: "fires only when both match (day_match 'both')",
}


def on_day_fields(clock: WallClock) -> Iterator[str]:
    for pattern in clock.patterns:
        if isinstance(pattern, CronExpression) and pattern.restricts_both_day_fields:
            rule = _DAY_RULES[pattern.day_match]
            yield f"'{pattern.text}' restricts day-of-month and day-of-week: it {rule}."


def on_clock_jumps(clock: WallClock, earlier: datetime, instant: datetime) -> Iterator[str]:
    """Notes on `instant`, and on the local times that were skipped since the instant before it."""
    skipped: list[datetime] = []
    for resolution in clock.oddities_between(earlier, instant):
        if instant in resolution.instants:
            yield from _on_fired(resolution, instant, clock)
        elif (
            resolution.gap_end is not None
            and not resolution.instants
            and earlier < resolution.gap_end <= instant
        ):
            skipped.append(resolution.local)
    if skipped:
        yield f"Skipped {_listed(skipped)}: the clock of {clock.zone.key} jumps over it."


def _on_fired(resolution: Resolution, instant: datetime, clock: WallClock) -> Iterator[str]:
    if resolution.gap_end is not None:
        moved_to = instant.astimezone(clock.zone)
        yield (
            f"{resolution.local:%Y-%m-%d %H:%M} does not exist in {clock.zone.key}: "
            f"moved to {moved_to:%Y-%m-%d %H:%M}, when the clock has jumped."
        )
    elif len(resolution.existing) > 1:
        number = "first" if instant == resolution.existing[0] else "second"
        passes = len(resolution.instants)
        counted = "both passes fire" if passes > 1 else "only this pass fires"
        yield f"{resolution.local:%Y-%m-%d %H:%M} occurs twice: this is the {number} pass, and {counted}."


def on_exclusions(clock: WallClock, earlier: datetime, instant: datetime) -> Iterator[str]:
    """The excluded dates since the instant before, the day of `instant` not included."""
    excluded = list(clock.excluded_dates(earlier, instant)) if clock.exclusions else []
    if excluded:
        outcome = "moved here" if clock.exclusions.moves else "skipped"
        yield f"Excluded dates since the instant before, {outcome}: {_listed(excluded)}."


def _listed(moments: list[datetime] | list[date]) -> str:
    texts = [
        f"{moment:%Y-%m-%d %H:%M}" if isinstance(moment, datetime) else f"{moment}" for moment in moments
    ]
    if len(texts) > _LISTED:
        return f"{', '.join(texts[:_LISTED])} and {len(texts) - _LISTED} more"
    return ", ".join(texts)
