"""Writes that a person or a program asks for. Each runs in the caller's transaction, or in its own.

Each takes the tenant (another tenant's id is NotFound), and leaves one audit entry by `actor`.
Errors: NotFound, ValidationFailed, Conflict (StaleRevision among them), as drawn in errors.py.

Everything that decides over a schedule locks its row first, in a statement of its own, and reads the clock
after that. A tick moves the same row: whatever it wrote is then either visible here, or will not be written.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, transaction

from scheduler import definitions
from scheduler.core import identity, rest, zonedata
from scheduler.core.errors import TriggerError
from scheduler.core.materialise import plan_move
from scheduler.core.rest import Aim, Mode
from scheduler.core.triggers import trigger_of
from scheduler.definitions import Current, Definition
from scheduler.errors import Conflict, FieldError, NotFound, StaleRevision, ValidationFailed
from scheduler.models import (
    Occurrence,
    Overlap,
    PauseInterval,
    Schedule,
    ScheduleRevision,
    ScheduleState,
    Target,
    ZoneRules,
)
from scheduler.orm import database_time, raw_connection, run_key
from scheduler.payloads import text_fault
from scheduler.store import due, schedules
from scheduler.store.rest import nominal_runs, wake
from scheduler.store.statements import Connection
from tenants import quotas
from tenants.access import scoped
from tenants.models import Tenant
from tenants.operations import Actor, record

SAME_REQUEST_WITHIN: Final = timedelta(minutes=10)
_SETTLE_BATCH: Final = 1000


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    field: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class AppliedChange:
    """What `apply_schedules` did to one schedule, or would do.

    `action`: `created`, `edited`, `unchanged` or `cancelled`; `changes` only with `edited`.
    """

    name: str
    action: str
    changes: tuple[FieldChange, ...] = ()


class JobSpec(Protocol):
    """What `sync_targets` reads of a job that the code declares (worker/registry.py)."""

    @property
    def name(self) -> str: ...
    @property
    def retry(self) -> Mapping[str, Any] | None: ...
    @property
    def timeout_s(self) -> int | None: ...
    @property
    def side_effects(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def description(self) -> str: ...


# Create and edit ----------------------------------------------------------------------------------


@transaction.atomic
def create_schedule(tenant: Tenant, draft: Mapping[str, Any], *, actor: Actor) -> Schedule:
    """Store a schedule from a body (06-api.md). Its first instant is the first one after now."""
    quotas.admit_one_more(tenant, definitions.living(tenant), "max_schedules")
    now = database_time()
    definition = definitions.read(tenant, draft, now=now)
    return _create(tenant, definition, now=now, actor=actor)


def _create(tenant: Tenant, definition: Definition, *, now: datetime, actor: Actor) -> Schedule:
    schedule_id = uuid4()
    schedule = Schedule(
        id=schedule_id,
        tenant=tenant,
        name=definition.name,
        shard=identity.shard_of(schedule_id, settings.FENCEPOST.shards),
        next_due_at=definition.parsed_trigger().next_after(now),
        created_at=now,
        updated_at=now,
    )
    _save_named(schedule)
    _add_revision(schedule, definition, now=now, effective_from=now, actor=actor)
    after = definitions.body_of(schedule.name, definition)
    _record(actor, "schedule.create", schedule, at=now, after=after)
    return schedule


def _save_named(schedule: Schedule) -> None:
    """Save, and translate the one constraint that a request can break."""
    try:
        with transaction.atomic():
            schedule.save()
    except IntegrityError as error:
        if getattr(getattr(error.__cause__, "diag", None), "constraint_name", "") != "schedule_name_once":
            raise
        detail = f"a schedule is called '{schedule.name}' already."
        raise ValidationFailed(FieldError(field="name", code="name_taken", detail=detail)) from None


def _add_revision(
    schedule: Schedule, definition: Definition, *, now: datetime, effective_from: datetime, actor: Actor
) -> None:
    values = {name: value for name, value in vars(definition).items() if name != "name"}
    ScheduleRevision.objects.create(
        schedule=schedule,
        number=schedule.revision,
        target_name=definition.target.name,
        created_at=now,
        created_by=actor.name[:200],
        effective_from=effective_from,
        **values,
    )
    _keep_rules(definition)
    if definition.overlap != Overlap.ALLOW:
        due.make_slots(raw_connection(), [schedule.id])


def _keep_rules(definition: Definition) -> None:
    """Remember what a zone's rules are when it is first used: `retime` compares by it after an update."""
    zone = zonedata.zone_that_matters(definition.parsed_trigger())
    if zone is not None:
        ZoneRules.objects.bulk_create([zone_rules(zone)], ignore_conflicts=True)


