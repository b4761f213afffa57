"""From a schedule that is due to the rows its instants become. The tick and every edit decide by this."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from scheduler.core import catchup
from scheduler.core.identity import whole_millisecond
from scheduler.core.triggers import Trigger, parse_trigger


@dataclass(frozen=True, kw_only=True, slots=True)
class DueSchedule:
    """A schedule's position in time and what of its revision decides about due instants."""

    id: UUID
    tenant_id: UUID
    shard: int
    revision: int
    next_due_at: datetime
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    catch_up: str
    catch_up_after_s: int
    overlap: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NewOccurrence:
    id: UUID
    due_at: datetime
    skip_reason: str | None
    overdue: bool
    coalesced: int
    coalesced_from: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What one schedule's row goes through: from `due.next_due_at` to `next_due_at`, leaving these rows."""

    due: DueSchedule
    next_due_at: datetime | None  # None: the trigger has no further instant
    occurrences: tuple[NewOccurrence, ...]


def trigger_of(due: DueSchedule) -> Trigger:
    return parse_trigger(due.trigger, start_at=due.start_at, end_at=due.end_at)


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
    plan = catchup.plan(
        trigger_of(due),
        next_due_at=due.next_due_at,
        now=now,
        look_ahead_s=look_ahead_s,
        catch_up=due.catch_up,
        catch_up_limit=100,
        catch_up_window_s=None,
        catch_up_after_s=due.catch_up_after_s,
        batch_limit=limit,
    )
    return Move(
        due=due,
        next_due_at=plan.next_due_at,
        occurrences=tuple(
            NewOccurrence(
                id=new_id(planned.due_at),
                due_at=whole_millisecond(planned.due_at),
                skip_reason=planned.skip_reason,
                overdue=planned.overdue,
                coalesced=planned.coalesced,
                coalesced_from=planned.coalesced_from,
            )
            for planned in plan.occurrences
        ),
    )


def horizon(now: datetime, look_ahead_s: float) -> datetime:
    return now + timedelta(seconds=look_ahead_s)
