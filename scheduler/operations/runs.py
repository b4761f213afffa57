"""Runs asked for, cancelled, redriven, dismissed and reconciled."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import transaction

from scheduler import definitions
from scheduler.core import identity
from scheduler.core.states import State
from scheduler.errors import Conflict, FieldError, NotFound, ValidationFailed
from scheduler.models import Occurrence, Overlap
from scheduler.operations.audit import record_change
from scheduler.operations.editing import current_of
from scheduler.operations.timeline import lock_schedule, new_run_id, refuse_cancelled
from scheduler.orm import database_time, raw_connection, run_key
from scheduler.store import due, failures, schedules
from scheduler.store.rest import wake
from scheduler.store.statements import Connection
from tenants.access import scoped
from tenants.models import Tenant
from tenants.operations import Actor, record

SAME_REQUEST_WITHIN: Final = timedelta(minutes=10)
_RECONCILED: Final = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "retry": State.PENDING}


@transaction.atomic
def trigger_schedule(
    tenant: Tenant, schedule_id: UUID, *, overlap: str | None = None, request_key: UUID, actor: Actor
) -> UUID:
    """Ask for a run now; returns its id. The same `request_key` twice within ten minutes is one run.

    `overlap` (`skip`, `allow`) overrides the schedule's own. Raises Conflict on a cancelled schedule, and
    ValidationFailed where the payload no longer fits the target.
    """
    _check_overlap(overlap)
    schedule = lock_schedule(tenant, schedule_id)
    refuse_cancelled(schedule)
    revision = current_of(schedule).revision
    # Its target may have changed since; and one that holds runs on request has no payload of its own.
    definitions.check_payload(tenant, revision.target, revision.payload)
    connection, now = raw_connection(), database_time()
    before = schedules.requested_run(
        connection, schedule.id, origin_key=request_key, since=now - SAME_REQUEST_WITHIN
    )
    if before is not None:
        return before.id
    overlap = overlap or revision.overlap
    if overlap != Overlap.ALLOW:
        due.make_slots(connection, [schedule.id])
    due_at = identity.whole_millisecond(now)
    run_id = due.request_run(
        connection,
        schedule.id,
        run_id=new_run_id(due_at),
        due_at=due_at,
        origin_key=request_key,
        overlap=overlap,
        now=now,
    )
    assert run_id is not None  # we hold the schedule's row
    after = {"run": str(run_id), "overlap": overlap}
    record_change(actor, "schedule.trigger", schedule, at=now, after=after)
    return run_id


def _check_overlap(overlap: str | None) -> None:
    if overlap is None or overlap in list(Overlap):
        return
    detail = f"use one of {', '.join(Overlap)}."
    raise ValidationFailed(FieldError(field="overlap", code="invalid_choice", detail=detail))


@transaction.atomic
def cancel_run(tenant: Tenant, run_id: UUID, *, actor: Actor) -> Occurrence:
    """Cancel a run that waits; ask one that runs to stop (`cancel_requested_at`).

    Raises Conflict with the state when the run is over, or its outcome unknown.
    """
    connection, run = raw_connection(), _find_run(tenant, run_id)
    key = schedules.RunKey(run.due_at, run.id)
    if run.slotted:
        schedules.lock_slot(connection, run.schedule_id)
    schedules.lock_run(connection, key)
    run = _find_run(tenant, run_id)  # while we waited it may have moved on, or an edit may have withdrawn it
    before, now = run.state, database_time()
    touched = schedules.cancel(connection, [key], now=now)
    wake(connection, [run.schedule_id])
    run.refresh_from_db()
    if run.id not in touched:
        raise Conflict(f"The run is {run.state} and cannot be cancelled.", state=run.state)
    record(
        actor,
        "run.cancel",
        tenant=tenant,
        at=now,
        subject_kind="run",
        subject_id=run.id,
        before={"state": before},
        after={"state": run.state},
    )
    return run


@transaction.atomic
def redrive_run(tenant: Tenant, run_id: UUID, *, actor: Actor) -> Occurrence:
    """Have a run that failed for good tried again: same idempotency key, fresh budget of attempts.

    It goes through its release like any other. Raises Conflict when the run did not fail, or when its
    schedule is cancelled.
    """
    refuse_cancelled(lock_schedule(tenant, _find_run(tenant, run_id).schedule_id))
    return _move_failed(tenant, run_id, schedules.redrive, "redrive", actor=actor)


@transaction.atomic
def dismiss_run(tenant: Tenant, run_id: UUID, *, actor: Actor) -> Occurrence:
    """Take a run that failed for good off the list of what needs attention. Twice changes nothing more.

    Raises Conflict when the run did not fail.
    """
    run = _find_run(tenant, run_id)
    if run.dismissed_at is not None:
        return run
    return _move_failed(tenant, run_id, schedules.dismiss, "dismiss", actor=actor)


@transaction.atomic
def reconcile_run(tenant: Tenant, run_id: UUID, outcome: str, *, note: str = "", actor: Actor) -> Occurrence:
    """Say how a run of unknown outcome ended: `succeeded`, `failed`, or `retry` to have it tried again.

    Raises ValidationFailed for another outcome, and Conflict when the run's outcome is not unknown.
    """
    connection, run = raw_connection(), _find_run(tenant, run_id)
    state = _RECONCILED.get(outcome)
    if state is None:
        detail = f"expected one of {', '.join(_RECONCILED)}."
        raise ValidationFailed(FieldError(field="outcome", code="invalid_choice", detail=detail))
    key = schedules.RunKey(run.due_at, run.id)
    schedule = lock_schedule(tenant, run.schedule_id)
    if state is State.PENDING:
        refuse_cancelled(schedule)
    if run.slotted:
        schedules.lock_slot(connection, run.schedule_id)
    schedules.lock_run(connection, key)
    if not schedules.reconcile(connection, key, state):
        found = _find_run(tenant, run_id).state
        raise Conflict(f"The run is {found}: only an unknown outcome can be reconciled.", state=found)
    wake(connection, [run.schedule_id])
    if state is State.FAILED:
        failures.pause_if_failing(connection, run.schedule_id)
    record(
        actor,
        "run.reconcile",
        tenant=tenant,
        at=database_time(),
        subject_kind="run",
        subject_id=run.id,
        before={"state": State.UNKNOWN},
        after={"state": state, "note": note},
    )
    return _find_run(tenant, run_id)


def _move_failed(
    tenant: Tenant,
    run_id: UUID,
    move: Callable[[Connection, schedules.RunKey], bool],
    verb: str,
    *,
    actor: Actor,
) -> Occurrence:
    connection, run = raw_connection(), _find_run(tenant, run_id)
    key = schedules.RunKey(run.due_at, run.id)
    schedules.lock_run(connection, key)
    run = _find_run(tenant, run_id)  # as whoever had it locked has left it
    before = {"state": run.state, "attempts": run.attempt_count}
    if not move(connection, key):
        detail = f"The run is {run.state}: only what failed can be redriven or dismissed."
        raise Conflict(detail, state=run.state)
    run = _find_run(tenant, run_id)
    record(
        actor,
        f"run.{verb}",
        tenant=tenant,
        at=database_time(),
        subject_kind="run",
        subject_id=run.id,
        before=before,
        after={"state": run.state},
    )
    return run


def _find_run(tenant: Tenant, run_id: UUID) -> Occurrence:
    run = scoped(Occurrence.objects.filter(**run_key(run_id)), tenant).first()
    if run is None:
        raise NotFound("No such run.")
    return run
