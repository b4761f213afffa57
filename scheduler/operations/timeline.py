"""The ledger under a schedule that changes: what is due is settled, what lies ahead is taken back."""

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from scheduler.core import identity, rest
from scheduler.core.errors import TriggerError
from scheduler.core.materialise import plan_move
from scheduler.core.rest import Aim, Mode
from scheduler.core.triggers import trigger_of
from scheduler.definitions import Current, Definition
from scheduler.errors import Conflict, NotFound
from scheduler.models import (
    Schedule,
    ScheduleRevision,
    ScheduleState,
)
from scheduler.orm import raw_connection
from scheduler.store import due, schedules
from scheduler.store.rest import nominal_runs
from tenants.access import scoped
from tenants.models import Tenant

_SETTLE_BATCH: Final = 1000


def aim_at(schedule: Schedule, terms: Definition | ScheduleRevision, begin: datetime) -> None:
    """Active towards an instant, or at rest; completed when there is nothing ahead."""
    found = what_is_ahead(schedule, terms, begin)
    schedule.next_due_at = found.next_due_at
    schedule.state = ScheduleState.ACTIVE if found.next_due_at or found.rests else ScheduleState.COMPLETED
    schedule.fault = ""


def what_is_ahead(schedule: Schedule, terms: Definition | ScheduleRevision, begin: datetime) -> Aim:
    """Where the schedule goes on after `begin`, by these terms and what it has run."""
    trigger = trigger_of(terms)
    if terms.mode == Mode.FIXED_RATE and terms.max_occurrences is None:
        return Aim(next_due_at=trigger.next_after(begin))
    runs = nominal_runs(raw_connection(), schedule.id, counted=terms.max_occurrences is not None)
    return rest.aim(trigger, mode=terms.mode, max_occurrences=terms.max_occurrences, runs=runs, begin=begin)


def lock_schedule(tenant: Tenant, schedule_id: UUID) -> Schedule:
    schedule = scoped(Schedule.objects.select_for_update(), tenant).filter(id=schedule_id).first()
    if schedule is None:
        raise NotFound("No such schedule.")
    return schedule


def refuse_cancelled(schedule: Schedule) -> None:
    if schedule.state == ScheduleState.CANCELLED:
        raise Conflict("The schedule is cancelled.", state=schedule.state)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Left:
    """A timeline that was left. It accounts for its instants up to `accounted_until`; the next one begins at
    `goes_on_from`, the later of now and the last instant kept. They differ where a schedule had handed out
    all its `max_occurrences`: what came after the last of them was nobody's.
    """

    accounted_until: datetime
    goes_on_from: datetime


def take_back(current: Current, now: datetime) -> _Left:
    """Leave the ledger as the definition so far has it up to `now`, and nothing of it beyond.

    What is due and not met by a tick yet becomes rows; what lies ahead is withdrawn, except what a release
    has just queued. A run that was called off ahead of its time stays too, but nothing begins at it: its
    neighbours are gone.
    """
    schedule, revision, connection = current.schedule, current.revision, raw_connection()
    settle(schedule.id, now)
    withdrawn = schedules.withdraw_look_ahead(connection, schedule.id, now=now)
    position = Schedule.objects.values("last_due_at", "next_due_at").get(id=schedule.id)
    last_due_at = position["last_due_at"]
    if withdrawn:
        last_due_at = schedules.last_nominal(connection, schedule.id, now=now)
    schedule.last_due_at = last_due_at
    goes_on_from = max(now, last_due_at) if last_due_at else now
    at_limit = (
        revision.max_occurrences is not None
        and schedule.state in (ScheduleState.ACTIVE, ScheduleState.COMPLETED)
        and position["next_due_at"] is None
        and not withdrawn
    )
    last_accounted = max(revision.effective_from, last_due_at or revision.effective_from)
    return _Left(accounted_until=last_accounted if at_limit else goes_on_from, goes_on_from=goes_on_from)


def settle(schedule_id: UUID, now: datetime) -> None:
    """Materialise what is due up to `now`, as the tick would have done next. The schedule is locked."""
    connection = raw_connection()
    while (position := due.due_schedule(connection, schedule_id)) and position.next_due_at <= now:
        try:
            move = plan_move(position, now=now, look_ahead_s=0, limit=_SETTLE_BATCH, new_id=new_run_id)
        except TriggerError:  # a stored trigger that cannot be read has no instants; an edit repairs it
            return
        due.materialise(connection, [move], now=now)


def new_run_id(due_at: datetime) -> UUID:
    return identity.run_id(due_at, os.urandom(10))
