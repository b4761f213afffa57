"""Whose things a command works on."""

from django.core.management import CommandError

from tenants.models import Tenant


def tenant_named(slug: str | None) -> Tenant:
    """The tenant of this slug; None: the only one there is. Raises CommandError."""
    if slug is None:
        tenants = list(Tenant.objects.all()[:2])
        if len(tenants) != 1:
            raise CommandError("Say whose schedules these are: --tenant SLUG.")
        return tenants[0]
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise CommandError(f"There is no tenant '{slug}'. Make it by: manage.py create_tenant {slug}")
    return tenant
