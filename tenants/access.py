"""Who may do what: roles, the tenant of a request, and the one place that scopes rows to a tenant."""

from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from tenants.models import Membership, Role, Tenant

SESSION_KEY = "tenant"  # the id of the tenant that a member of several has chosen

Row = TypeVar("Row", bound=Model)

_ORDER = [Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN]


class UnscopedQuery(TypeError):
    """Rows of tenants were asked for without a tenant: a programming error, never an empty answer."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the sender of a request may do: one tenant, one role there, and a name for the audit log."""

    tenant: Tenant
    role: str
    actor_name: str

    def allows(self, needed: Role) -> bool:
        return allows(self.role, needed)


def allows(held: str, needed: Role) -> bool:
    """True if a member with role `held` may do what `needed` may: each role includes the ones before it."""
    return _ORDER.index(Role(held)) >= _ORDER.index(needed)


def scoped(rows: QuerySet[Row], tenant: Tenant) -> QuerySet[Row]:
    """`rows` of this tenant. Every read and write of the API and the dashboard passes here."""
    if not isinstance(tenant, Tenant) or tenant.pk is None:
        raise UnscopedQuery(f"{rows.model.__name__} rows need a tenant, got {tenant!r}.")
    return rows.filter(tenant=tenant)


def membership_of(request: HttpRequest) -> Membership | None:
    """The membership that a signed-in user acts under: the chosen one, else the first by slug."""
    user = request.user
    if not isinstance(user, User):
        return None
    memberships = Membership.objects.filter(user=user).select_related("tenant")
    found = {str(membership.tenant_id): membership for membership in memberships.order_by("tenant__slug")}
    chosen = found.get(request.session.get(SESSION_KEY, ""))
    return chosen or next(iter(found.values()), None)


def choose_tenant(request: HttpRequest, tenant_id: UUID) -> bool:
    """Remember the member's choice. False, and nothing remembered, when the user is no member there."""
    user = request.user
    if not isinstance(user, User) or not Membership.objects.filter(user=user, tenant_id=tenant_id).exists():
        return False
    request.session[SESSION_KEY] = str(tenant_id)
    return True