def zone_rules(zone: str) -> ZoneRules:
    """The zone's rules as this process has them."""
    return ZoneRules(zone=zone, rules=zonedata.rules_of(zone), tzdata_version=due.TZDATA_VERSION)


@transaction.atomic
def edit_schedule(
    tenant: Tenant,
    schedule_id: UUID,
    changes: Mapping[str, Any],
    *,
    expected_revision: int | None,
    actor: Actor,
) -> Schedule:
    """Replace the top-level fields in `changes` by a new revision; null gives a field its default.

    What changes nothing makes no revision. Raises StaleRevision when `expected_revision` is given and not
    the one in force.
    """
    quotas.lock(tenant)  # before any schedule: no calendar that it names is replaced meanwhile
    schedule = _lock(tenant, schedule_id)
    _refuse_cancelled(schedule)
    if expected_revision is not None and expected_revision != schedule.revision:
        raise StaleRevision(schedule.revision)
    now = database_time()
    current = _current(schedule)
    body = {**definitions.body_of(schedule.name, current.revision), **changes}
    definition = definitions.read(tenant, body, now=now, current=current)
    _edit(current, definition, now=now, actor=actor)
    return schedule


def _current(schedule: Schedule) -> Current:
    revision = schedule.revisions.select_related("target").get(number=schedule.revision)
    return Current(schedule=schedule, revision=revision)


def _edit(
    current: Current, definition: Definition, *, now: datetime, actor: Actor
) -> tuple[FieldChange, ...]:
    """A new revision whose timeline begins where that of the old one was left."""
    schedule, revision = current.schedule, current.revision
    before = {**definitions.body_of(schedule.name, revision), "calendars": revision.calendars}
    after = {**definitions.body_of(definition.name, definition), "calendars": definition.calendars}
    changes = _differences(before, after)
    if not changes:
        return ()
    left = _take_back(current, now)
    effective_from = left.goes_on_from
    ScheduleRevision.objects.filter(pk=revision.pk).update(ended_at=left.accounted_until)
    schedule.revision += 1
    schedule.name = definition.name
    schedule.updated_at = now
    if schedule.state != ScheduleState.PAUSED:
        _aim(schedule, definition, effective_from)
    _save_named(schedule)
    _add_revision(schedule, definition, now=now, effective_from=effective_from, actor=actor)
    schedules.keep_called_off(
        raw_connection(), schedule.id, revision=schedule.revision, effective_from=effective_from
    )
    _record(
        actor,
        "schedule.edit",
        schedule,
        at=now,
        before={change.field: change.before for change in changes},
        after={change.field: change.after for change in changes},
    )
    return changes


def _differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field=name, before=before[name], after=after[name])
        for name in after
        if not _same(before[name], after[name])
    )


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but to Python it is True as well."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _aim(schedule: Schedule, terms: Definition | ScheduleRevision, begin: datetime) -> None:
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


# The ledger under a schedule that changes -----------------------------------------------------------


def _lock(tenant: Tenant, schedule_id: UUID) -> Schedule:
    schedule = scoped(Schedule.objects.select_for_update(), tenant).filter(id=schedule_id).first()
    if schedule is None:
        raise NotFound("No such schedule.")
    return schedule


