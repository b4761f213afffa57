"""From a schedule that is due to the rows that its instants become. Tick and every edit decide by this."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from scheduler.core import catchup
from scheduler.core.catchup import CatchUp, Instants, PlannedOccurrence
from scheduler.core.identity import whole_millisecond
from scheduler.core.overlap import Overlap
from scheduler.core.rest import Mode
from scheduler.core.spread import dispatch_offset
from scheduler.core.triggers import Moment, Trigger, trigger_of


@dataclass(frozen=True, kw_only=True, slots=True)
class DueSchedule:
    """A schedule's position in time and what of its revision decides about due instants.

    `counted_runs`: nominal runs that were not skipped; known only where `max_occurrences` asks for it.
    `kept_runs` of them were counted before, the others were counted anew.
    """

    id: UUID
    tenant_id: UUID
    shard: int
    revision: int
    next_due_at: datetime
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    exclusions: list[dict[str, Any]]
    on_excluded: str
    calendars: dict[str, list[Any]]
    mode: str
    max_occurrences: int | None
    counted_runs: int | None
    kept_runs: int
    flexible_window_s: int
    catch_up: str
    catch_up_limit: int
    catch_up_window_s: int | None
    catch_up_after_s: int
    overlap: str

    @property
    def recounted(self) -> int:
        return (self.counted_runs or self.kept_runs) - self.kept_runs


@dataclass(frozen=True, kw_only=True, slots=True)
class NewOccurrence:
    id: UUID
    due_at: datetime
    dispatch_at: datetime
    overlap: str
    skip_reason: str | None
    overdue: bool
    coalesced: int
    coalesced_from: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What one schedule's row goes through: from `due.next_due_at` to `next_due_at`, leaving these rows.

    Without a next instant the schedule is completed, or `rests` until a run of its has ended.
    """

    due: DueSchedule
    next_due_at: datetime | None
    occurrences: tuple[NewOccurrence, ...]
    rests: bool = False

    @property
    def collapsed(self) -> int:
        """How many instants a `run_all` could not keep as runs of their own: worth an alert."""
        if self.due.catch_up != CatchUp.RUN_ALL:
            return 0
        kept = [row for row in self.occurrences if row.skip_reason is None]
        return sum(row.coalesced - 1 for row in kept if row.coalesced)


def plan_move(
    due: DueSchedule,
    *,
    now: datetime,
    look_ahead_s: float,
    limit: int,
    new_id: Callable[[datetime], UUID],
) -> Move:
    """Decide which instants up to `now + look_ahead_s` become rows, at most `limit` of them.

    Raises TriggerError when the stored trigger cannot be read: the caller sets that schedule aside.
    """
    trigger = trigger_of(due)
    # With a fixed delay nothing follows an instant until its run has ended.
    instants: Instants = Moment(at=due.next_due_at) if due.mode == Mode.FIXED_DELAY else trigger
    plan = catchup.plan(
        instants,
        next_due_at=due.next_due_at,
        now=now,
        look_ahead_s=look_ahead_s,
        catch_up=due.catch_up,
        catch_up_limit=due.catch_up_limit,
        catch_up_window_s=due.catch_up_window_s,
        catch_up_after_s=due.catch_up_after_s,
        batch_limit=limit,
    )
    allowed = _within_maximum(due, plan.occurrences)
    next_due_at, rests = _what_follows(due, trigger, plan, allowed, now)
    rows = tuple(_row(due, planned, new_id) for planned in allowed)
    return Move(due=due, next_due_at=next_due_at, rests=rests, occurrences=rows)


def _within_maximum(due: DueSchedule, planned: Sequence[PlannedOccurrence]) -> Sequence[PlannedOccurrence]:
    """As many as `max_occurrences` leaves; rows that never run do not count."""
    if due.max_occurrences is None:
        return planned
    left = due.max_occurrences - (due.counted_runs or 0)
    for index, row in enumerate(planned):
        if row.skip_reason is None:
            left -= 1
            if left < 0:
                return planned[:index]
    return planned


def _what_follows(
    due: DueSchedule,
    trigger: Trigger,
    plan: catchup.Plan,
    allowed: Sequence[PlannedOccurrence],
    now: datetime,
) -> tuple[datetime | None, bool]:
    if due.max_occurrences is not None:
        runs = sum(row.skip_reason is None for row in allowed) + (due.counted_runs or 0)
        if runs >= due.max_occurrences:
            return None, True
    if due.mode == Mode.FIXED_DELAY and allowed:
        skipped = allowed[-1].skip_reason is not None  # it has ended as it was born
        return (trigger.next_after_end(now), False) if skipped else (None, True)
    return plan.next_due_at, False


def _row(due: DueSchedule, planned: PlannedOccurrence, new_id: Callable[[datetime], UUID]) -> NewOccurrence:
    due_at = whole_millisecond(planned.due_at)
    return NewOccurrence(
        id=new_id(planned.due_at),
        due_at=due_at,
        dispatch_at=due_at + dispatch_offset(due.id, due.flexible_window_s),
        overlap=_overlap(due, planned),
        skip_reason=planned.skip_reason,
        overdue=planned.overdue,
        coalesced=planned.coalesced,
        coalesced_from=planned.coalesced_from,
    )


def _overlap(due: DueSchedule, planned: PlannedOccurrence) -> str:
    """Missed instants that all run wait for each other, in order, unless they may overlap anyway."""
    waits = planned.overdue and due.catch_up == CatchUp.RUN_ALL and due.overlap != Overlap.ALLOW
    return Overlap.BUFFER_ALL if waits else due.overlap


def horizon(now: datetime, look_ahead_s: float) -> datetime:
    return now + timedelta(seconds=look_ahead_s)
