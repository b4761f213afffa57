"""Accounts in the admin console: tenants, members, API keys, the audit log, and Django's own users."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from scheduler.orm import database_time
from tenants import operations
from tenants.console import ConsoleAdmin, Operation, ReadOnlyAdmin, actor_of
from tenants.models import ApiKey, AuditEntry, Membership, Tenant

REVOKE = Operation(
    label="Revoke",
    question="Revoke these API keys? Requests that show them are refused from now on.",
    apply=lambda row, actor: operations.revoke_api_key(row.tenant, row.pk, actor=actor),
)


@admin.register(Tenant)
class TenantAdmin(ConsoleAdmin):
    list_display = ["slug", "name", "created_at"]
    search_fields = ["slug", "name"]
    fields = ["slug", "name", "payload_max_bytes", "max_schedules"]
    ordering = ["slug"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        return ["slug"] if obj else []

    def save_model(self, request: HttpRequest, obj: Tenant, form: forms.ModelForm, change: bool) -> None:
        now = database_time()
        if not change:
            obj.created_at = now
        super().save_model(request, obj, form, change)
        operations.record(
            actor_of(request),
            "tenant.edit" if change else "tenant.create",
            tenant=obj,
            at=now,
            subject_kind="tenant",
            subject_id=obj.pk,
            before={name: form.initial.get(name) for name in form.changed_data} if change else None,
            after={name: form.cleaned_data[name] for name in form.changed_data},
        )


@admin.register(Membership)
class MembershipAdmin(ConsoleAdmin):
    list_display = ["user", "tenant", "role"]
    list_filter = ["role"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__slug"]
    autocomplete_fields = ["user", "tenant"]
    ordering = ["-id"]

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> list[str]:
        return ["user", "tenant"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return ModelAdmin.has_delete_permission(self, request, obj)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Members are removed one by one, each with its audit entry."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def save_model(self, request: HttpRequest, obj: Membership, form: forms.ModelForm, change: bool) -> None:
        saved = operations.set_membership(obj.tenant, obj.user, obj.role, actor=actor_of(request))
        obj.pk = saved.pk

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        operations.record(
            actor_of(request),
            "membership.remove",
            tenant=obj.tenant,
            at=database_time(),
            subject_kind="membership",
            before={"user": obj.user.get_username(), "role": obj.role},
        )
        super().delete_model(request, obj)


@admin.register(ApiKey)
class ApiKeyAdmin(ConsoleAdmin):
    list_display = [
        "name",
        "tenant",
        "role",
        "prefix",
        "created_at",
        "expires_at",
        "last_used_at",
        "revoked_at",
    ]
    list_filter = ["role"]
    list_select_related = ["tenant"]
    search_fields = ["prefix", "tenant__slug"]
    autocomplete_fields = ["tenant"]
    ordering = ["-id"]
    actions = ["revoke"]
    actions_detail = ["revoke_one"]

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        given = ["tenant", "name", "role", "expires_at"]
        return [*given, "prefix", "created_at", "last_used_at", "revoked_at"] if obj else given

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("tenants.change_apikey")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: forms.ModelForm, change: bool) -> None:
        issued = operations.create_api_key(
            obj.tenant, name=obj.name, role=obj.role, expires_at=obj.expires_at, actor=actor_of(request)
        )
        obj.pk, obj.prefix = issued.key.pk, issued.key.prefix
        # Only the request lives until `response_add`: on the key, or in its form, the secret could be kept.
        request.issued_key = issued  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: Any = None) -> HttpResponse:
        """A page, not a redirect with a message: messages are kept in a cookie until they are shown."""
        issued = request.issued_key  # type: ignore[attr-defined]  # by save_model
        context = {
            **self.admin_site.each_context(request),
            "title": "API key",
            "opts": self.opts,
            "issued": issued,
        }
        return TemplateResponse(request, "admin/api_key_issued.html", context)

    @action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, REVOKE)

    @action(description="Revoke", permissions=["revoke"], url_path="revoke")
    def revoke_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, REVOKE, object_id)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ["at", "tenant", "actor", "address", "action", "subject_kind", "subject_id"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__slug"]
    search_help_text = "The slug of a tenant"
    ordering = ["-id"]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        term = search_term.strip()
        return (queryset.filter(tenant__slug=term) if term else queryset), False


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):
    """The username is the e-mail address that people sign in with."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    pass