def _refuse_cancelled(schedule: Schedule) -> None:
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


def _take_back(current: Current, now: datetime) -> _Left:
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
            move = plan_move(position, now=now, look_ahead_s=0, limit=_SETTLE_BATCH, new_id=_run_id)
        except TriggerError:  # a stored trigger that cannot be read has no instants; an edit repairs it
            return
        due.materialise(connection, [move], now=now)


def _run_id(due_at: datetime) -> UUID:
    return identity.run_id(due_at, os.urandom(10))


# Pause, resume, delete ----------------------------------------------------------------------------


@transaction.atomic
def pause_schedule(tenant: Tenant, schedule_id: UUID, *, note: str = "", actor: Actor) -> Schedule:
    """After this commits no nominal run due later than the pause starts. Paused already: nothing changes."""
    schedule = _lock(tenant, schedule_id)
    if schedule.state == ScheduleState.PAUSED:
        return schedule
    if schedule.state not in (ScheduleState.ACTIVE, ScheduleState.COMPLETED):
        raise Conflict(f"The schedule is {schedule.state}.", state=schedule.state)
    now = database_time()
    current = _current(schedule)
    left = _take_back(current, now)
    # A tick that has planned the last instant calls the schedule completed while that still lies ahead.
    if schedule.state == ScheduleState.COMPLETED:
        ahead = what_is_ahead(schedule, current.revision, left.goes_on_from)
        if ahead.next_due_at is None and not ahead.rests:
            raise Conflict("The schedule is completed.", state=schedule.state)
    PauseInterval.objects.create(
        schedule=schedule, began_at=left.accounted_until, paused_by=actor.name[:200], note=note
    )
    _move_to(schedule, ScheduleState.PAUSED, note=note, now=now)
    _record(actor, "schedule.pause", schedule, at=now, after={"note": note})
    return schedule


@transaction.atomic
def resume_schedule(
    tenant: Tenant, schedule_id: UUID, *, resume: str = "from_now", note: str = "", actor: Actor
) -> Schedule:
    """Go on from now, or (`catch_up`) from where the pause or a later edit began, so that the catch-up policy
    decides about the instants since then. Active already: nothing changes."""
    _check_resume(resume)
    schedule = _lock(tenant, schedule_id)
    if schedule.state == ScheduleState.ACTIVE:
        return schedule
    if schedule.state != ScheduleState.PAUSED:
        raise Conflict(f"The schedule is {schedule.state}.", state=schedule.state)
    now = database_time()
    revision = _current(schedule).revision
    pause = schedule.pauses.get(ended_at=None)
    resumed_from = max(now, schedule.last_due_at) if schedule.last_due_at else now
    if resume == "catch_up":
        resumed_from = max(pause.began_at, revision.effective_from)
    schedule.pauses.filter(pk=pause.pk).update(ended_at=now, resumed_from=resumed_from)
    _move_to(schedule, ScheduleState.ACTIVE, note=note, now=now)
    _aim(schedule, revision, resumed_from)
    schedule.save()
    _record(actor, "schedule.resume", schedule, at=now, after={"note": note, "resume": resume})
    return schedule


def _check_resume(resume: str) -> None:
    if resume not in ("from_now", "catch_up"):
        detail = "use 'from_now' or 'catch_up'."
        raise ValidationFailed(FieldError(field="resume", code="invalid_choice", detail=detail))


@transaction.atomic
def delete_schedule(tenant: Tenant, schedule_id: UUID, *, actor: Actor) -> None:
    """Cancel the schedule and what of it has not started; ask running runs to stop. Idempotent."""
    schedule = _lock(tenant, schedule_id)
    if schedule.state != ScheduleState.CANCELLED:
        _delete(schedule, actor=actor)


