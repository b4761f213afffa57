"""Definitions that are kept elsewhere: schedules in a file, targets in the code."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from django.db import transaction

from scheduler import definitions
from scheduler.errors import FieldError, ValidationFailed
from scheduler.models import (
    Schedule,
    ScheduleRevision,
    Target,
    TargetKind,
)
from scheduler.operations.editing import AppliedChange, FieldChange, create_schedule, current_of, edit
from scheduler.operations.lifecycle import delete
from scheduler.operations.requests import keep_up_with
from scheduler.orm import database_time
from scheduler.payloads import text_fault
from tenants import quotas
from tenants.models import Tenant
from tenants.operations import Actor, record


class JobSpec(Protocol):
    """What `sync_targets` reads of a job that the code declares (worker/registry.py)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def retry(self) -> Mapping[str, Any] | None: ...
    @property
    def timeout_s(self) -> int | None: ...
    @property
    def cancel_grace_s(self) -> int | None: ...
    @property
    def heartbeat_timeout_s(self) -> int | None: ...
    @property
    def side_effects(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def description(self) -> str: ...


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
    current = current_of(found)
    definition = definitions.read(tenant, draft, now=now, current=current)
    changes = edit(current, definition, now=now, actor=actor)
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
        delete(schedule, actor=actor)
        pruned.append(AppliedChange(name=schedule.name, action="cancelled"))
    return pruned


@transaction.atomic
def put_schedule(tenant: Tenant, draft: Mapping[str, Any], *, actor: Actor) -> Schedule:
    """Create the schedule that `draft` names, or bring it in line. Raises ValidationFailed."""
    quotas.lock(tenant)
    _apply_one(tenant, draft, actor=actor)
    return definitions.living(tenant).get(name=draft["name"])


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
        "cancel_grace_s": spec.cancel_grace_s,
        "heartbeat_timeout_s": spec.heartbeat_timeout_s,
        "retry": dict(spec.retry) if spec.retry else None,
        "side_effects": spec.side_effects,
        "parameters": dict(spec.parameters),
        "description": spec.description,
    }
    target = Target.objects.select_for_update().filter(owner=None, name=spec.name).first()
    action = "edited" if target else "created"
    target = target or Target(name=spec.name, kind=spec.kind, everyone=True, created_at=now)
    if spec.kind == TargetKind.TASK and action == "edited":
        del declared["side_effects"]  # a plain task cannot say it: it is the operator's to choose
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
    keep_up_with(target, now=now, actor=actor)
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
