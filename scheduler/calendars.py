"""Calendars: a tenant's days of rest by name, for the `exclusions` of its schedules.

A schedule keeps the calendars it names as they were. So a calendar that changes makes a new revision of each
schedule that names it: their future moves by the new days, and their past is explained by those of then.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from django.db import transaction

from scheduler import definitions
from scheduler.core.ics import days_of
from scheduler.core.reading import Refusal
from scheduler.errors import Conflict, FieldError, InUse, NotFound, StaleRevision, ValidationFailed
from scheduler.models import Calendar, Schedule
from scheduler.operations import AppliedChange, reread
from scheduler.orm import database_time
from tenants import quotas
from tenants.access import scoped
from tenants.models import Tenant
from tenants.operations import Actor, record

MOST_CALENDARS: Final = 100  # of one tenant: a bound that is no product's limit
FOLLOWED: Final = timedelta(days=3653)  # how far ahead recurring events of a file are


@dataclass(frozen=True, kw_only=True)
class CalendarChange:
    """A calendar as it is now, and the schedules that name it."""

    calendar: Calendar
    schedules: tuple[AppliedChange, ...] = ()


@transaction.atomic
def create_calendar(
    tenant: Tenant, name: Any, *, days: Any = None, ics: Any = None, actor: Actor
) -> Calendar:
    """Raises ValidationFailed, for a name that is taken too, and Conflict at the bound."""
    _lock(tenant)
    now = database_time()
    given = _given(name, days, ics, now)
    if scoped(Calendar.objects.all(), tenant).filter(name=name).exists():
        detail = f"a calendar is called '{name}' already."
        raise ValidationFailed(FieldError(field="name", code="name_taken", detail=detail))
    return _create(tenant, name, given, now=now, actor=actor)


@transaction.atomic
def edit_calendar(
    tenant: Tenant,
    calendar_id: UUID,
    *,
    days: Any = None,
    ics: Any = None,
    expected_revision: int | None,
    actor: Actor,
) -> CalendarChange:
    """Replace the days. The same days make no revision, of the calendar or of a schedule.

    Raises StaleRevision when `expected_revision` is given and not the present one, and ValidationFailed when
    a date cannot be read, or a schedule that names the calendar would not fire any more.
    """
    _lock(tenant)
    calendar = _found(tenant, calendar_id)
    if expected_revision is not None and expected_revision != calendar.revision:
        raise StaleRevision(calendar.revision, of="calendar")
    now = database_time()
    return _replace(calendar, _given(calendar.name, days, ics, now), now=now, actor=actor)


@transaction.atomic
def put_calendar(
    tenant: Tenant, name: Any, *, days: Any = None, ics: Any = None, actor: Actor
) -> CalendarChange:
    """Make or replace by name. Raises as the two above do."""
    _lock(tenant)
    now = database_time()
    given = _given(name, days, ics, now)
    calendar = scoped(Calendar.objects.all(), tenant).filter(name=name).first()
    if calendar is None:
        return CalendarChange(calendar=_create(tenant, name, given, now=now, actor=actor))
    return _replace(calendar, given, now=now, actor=actor)


@transaction.atomic
def delete_calendar(tenant: Tenant, calendar_id: UUID, *, actor: Actor) -> None:
    """Raises Conflict `calendar_in_use` with the names of the schedules that would be left without it."""
    _lock(tenant)
    calendar = _found(tenant, calendar_id)
    naming = definitions.schedules_naming(tenant, calendar.name)
    names = list(naming.order_by("name").values_list("name", flat=True))
    if names:
        detail = f"Schedules name this calendar: {', '.join(names)}."
        raise InUse(detail, code="calendar_in_use", used_by=names)
    calendar.delete()
    _record(calendar, calendar_id, "calendar.delete", at=database_time(), before=calendar.days, actor=actor)


def _lock(tenant: Tenant) -> None:
    """Whoever reads calendars into a revision holds this too, and before any schedule: no revision is made
    from days that are being replaced, and none is made by somebody whom the replacing does not see.
    """
    quotas.lock(tenant)


def _found(tenant: Tenant, calendar_id: UUID) -> Calendar:
    calendar = scoped(Calendar.objects.all(), tenant).filter(id=calendar_id).first()
    if calendar is None:
        raise NotFound("No such calendar.")
    return calendar


def _given(name: Any, days: Any, file: Any, now: datetime) -> list[Any]:
    """The days of a request, by either way to say them. Raises ValidationFailed."""
    if (days is None) == (file is None):
        detail = "give the days either as `days` or, as the text of an iCalendar file, as `ics`."
        raise ValidationFailed(FieldError(field="days", code="exactly_one_of", detail=detail))
    found = days if file is None else _days_of_file(file, now)
    definitions.check_calendar(name, found, field="days" if file is None else "ics")
    return list(found)


def _days_of_file(file: Any, now: datetime) -> list[str | dict[str, str]]:
    if not isinstance(file, str):
        raise ValidationFailed(FieldError(field="ics", code="invalid_type", detail="expected a text."))
    try:
        return days_of(file, until=(now + FOLLOWED).date())
    except Refusal as refusal:
        raise ValidationFailed(FieldError(field="ics", code=refusal.code, detail=refusal.detail)) from None


def _create(tenant: Tenant, name: str, days: list[Any], *, now: datetime, actor: Actor) -> Calendar:
    if scoped(Calendar.objects.all(), tenant).count() >= MOST_CALENDARS:
        raise Conflict(f"The limit of {MOST_CALENDARS} calendars is reached.", code="quota_exceeded")
    calendar = Calendar.objects.create(
        id=uuid4(), tenant=tenant, name=name, days=days, created_at=now, updated_at=now
    )
    _record(calendar, calendar.id, "calendar.create", at=now, after=days, actor=actor)
    return calendar


def _replace(calendar: Calendar, days: list[Any], *, now: datetime, actor: Actor) -> CalendarChange:
    before = calendar.days
    if days == before:
        return CalendarChange(calendar=calendar)
    calendar.days, calendar.revision, calendar.updated_at = days, calendar.revision + 1, now
    calendar.save(update_fields=["days", "revision", "updated_at"])
    _record(calendar, calendar.id, "calendar.edit", at=now, before=before, after=days, actor=actor)
    naming = definitions.schedules_naming(calendar.tenant, calendar.name)
    changes = [_followed(schedule, actor) for schedule in naming.order_by("id").select_for_update()]
    return CalendarChange(calendar=calendar, schedules=tuple(changes))


def _followed(schedule: Schedule, actor: Actor) -> AppliedChange:
    try:
        return reread(schedule, actor=actor)
    except ValidationFailed as refused:
        detail = f"schedule '{schedule.name}' could not follow: {refused}"
        raise ValidationFailed(FieldError(field="days", code=refused.errors[0].code, detail=detail)) from None


def _record(
    calendar: Calendar,
    calendar_id: UUID,
    action: str,
    *,
    at: datetime,
    before: list[Any] | None = None,
    after: list[Any] | None = None,
    actor: Actor,
) -> None:
    """Of the days, what came and what went: a calendar may have thousands, and an edit touches a few."""
    came, went = (_less(after, before), _less(before, after))
    record(
        actor,
        action,
        tenant=calendar.tenant,
        at=at,
        subject_kind="calendar",
        subject_id=calendar_id,
        before=None if before is None else {"name": calendar.name, "days": went},
        after=None if after is None else {"name": calendar.name, "days": came},
    )


def _less(days: list[Any] | None, others: list[Any] | None) -> list[Any]:
    known = {_key(day) for day in others or ()}
    return [day for day in days or () if _key(day) not in known]


def _key(day: Any) -> str:
    return day if isinstance(day, str) else repr(sorted(day.items()))