def _delete(schedule: Schedule, *, actor: Actor) -> None:
    now = database_time()
    schedules.lock_slot(raw_connection(), schedule.id)  # before any run: the order that everybody keeps
    left = _take_back(_current(schedule), now)
    schedule.revisions.filter(number=schedule.revision).update(ended_at=left.accounted_until)
    schedule.pauses.filter(ended_at=None).update(ended_at=now, resumed_from=left.goes_on_from)
    cancelled = _cancel_unfinished(schedule.id, now)
    _move_to(schedule, ScheduleState.CANCELLED, note="", now=now)
    _record(actor, "schedule.delete", schedule, at=now, after={"runs_cancelled": cancelled})


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


# Runs ---------------------------------------------------------------------------------------------


@transaction.atomic
def trigger_schedule(
    tenant: Tenant, schedule_id: UUID, *, overlap: str | None = None, request_key: UUID, actor: Actor
) -> UUID:
    """Ask for a run now; returns its id. The same `request_key` twice within ten minutes is one run.

    `overlap` (`skip`, `allow`) overrides the schedule's own. Raises Conflict on a cancelled schedule.
    """
    _check_overlap(overlap)
    schedule = _lock(tenant, schedule_id)
    _refuse_cancelled(schedule)
    connection, now = raw_connection(), database_time()
    before = schedules.requested_run(
        connection, schedule.id, origin_key=request_key, since=now - SAME_REQUEST_WITHIN
    )
    if before is not None:
        return before
    overlap = overlap or _current(schedule).revision.overlap
    if overlap != Overlap.ALLOW:
        due.make_slots(connection, [schedule.id])
    due_at = identity.whole_millisecond(now)
    run_id = due.request_run(
        connection,
        schedule.id,
        run_id=_run_id(due_at),
        due_at=due_at,
        origin_key=request_key,
        overlap=overlap,
        now=now,
    )
    assert run_id is not None  # we hold the schedule's row
    after = {"run": str(run_id), "overlap": overlap}
    _record(actor, "schedule.trigger", schedule, at=now, after=after)
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
    _refuse_cancelled(_lock(tenant, _find_run(tenant, run_id).schedule_id))
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


# Definitions kept elsewhere -----------------------------------------------------------------------


class _DryRun(Exception):
    """Rolls back what a dry run did, after it was seen that it can be done."""


def apply_schedules(
    tenant: Tenant, drafts: Sequence[Mapping[str, Any]], *, dry_run: bool, prune: bool, actor: Actor
) -> list[AppliedChange]:
    """Bring the tenant's schedules in line with `drafts`, by name, all or nothing.

    A draft is the whole definition: what it does not say has its default. `prune` cancels what an earlier
    apply by the same actor created and no draft names. A dry run does everything and takes it back.
    Raises ValidationFailed with fields such as `schedules.0.trigger.cron.timezone`.
    """
    changes: list[AppliedChange] = []
    try:
        with transaction.atomic():
            changes = _apply(tenant, drafts, prune=prune, actor=actor)
            if dry_run:
                raise _DryRun
    except _DryRun:
        pass
    return changes


def _apply(
    tenant: Tenant, drafts: Sequence[Mapping[str, Any]], *, prune: bool, actor: Actor
) -> list[AppliedChange]:
    _refuse_repeated_names(drafts)
    quotas.lock(tenant)  # before any schedule, as creating does: two applies come one after the other
    changes, errors = [], []
    for index, draft in enumerate(drafts):
        try:
            changes.append(_apply_one(tenant, draft, actor=actor))
        except ValidationFailed as failure:
            errors += [_within(f"schedules.{index}", error) for error in failure.errors]
    if errors:
        raise ValidationFailed(*errors)
    if prune:
        changes += _prune(tenant, {change.name for change in changes}, actor=actor)
    return changes


def _within(place: str, error: FieldError) -> FieldError:
    return FieldError(field=f"{place}.{error.field}", code=error.code, detail=error.detail)


