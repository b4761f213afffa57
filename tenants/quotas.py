"""Limits of a tenant."""

from django.db.models import QuerySet

from scheduler.errors import Conflict
from tenants.models import Tenant


def admit_one_more(tenant: Tenant, held: QuerySet, limit: str) -> None:
    """Raise Conflict `quota_exceeded` when `held` has reached the tenant's `limit` (the name of its field).

    Locks the tenant's row until the end of the transaction, so that two that arrive at once are counted one
    after the other. NO KEY: rows that refer to the tenant may be written meanwhile.
    """
    locked = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    allowed: int = getattr(locked, limit)
    if held.count() >= allowed:
        raise Conflict(f"The limit of {allowed} ({limit}) is reached.", code="quota_exceeded")
