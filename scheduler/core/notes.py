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
    moved: list[datetime] = []
    skipped: list[datetime] = []
    for oddity in clock.oddities_between(earlier, instant):
        if oddity.gap_end is None:
            if instant in oddity.instants:
                yield _on_pass(oddity, instant)
        elif instant in oddity.instants:
            moved.append(oddity.local)
        elif not oddity.instants and earlier < oddity.gap_end <= instant:
            skipped.append(oddity.local)
    if moved:
        yield f"{_listed(moved)} does not exist in {clock.zone.key}: moved to the end of the gap."
    if skipped:
        yield f"{_listed(skipped)} does not exist in {clock.zone.key}: skipped."


def _on_pass(oddity: Resolution, instant: datetime) -> str:
    number = "first" if instant == oddity.existing[0] else "second"
    counted = "both passes fire" if len(oddity.instants) > 1 else "only this pass fires"
    return f"{oddity.local:%Y-%m-%d %H:%M} occurs twice: this is the {number} pass, and {counted}."


def on_exclusions(clock: WallClock, earlier: datetime, instant: datetime) -> Iterator[str]:
    """The dates since the instant before on which the schedule rested."""
    excluded = list(clock.excluded_dates(earlier, instant)) if clock.exclusions else []
    if excluded:
        outcome = "moved to the next business day" if clock.exclusions.moves else "skipped"
        yield f"{_listed(excluded)} is excluded: {outcome}."


def _listed(moments: list[datetime] | list[date]) -> str:
    texts = [
        f"{moment:%Y-%m-%d %H:%M}" if isinstance(moment, datetime) else f"{moment}" for moment in moments
    ]
    if len(texts) > _LISTED:
        return f"{', '.join(texts[:_LISTED])} and {len(texts) - _LISTED} more"
    return ", ".join(texts)