def _refuse_repeated_names(drafts: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for index, draft in enumerate(drafts):
        name = str(draft.get("name"))
        if name in seen:
            detail = f"'{name}' is defined twice."
            raise ValidationFailed(
                FieldError(field=f"schedules.{index}.name", code="repeated", detail=detail)
            )
        seen.add(name)


def _apply_one(tenant: Tenant, draft: Mapping[str, Any], *, actor: Actor) -> AppliedChange:
    name = str(draft.get("name"))
    found = _lock_named(tenant, name)
    if found is None:
        created = create_schedule(tenant, draft, actor=actor)
        return AppliedChange(name=created.name, action="created")
    now = database_time()
    current = _current(found)
    definition = definitions.read(tenant, draft, now=now, current=current)
    changes = _edit(current, definition, now=now, actor=actor)
    return AppliedChange(name=name, action="edited" if changes else "unchanged", changes=changes)


def _lock_named(tenant: Tenant, name: str) -> Schedule | None:
    if text_fault(name):
        return None
    return definitions.living(tenant).select_for_update().filter(name=name).first()


def _prune(tenant: Tenant, kept: Collection[str], *, actor: Actor) -> list[AppliedChange]:
    """What people made by hand is not apply's to cancel."""
    own = ScheduleRevision.objects.filter(number=1, created_by=actor.name[:200]).values("schedule_id")
    surplus = definitions.living(tenant).filter(id__in=own).exclude(name__in=kept).order_by("name")
    pruned = []
    for schedule in surplus.select_for_update():
        _delete(schedule, actor=actor)
        pruned.append(AppliedChange(name=schedule.name, action="cancelled"))
    return pruned


def reread(schedule: Schedule, *, actor: Actor) -> AppliedChange:
    """The same body of a locked schedule again: what it refers to has changed."""
    now, current = database_time(), _current(schedule)
    body = definitions.body_of(schedule.name, current.revision)
    definition = definitions.read(schedule.tenant, body, now=now, current=current)
    changes = _edit(current, definition, now=now, actor=actor)
    return AppliedChange(name=schedule.name, action="edited" if changes else "unchanged", changes=changes)


@transaction.atomic
def sync_targets(specs: Mapping[str, JobSpec], *, actor: Actor) -> list[AppliedChange]:
    """Make or update the target of every job that the code declares; every tenant may name it.

    A target whose job is gone stays: another process may declare it, and runs still refer to it.
    """
    now = database_time()
    return [_sync_target(spec, now=now, actor=actor) for _, spec in sorted(specs.items())]


def _sync_target(spec: JobSpec, *, now: datetime, actor: Actor) -> AppliedChange:
    declared = {
        "timeout_s": spec.timeout_s,
        "retry": dict(spec.retry) if spec.retry else None,
        "side_effects": spec.side_effects,
        "parameters": dict(spec.parameters),
        "description": spec.description,
    }
    target = Target.objects.select_for_update().filter(name=spec.name).first()
    action = "edited" if target else "created"
    target = target or Target(name=spec.name, everyone=True, created_at=now)
    changes = tuple(
        FieldChange(field=name, before=getattr(target, name), after=value)
        for name, value in declared.items()
        if getattr(target, name) != value
    )
    if action == "edited" and not changes:
        return AppliedChange(name=spec.name, action="unchanged")
    for name, value in declared.items():
        setattr(target, name, value)
    target.save()
    after = {change.field: change.after for change in changes}
    record(
        actor,
        f"target.{action}",
        tenant=None,
        at=now,
        subject_kind="target",
        subject_id=target.id,
        after=after,
    )
    return AppliedChange(name=spec.name, action=action, changes=changes)


def _record(
    actor: Actor,
    action: str,
    schedule: Schedule,
    *,
    at: datetime,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record(
        actor,
        action,
        tenant=schedule.tenant,
        at=at,
        subject_kind="schedule",
        subject_id=schedule.id,
        before=before,
        after=after,
    )
