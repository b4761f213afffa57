"""What a tenant has and may use: its targets, its schedules."""

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduler import payloads
from scheduler.core.reading import Field, did_you_mean, shown
from scheduler.models import Schedule, ScheduleRevision, ScheduleState, Target
from tenants.access import scoped
from tenants.models import Tenant


def allowed_targets(tenant: Tenant) -> QuerySet[Target]:
    """What this tenant may schedule."""
    known = Q(everyone=True) | Q(tenants=tenant) | Q(owner=tenant)
    return Target.objects.filter(known, enabled=True).distinct()


def find_target(tenant: Tenant, name: str) -> Target:
    """One that the tenant may schedule; its own before the platform's. Raises TriggerError."""
    allowed = allowed_targets(tenant)
    own_first = allowed.order_by(F("owner").asc(nulls_last=True))
    found = None if payloads.text_fault(name) else own_first.filter(name=name).first()
    if found is None:
        hint = did_you_mean(name, list(allowed.values_list("name", flat=True)))
        raise Field(path="target", value=name).refuse(
            "unknown_target", f"unknown target {shown(name)}.{hint}"
        )
    return found


def living(tenant: Tenant) -> QuerySet[Schedule]:
    """The tenant's schedules that are not cancelled."""
    return scoped(Schedule.objects.all(), tenant).exclude(state=ScheduleState.CANCELLED)


def schedules_naming(tenant: Tenant, calendar: str) -> QuerySet[Schedule]:
    """Those that the calendar excludes days of, by the revision in force."""
    in_force = ScheduleRevision.objects.filter(
        schedule=OuterRef("pk"), number=OuterRef("revision"), calendars__has_key=calendar
    )
    return living(tenant).filter(Exists(in_force))
