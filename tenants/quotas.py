"""Limits of a tenant."""

from typing import Any

from django.db.models import QuerySet

from scheduler.errors import Conflict
from tenants.models import Tenant


def lock(tenant: Tenant) -> Tenant:
    """Hold the tenant's row until the end of the transaction, so that those who arrive at once are counted
    one after the other. NO KEY: rows that refer to the tenant may be written meanwhile."""
    return Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)


def admit_one_more(tenant: Tenant, held: QuerySet[Any], limit: str) -> None:
    """Raise Conflict `quota_exceeded` when `held` has reached `limit`, the name of a field of the tenant."""
    allowed: int = getattr(lock(tenant), limit)
    if held.count() >= allowed:
        raise Conflict(f"The limit of {allowed} ({limit}) is reached.", code="quota_exceeded")
