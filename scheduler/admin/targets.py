"""Targets: what may be scheduled, and by whom. They come from code by `manage.py apply`."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from scheduler.models import Target
from scheduler.orm import database_time
from tenants.console import ConsoleAdmin, actor_of
from tenants.operations import record

AUDITED = ["everyone", "enabled", "description"]


@admin.register(Target)
class TargetAdmin(ConsoleAdmin):
    list_display = ["name", "kind", "side_effects", "everyone", "enabled"]
    list_filter = ["enabled", "everyone"]
    search_fields = ["name"]
    ordering = ["name"]
    fields = [
        "name", "description", "enabled", "everyone", "tenants",
        "kind", "side_effects", "timeout_s", "cancel_grace_s", "heartbeat_timeout_s", "retry_defaults",
        "payload_schema", "created_at",
    ]  # fmt: skip
    readonly_fields = [
        "name", "kind", "side_effects", "timeout_s", "cancel_grace_s", "heartbeat_timeout_s",
        "retry_defaults", "payload_schema", "created_at",
    ]  # fmt: skip
    autocomplete_fields = ["tenants"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Target, form: forms.ModelForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        record(
            actor_of(request),
            "target.edit",
            tenant=None,
            at=database_time(),
            subject_kind="target",
            subject_id=obj.pk,
            before={name: form.initial.get(name) for name in AUDITED},
            after={**{name: getattr(obj, name) for name in AUDITED}, "tenants": _slugs(form)},
        )

    @display(description="Retry")
    def retry_defaults(self, row: Target) -> Any:
        return row.retry or "The product's own"

    @display(description="Payload")
    def payload_schema(self, row: Target) -> Any:
        return row.parameters or "Anything"


def _slugs(form: forms.ModelForm) -> list[str]:
    return sorted(tenant.slug for tenant in form.cleaned_data.get("tenants", ()))
