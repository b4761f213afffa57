"""Schedules created and edited: each edit is a new revision, and takes over where the last one is left."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, transaction

from scheduler import definitions
from scheduler.core import identity, zonedata
from scheduler.definitions import Current, Definition
from scheduler.errors import FieldError, StaleRevision, ValidationFailed
from scheduler.models import (
    Overlap,
    Schedule,
    ScheduleRevision,
    ScheduleState,
    ZoneRules,
)
from scheduler.operations.audit import record_change
from scheduler.operations.timeline import aim_at, lock_schedule, refuse_cancelled, take_back
from scheduler.orm import database_time, raw_connection
from scheduler.store import due, schedules
from tenants import quotas
from tenants.models import Tenant
from tenants.operations import Actor


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
    add_revision(schedule, definition, now=now, effective_from=now, actor=actor)
    after = definitions.body_of(schedule.name, definition)
    record_change(actor, "schedule.create", schedule, at=now, after=after)
    return schedule


def _save_named(schedule: Schedule) -> None:
    """Save, and translate the one constraint that a request can break."""
    try:
        with transaction.atomic():
            schedule.save()
    except IntegrityError as error:
        if violated_constraint(error) != "schedule_name_once":
            raise
        detail = f"a schedule is called '{schedule.name}' already."
        raise ValidationFailed(FieldError(field="name", code="name_taken", detail=detail)) from None


def violated_constraint(error: IntegrityError) -> str:
    """The name of the constraint that a write has broken."""
    return getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or ""


def add_revision(
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
    schedule = lock_schedule(tenant, schedule_id)
    refuse_cancelled(schedule)
    if expected_revision is not None and expected_revision != schedule.revision:
        raise StaleRevision(schedule.revision)
    now = database_time()
    current = current_of(schedule)
    body = {**definitions.body_of(schedule.name, current.revision), **changes}
    definition = definitions.read(tenant, body, now=now, current=current)
    edit(current, definition, now=now, actor=actor)
    return schedule


def current_of(schedule: Schedule) -> Current:
    revision = schedule.revisions.select_related("target").get(number=schedule.revision)
    return Current(schedule=schedule, revision=revision)


def edit(current: Current, definition: Definition, *, now: datetime, actor: Actor) -> tuple[FieldChange, ...]:
    """A new revision whose timeline begins where that of the old one was left."""
    schedule, revision = current.schedule, current.revision
    before = {**definitions.body_of(schedule.name, revision), "calendars": revision.calendars}
    after = {**definitions.body_of(definition.name, definition), "calendars": definition.calendars}
    changes = _differences(before, after)
    if not changes:
        return ()
    left = take_back(current, now)
    effective_from = left.goes_on_from
    ScheduleRevision.objects.filter(pk=revision.pk).update(ended_at=left.accounted_until)
    schedule.revision += 1
    schedule.name = definition.name
    schedule.updated_at = now
    if schedule.state != ScheduleState.PAUSED:
        aim_at(schedule, definition, effective_from)
    _save_named(schedule)
    add_revision(schedule, definition, now=now, effective_from=effective_from, actor=actor)
    schedules.keep_called_off(
        raw_connection(), schedule.id, revision=schedule.revision, effective_from=effective_from
    )
    record_change(
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


def reread(schedule: Schedule, *, actor: Actor) -> AppliedChange:
    """The same body of a locked schedule again: what it refers to has changed."""
    now, current = database_time(), current_of(schedule)
    body = definitions.body_of(schedule.name, current.revision)
    definition = definitions.read(schedule.tenant, body, now=now, current=current)
    changes = edit(current, definition, now=now, actor=actor)
    return AppliedChange(name=schedule.name, action="edited" if changes else "unchanged", changes=changes)
