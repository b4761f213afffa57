"""Runs that code asks for, with a payload of their own, in the transaction of whoever asks.

Each tenant has one schedule per target that holds them. It is locked in share mode: a transaction of minutes
that has asked for a run keeps nobody else from asking.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

from django.conf import settings
from django.db import IntegrityError, transaction

from scheduler import definitions
from scheduler.core import identity
from scheduler.core.errors import TriggerError
from scheduler.core.reading import shown
from scheduler.definitions import Definition
from scheduler.errors import Conflict, FieldError, ValidationFailed
from scheduler.models import Overlap, Schedule, ScheduleState, Target
from scheduler.operations.audit import record_change
from scheduler.operations.editing import add_revision, current_of, edit, violated_constraint
from scheduler.operations.timeline import new_run_id
from scheduler.orm import database_time, raw_connection
from scheduler.store import due, schedules
from tenants.models import Tenant
from tenants.operations import Actor

SAME_KEY_WITHIN: Final = timedelta(hours=24)
KEY_LENGTH: Final = 200
# From the target, unless a schedule says otherwise.
_INHERITED: Final = ("retry", "timeout_s", "cancel_grace_s", "heartbeat_timeout_s")
_KEYS: Final = UUID("5d7f6f0e-6a0b-4c3f-9a53-0f6f1d1f1c55")  # the name space of keys, for uuid5


@transaction.atomic
def request_run(
    tenant: Tenant,
    target: str,
    payload: Mapping[str, Any],
    *,
    at: datetime | None = None,
    key: str | None = None,
    actor: Actor,
) -> UUID:
    """Ask for a run of `target`, now or `at` a later time; returns its id. It exists if and only if the
    caller's transaction commits, and is taken up by whoever is up then.

    The same `key` within 24 hours is the same run, however many ask. Raises ValidationFailed for a target
    that the tenant may not use, a payload that does not fit, a time that is past; Conflict when the key was
    used for something else.
    """
    now = database_time()
    due_at = identity.whole_millisecond(_moment(at, now))
    found = _find_target(tenant, target)
    wanted = dict(payload) if isinstance(payload, Mapping) else payload
    definitions.check_payload(tenant, found, wanted)
    held = _held_schedule(tenant, found, now=now, actor=actor)
    connection, origin_key = raw_connection(), _origin_key(key)
    if key is not None:
        schedules.lock_request(connection, held, origin_key=origin_key)
        before = schedules.requested_run(connection, held, origin_key=origin_key, since=now - SAME_KEY_WITHIN)
        if before is not None:
            return _same_request(before, wanted, at=at and due_at, key=key)
    run_id = due.request_run(
        connection,
        held,
        run_id=new_run_id(due_at),
        due_at=due_at,
        origin_key=origin_key,
        overlap=Overlap.ALLOW,
        now=now,
        payload=wanted,
    )
    assert run_id is not None  # we hold the schedule's row
    after = {"run": str(run_id), "due_at": definitions.rfc3339(due_at), "key": key}
    record_change(actor, "run.request", Schedule.objects.get(id=held), at=now, after=after)
    return run_id


def _find_target(tenant: Tenant, name: str) -> Target:
    if not isinstance(name, str):
        raise _refusal("target", "invalid_type", f"expected a target's name, got {shown(name)}.")
    try:
        return definitions.find_target(tenant, name)
    except TriggerError as error:
        raise _refusal(error.field, error.code, error.detail) from None


def _moment(at: datetime | None, now: datetime) -> datetime:
    if at is None:
        return now
    if not isinstance(at, datetime):
        raise _refusal("at", "invalid_type", f"expected a datetime with a time zone, got {shown(at)}.")
    if at.tzinfo is None:
        raise _refusal("at", "invalid_instant", "the time needs a time zone.")
    if at <= now:
        detail = f"the time is past; it is {definitions.rfc3339(now)} now."
        raise _refusal("at", "in_the_past", detail)
    if at > now + definitions.FARTHEST_ONCE:
        raise _refusal("at", "too_far", "the time is more than 10 years ahead.")
    return at


def _origin_key(key: str | None) -> UUID:
    if key is None:
        return uuid4()
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LENGTH:
        raise _refusal("key", "invalid_text", f"expected a text of 1 to {KEY_LENGTH} characters.")
    return uuid5(_KEYS, key)


def _same_request(
    before: schedules.Requested, payload: dict[str, Any], *, at: datetime | None, key: str
) -> UUID:
    if before.payload != payload or (at is not None and before.due_at != at):
        raise Conflict(f"The key {key!r} was used for another request within 24 hours.", state="used")
    return before.id


def _refusal(field: str, code: str, detail: str) -> ValidationFailed:
    return ValidationFailed(FieldError(field=field, code=code, detail=detail))


# The schedule that holds them ---------------------------------------------------------------------


def _held_schedule(tenant: Tenant, target: Target, *, now: datetime, actor: Actor) -> UUID:
    """Made when it is first needed. Several may find that it is missing: unique keys let one make it, and the
    others wait for that.
    """
    held = _hold(tenant, target)
    while held is None:
        made = _create(tenant, target, now=now, actor=actor)
        held = _hold(tenant, target)
        if held is None and not made:
            detail = f"a schedule is called '{_name_for(target)}' already; rename it."
            raise _refusal("target", "name_taken", detail)
    return held


def _hold(tenant: Tenant, target: Target) -> UUID | None:
    return schedules.hold_on_request(raw_connection(), tenant_id=tenant.id, target_id=target.id)


def _name_for(target: Target) -> str:
    return f"{target.name} on request"[: definitions.NAME_LENGTH]


def _create(tenant: Tenant, target: Target, *, now: datetime, actor: Actor) -> bool:
    """False: somebody else has, or a schedule has its name."""
    schedule_id, terms = uuid4(), _terms(tenant, target, now=now)
    schedule = Schedule(
        id=schedule_id,
        tenant=tenant,
        name=terms.name,
        on_request_of=target,
        state=ScheduleState.COMPLETED,
        shard=identity.shard_of(schedule_id, settings.FENCEPOST.shards),
        next_due_at=None,
        created_at=now,
        updated_at=now,
    )
    try:
        with transaction.atomic():
            schedule.save()
            add_revision(schedule, terms, now=now, effective_from=now, actor=actor)
    except IntegrityError as error:
        if violated_constraint(error) not in ("schedule_name_once", "schedule_on_request_once"):
            raise
        return False
    record_change(actor, "schedule.create", schedule, at=now, after={"on_request_of": target.name})
    return True


def _terms(tenant: Tenant, target: Target, *, now: datetime) -> Definition:
    """The target's own. It never fires by itself: its one instant is over when it begins."""
    draft = {
        "name": _name_for(target),
        "target": target.name,
        "trigger": {"once": {"at": definitions.rfc3339(now + timedelta(hours=1))}},
        "overlap": Overlap.ALLOW.value,
        "description": "Holds the runs that code asks for.",
    }
    began = {"once": {"at": definitions.rfc3339(now.replace(microsecond=0))}}
    return replace(definitions.read_on_request(tenant, draft, now=now), trigger=began)


def keep_up_with(target: Target, *, now: datetime, actor: Actor) -> None:
    """New revisions of the schedules that hold its runs on request, where its own defaults have changed.

    Not done by whoever asks for a run: of two that hold the schedule in share mode neither could edit it.
    """
    holding = Schedule.objects.filter(on_request_of=target).exclude(state=ScheduleState.CANCELLED)
    for schedule in holding.select_for_update().select_related("tenant").order_by("id"):
        current = current_of(schedule)
        body = definitions.body_of(schedule.name, current.revision)
        own = {name: value for name, value in body.items() if name not in _INHERITED}
        terms = definitions.read_on_request(schedule.tenant, own, now=now, current=current)
        edit(current, terms, now=now, actor=actor)
