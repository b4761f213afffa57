"""Schedules paused, resumed and deleted."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from scheduler.errors import Conflict, FieldError, ValidationFailed
from scheduler.models import (
    PauseInterval,
    Schedule,
    ScheduleState,
)
from scheduler.operations.audit import record_change
from scheduler.operations.editing import current_of
from scheduler.operations.timeline import aim_at, lock_schedule, take_back, what_is_ahead
from scheduler.orm import database_time, raw_connection
from scheduler.store import schedules
from tenants.models import Tenant
from tenants.operations import Actor


@transaction.atomic
def pause_schedule(tenant: Tenant, schedule_id: UUID, *, note: str = "", actor: Actor) -> Schedule:
    """After this commits no nominal run due later than the pause starts. Paused already: nothing changes."""
    schedule = lock_schedule(tenant, schedule_id)
    if schedule.state == ScheduleState.PAUSED:
        return schedule
    if schedule.state not in (ScheduleState.ACTIVE, ScheduleState.COMPLETED):
        raise Conflict(f"The schedule is {schedule.state}.", state=schedule.state)
    now = database_time()
    current = current_of(schedule)
    left = take_back(current, now)
    # A tick that has planned the last instant calls the schedule completed while that still lies ahead.
    if schedule.state == ScheduleState.COMPLETED:
        ahead = what_is_ahead(schedule, current.revision, left.goes_on_from)
        if ahead.next_due_at is None and not ahead.rests:
            raise Conflict("The schedule is completed.", state=schedule.state)
    PauseInterval.objects.create(
        schedule=schedule, began_at=left.accounted_until, paused_by=actor.name[:200], note=note
    )
    _move_to(schedule, ScheduleState.PAUSED, note=note, now=now)
    record_change(actor, "schedule.pause", schedule, at=now, after={"note": note})
    return schedule


@transaction.atomic
def resume_schedule(
    tenant: Tenant, schedule_id: UUID, *, resume: str = "from_now", note: str = "", actor: Actor
) -> Schedule:
    """Go on from now, or (`catch_up`) from where the pause or a later edit began, so that the catch-up policy
    decides about the instants since then. Active already: nothing changes."""
    _check_resume(resume)
    schedule = lock_schedule(tenant, schedule_id)
    if schedule.state == ScheduleState.ACTIVE:
        return schedule
    if schedule.state != ScheduleState.PAUSED:
        raise Conflict(f"The schedule is {schedule.state}.", state=schedule.state)
    now = database_time()
    revision = current_of(schedule).revision
    pause = schedule.pauses.get(ended_at=None)
    resumed_from = max(now, schedule.last_due_at) if schedule.last_due_at else now
    if resume == "catch_up":
        resumed_from = max(pause.began_at, revision.effective_from)
    schedule.pauses.filter(pk=pause.pk).update(ended_at=now, resumed_from=resumed_from)
    _move_to(schedule, ScheduleState.ACTIVE, note=note, now=now)
    aim_at(schedule, revision, resumed_from)
    schedule.save()
    record_change(actor, "schedule.resume", schedule, at=now, after={"note": note, "resume": resume})
    return schedule


def _check_resume(resume: str) -> None:
    if resume not in ("from_now", "catch_up"):
        detail = "use 'from_now' or 'catch_up'."
        raise ValidationFailed(FieldError(field="resume", code="invalid_choice", detail=detail))


@transaction.atomic
def delete_schedule(tenant: Tenant, schedule_id: UUID, *, actor: Actor) -> None:
    """Cancel the schedule and what of it has not started; ask running runs to stop. Idempotent."""
    schedule = lock_schedule(tenant, schedule_id)
    if schedule.state != ScheduleState.CANCELLED:
        delete(schedule, actor=actor)


def delete(schedule: Schedule, *, actor: Actor) -> None:
    now = database_time()
    schedules.lock_slot(raw_connection(), schedule.id)  # before any run: the order that everybody keeps
    left = take_back(current_of(schedule), now)
    schedule.revisions.filter(number=schedule.revision).update(ended_at=left.accounted_until)
    schedule.pauses.filter(ended_at=None).update(ended_at=now, resumed_from=left.goes_on_from)
    cancelled = _cancel_unfinished(schedule.id, now)
    _move_to(schedule, ScheduleState.CANCELLED, note="", now=now)
    record_change(actor, "schedule.delete", schedule, at=now, after={"runs_cancelled": cancelled})


def _cancel_unfinished(schedule_id: UUID, now: datetime) -> int:
    connection = raw_connection()
    unfinished = schedules.lock_unfinished(connection, schedule_id)
    return len(schedules.cancel(connection, unfinished, now=now))


def _move_to(schedule: Schedule, state: ScheduleState, *, note: str, now: datetime) -> None:
    schedule.state = state
    schedule.state_note = note
    schedule.next_due_at = None
    schedule.updated_at = now
    schedule.save()
