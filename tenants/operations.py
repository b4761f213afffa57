"""Writes to accounts, and the audit log that every write of a person or program leaves behind."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.core.validators import slug_re
from django.db import IntegrityError, transaction

from scheduler.errors import FieldError, NotFound, ValidationFailed
from scheduler.orm import database_time
from tenants import keys
from tenants.models import ApiKey, AuditEntry, Membership, Role, Tenant

SLUG_LENGTH = 50


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who acts, and from which network address; both end up in the audit log."""

    name: str
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class IssuedKey:
    """A new API key together with its text, which exists nowhere else."""

    key: ApiKey
    text: str


def record(
    actor: Actor,
    action: str,
    *,
    tenant: Tenant | None,
    at: datetime,
    subject_kind: str,
    subject_id: UUID | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Write the audit entry of an action, in the transaction of that action."""
    return AuditEntry.objects.create(
        tenant=tenant,
        at=at,
        actor=actor.name[:200],
        address=actor.address[:64],
        action=action,
        subject_kind=subject_kind,
        subject_id=subject_id,
        before=before,
        after=after,
    )


@transaction.atomic
def create_tenant(slug: str, *, name: str = "", actor: Actor) -> Tenant:
    """Raises ValidationFailed when `slug` is taken or is no slug."""
    _check_slug(slug)
    now = database_time()
    try:
        with transaction.atomic():
            tenant = Tenant.objects.create(slug=slug, name=name or slug, created_at=now)
    except IntegrityError:
        raise _invalid("slug", "taken", f"a tenant '{slug}' exists already.") from None
    record(actor, "tenant.create", tenant=tenant, at=now, subject_kind="tenant", subject_id=tenant.id)
    return tenant


@transaction.atomic
def set_membership(tenant: Tenant, user: User, role: str, *, actor: Actor) -> Membership:
    """Make `user` a member, or give a member another role. Raises ValidationFailed."""
    _check_role(role)
    before = Membership.objects.select_for_update().filter(tenant=tenant, user=user).first()
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
    record(
        actor,
        "membership.set",
        tenant=tenant,
        at=database_time(),
        subject_kind="membership",
        before={"user": user.get_username(), "role": before.role} if before else None,
        after={"user": user.get_username(), "role": role},
    )
    return membership


@transaction.atomic
def create_api_key(
    tenant: Tenant, *, name: str, role: str, expires_at: datetime | None = None, actor: Actor
) -> IssuedKey:
    """The only moment at which the key's text is known. Raises ValidationFailed."""
    _check_role(role)
    now = database_time()
    fresh = keys.generate()
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        role=role,
        prefix=fresh.prefix,
        secret_hash=fresh.secret_hash,
        created_at=now,
        expires_at=expires_at,
    )
    after = {"name": name, "role": role, "prefix": fresh.prefix}
    record(
        actor,
        "api_key.create",
        tenant=tenant,
        at=now,
        subject_kind="api_key",
        subject_id=key.id,
        after=after,
    )
    return IssuedKey(key=key, text=fresh.text)


@transaction.atomic
def revoke_api_key(tenant: Tenant, key_id: UUID, *, actor: Actor) -> ApiKey:
    """Effective with the next request that shows the key. A second time changes nothing."""
    key = ApiKey.objects.select_for_update().filter(tenant=tenant, id=key_id).first()
    if key is None:
        raise NotFound("No such API key.")
    if key.revoked_at is None:
        key.revoked_at = database_time()
        key.save(update_fields=["revoked_at"])
        record(
            actor,
            "api_key.revoke",
            tenant=tenant,
            at=key.revoked_at,
            subject_kind="api_key",
            subject_id=key.id,
        )
    return key


def _check_slug(slug: str) -> None:
    if len(slug) > SLUG_LENGTH or not slug_re.fullmatch(slug):
        detail = f"use 1 to {SLUG_LENGTH} letters, digits, '-' and '_'."
        raise _invalid("slug", "invalid", detail)


def _check_role(role: str) -> None:
    if role not in Role.values:
        raise _invalid("role", "invalid_choice", f"use one of {', '.join(Role.values)}.")


def _invalid(field: str, code: str, detail: str) -> ValidationFailed:
    return ValidationFailed(FieldError(field=field, code=code, detail=detail))
