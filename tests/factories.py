"""Accounts and targets for tests. Alice owns a tenant, Bob is a viewer there, Charlie is a stranger to both.

Schedules and runs have no factory: tests make them by `scheduler.operations`, as people do.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import factory
from django.contrib.auth.models import User
from django.db import connection

from scheduler.models import Schedule, Target
from scheduler.operations import create_schedule
from tenants.models import Membership, Role, Tenant
from tenants.operations import Actor, create_api_key

ACTOR = Actor(name="test", address="192.0.2.1")
CREATED = datetime(2026, 1, 1, tzinfo=UTC)

PARAMETERS = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "pages": {"type": ["integer", "null"]}},
    "required": [],
    "additionalProperties": False,
}


class TenantFactory(factory.django.DjangoModelFactory[Tenant]):
    class Meta:
        model = Tenant

    slug = factory.Sequence(lambda number: f"tenant-{number}")
    name = factory.LazyAttribute(lambda tenant: tenant.slug.title())
    created_at = CREATED


class UserFactory(factory.django.DjangoModelFactory[User]):
    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda number: f"user-{number}@example.com")
    email = factory.LazyAttribute(lambda user: user.username)


class MembershipFactory(factory.django.DjangoModelFactory[Membership]):
    class Meta:
        model = Membership

    user = factory.SubFactory(UserFactory)
    tenant = factory.SubFactory(TenantFactory)
    role = Role.ADMIN


class TargetFactory(factory.django.DjangoModelFactory[Target]):
    class Meta:
        model = Target

    name = "reports.build"
    parameters = PARAMETERS
    everyone = True
    created_at = CREATED


def api_key(tenant: Tenant, role: Role = Role.ADMIN, *, expires_in: timedelta | None = None) -> str:
    """The text of a new key."""
    expires_at = datetime.now(UTC) + expires_in if expires_in else None
    return create_api_key(tenant, name=role, role=role, expires_at=expires_at, actor=ACTOR).text


def body(**changes: Any) -> dict[str, Any]:
    """The smallest body of a schedule, with changes."""
    return {
        "name": "nightly-report",
        "target": "reports.build",
        "trigger": {"cron": {"expressions": ["0 9 * * *"], "timezone": "Europe/Berlin"}},
        **changes,
    }


def every(seconds: int, *, anchor: str | None = None) -> dict[str, Any]:
    return {"interval": {"every_s": seconds, **({"anchor": anchor} if anchor else {})}}


def empty_ledger() -> None:
    """For tests that commit: Django's flush knows only the tables that it manages."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE occurrence, attempt, outbox, lease, overlap_slot, session")


def schedule(tenant: Tenant, **changes: Any) -> Schedule:
    """A stored schedule of `tenant`, by a target that is made when it is missing."""
    draft = body(**changes)
    if not Target.objects.filter(name=draft["target"]).exists():
        TargetFactory(name=draft["target"])
    return create_schedule(tenant, draft, actor=ACTOR)
