"""From the code of an application to the ledger, inside the application's own transaction.

    with transaction.atomic():
        invoice.save()
        send_invoice.run_now(invoice_id=invoice.pk, tenant="acme", key=f"invoice-{invoice.pk}")

The run exists if and only if that transaction commits; nothing is sent to a broker before. Every function
takes the tenant by its slug or as a row, and raises ValidationFailed, with the field, for what cannot be.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from celery import Task

from scheduler.core.triggers import Kind
from scheduler.errors import FieldError, ValidationFailed
from scheduler.payloads import text_fault
from scheduler.worker import registry

# Models are imported where they are used: jobs may be read before Django's registry of apps is whole.

Owner: TypeAlias = Any  # a tenants.models.Tenant, or its slug
Trigger: TypeAlias = Mapping[str, Any]


def cron(*expressions: str, timezone: str, **options: Any) -> Trigger:
    """`cron("0 9 * * MON-FRI", timezone="Europe/Berlin")`. Options: `dst`, `day_match`, as in the API."""
    return {Kind.CRON.value: {"expressions": list(expressions), "timezone": timezone, **options}}


def every(seconds: int, *, anchor: datetime | str | None = None) -> Trigger:
    """Every so many seconds, counted from `anchor` (RFC 3339, or a time with a zone) or from the schedule's
    creation.
    """
    return {Kind.INTERVAL.value: {"every_s": seconds, **({"anchor": _told(anchor)} if anchor else {})}}


def run_now(
    target: str, payload: Mapping[str, Any] | None = None, *, tenant: Owner, key: str | None = None
) -> UUID:
    """Ask for one run of `target`; its id. The same `key` within 24 hours is the same run."""
    return _ask(target, payload, tenant, at=None, key=key)


def schedule_at(
    when: datetime,
    target: str,
    payload: Mapping[str, Any] | None = None,
    *,
    tenant: Owner,
    key: str | None = None,
) -> UUID:
    """Ask for one run of `target` at `when`, a time with a zone; its id. The same `key` is the same run."""
    return _ask(target, payload, tenant, at=when, key=key)


def schedule(trigger: Trigger, target: str, *, name: str, tenant: Owner, **fields: Any) -> UUID:
    """Create the tenant's schedule of this name, or bring it in line; its id. `fields` are those of the API's
    body (`payload`, `overlap`, `retry`, ...), `start_at` and `end_at` also as times with a zone; what is not
    given has its default.
    """
    from scheduler import operations

    told = {field: _told(value) for field, value in fields.items()}
    draft = {**told, "name": name, "target": target, "trigger": trigger}
    with _applied(target):
        return operations.put_schedule(_tenant(tenant), draft, actor=_actor(target)).id


class JobTask(Task):
    """The Celery task of a job, with the ways to ask for its runs. Keyword arguments are the payload; a job
    with a parameter called `tenant`, `key` or `when` is asked for by the functions above.
    """

    abstract = True

    def run_now(self, *, tenant: Owner, key: str | None = None, **payload: Any) -> UUID:
        return run_now(self.name, payload, tenant=tenant, key=key)

    def schedule_at(self, when: datetime, *, tenant: Owner, key: str | None = None, **payload: Any) -> UUID:
        return schedule_at(when, self.name, payload, tenant=tenant, key=key)

    def schedule(self, trigger: Trigger, *, name: str, tenant: Owner, **fields: Any) -> UUID:
        return schedule(trigger, self.name, name=name, tenant=tenant, **fields)


def _told(value: Any) -> Any:
    """As JSON has it."""
    return value.isoformat() if isinstance(value, datetime) else value


def _ask(
    target: str, payload: Mapping[str, Any] | None, tenant: Owner, *, at: datetime | None, key: str | None
) -> UUID:
    from scheduler import operations

    with _applied(target):
        return operations.request_run(
            _tenant(tenant), target, {} if payload is None else payload, at=at, key=key, actor=_actor(target)
        )


@contextmanager
def _applied(target: str) -> Iterator[None]:
    """Whoever has the job in front of them is told why the ledger does not know it."""
    try:
        yield
    except ValidationFailed as failure:
        codes = [error.code for error in failure.errors]
        if codes != ["unknown_target"] or target not in registry.jobs():
            raise
        detail = f"job {target!r} is no target that this tenant may name; `manage.py apply` makes it one."
        raise ValidationFailed(FieldError(field="target", code="unknown_target", detail=detail)) from None


def _tenant(owner: Owner) -> Any:
    from tenants.models import Tenant

    if isinstance(owner, Tenant):
        return owner
    slug = owner if isinstance(owner, str) and text_fault(owner) is None else ""
    found = Tenant.objects.filter(slug=slug).first()
    if found is None:
        detail = f"there is no tenant {owner!r}; `manage.py create_tenant` makes one."
        raise ValidationFailed(FieldError(field="tenant", code="unknown_tenant", detail=detail))
    return found


def _actor(target: str) -> Any:
    from tenants.operations import Actor

    return Actor(name=f"code of {target}")
