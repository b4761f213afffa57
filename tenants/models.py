"""Accounts: who owns, who may. Nothing here knows what a schedule is."""

import uuid

from django.conf import settings
from django.db import models


class Role(models.TextChoices):
    """Each role may do what the ones before it may."""

    VIEWER = "viewer", "Viewer: read"
    OPERATOR = "operator", "Operator: run now, pause, cancel"
    EDITOR = "editor", "Editor: create and edit"
    ADMIN = "admin", "Admin: members, keys and targets"


class Tenant(models.Model):
    """Owner of schedules, members and keys: the unit of isolation."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=200)
    payload_max_bytes = models.PositiveIntegerField(default=65536)
    max_schedules = models.PositiveIntegerField(default=10000)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "tenant"
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        db_table = "membership"
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"


class ApiKey(models.Model):
    """Stored hashed; `prefix` finds the row and is shown, the secret is shown once."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    role = models.CharField(max_length=10, choices=Role.choices)
    prefix = models.CharField(max_length=16, unique=True)
    secret_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "api_key"
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="api_key_role"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"


class AuditEntry(models.Model):
    """One row for each action of a person or program. Written in the action's own transaction."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="audit_entries")
    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    address = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    subject_kind = models.CharField(max_length=32)
    subject_id = models.UUIDField(null=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        db_table = "audit_entry"
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["tenant", "-id"], name="audit_by_tenant")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.subject_kind} {self.subject_id}"


class IdempotencyRecord(models.Model):
    """The first answer to a request with this key. The unique constraint settles simultaneous twins."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="idempotency_records")
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "idempotency_record"
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="idempotency_once")]
        indexes = [models.Index(fields=["created_at"], name="idempotency_age")]

    def __str__(self) -> str:
        return self.key
