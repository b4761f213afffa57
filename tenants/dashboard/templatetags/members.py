"""What the signed-in member may see and do."""

from django import template
from django.contrib.auth.models import User
from django.db.models import QuerySet

from tenants.access import allows
from tenants.models import Membership, Role, Tenant

register = template.Library()


@register.filter
def may(membership: Membership | None, role: str) -> bool:
    """`{% if request.membership|may:"operator" %}`: only to hide what the view would refuse anyway."""
    return membership is not None and allows(membership.role, Role(role))


@register.simple_tag
def tenants_of(user: User) -> QuerySet[Tenant]:
    return Tenant.objects.filter(memberships__user=user).order_by("name")
