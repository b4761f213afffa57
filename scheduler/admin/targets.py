"""Targets: what may be scheduled, and by whom. Jobs come from code by `manage.py apply`; the platform's HTTP
targets are made here, tenants' own over the API.
"""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.decorators import display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextareaWidget

from scheduler import targets
from scheduler.errors import ValidationFailed
from scheduler.models import Target, TargetKind
from scheduler.orm import database_time
from tenants.console import ConsoleAdmin, actor_of
from tenants.operations import record

AUDITED = ["everyone", "enabled", "description"]
DECLARED = ["timeout_s", "cancel_grace_s", "heartbeat_timeout_s", "retry_defaults", "payload_schema"]
OF_CALLS = ["url", "side_effects", "timeout_s", "heartbeat_timeout_s", "description"]
SECRETS = ["secret_headers", "signing_secret"]


class TargetForm(forms.ModelForm):
    """Secrets are typed in and never shown. What is left empty stays as it is."""

    secret_headers = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
        help_text='One "Name: value" a line, sent with each call. "Name:" alone takes it away.',
    )
    signing_secret = forms.CharField(
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="whsec_...; empty for a new target: one is generated. The old one signs on for a day.",
    )

    class Meta:
        model = Target
        fields = ["name", *OF_CALLS, "enabled", "everyone", "tenants"]
        labels: ClassVar = {
            "url": "URL",
            "timeout_s": "Timeout (s)",
            "heartbeat_timeout_s": "Heartbeat timeout (s)",
            "everyone": "For every tenant",
        }
        help_texts: ClassVar = {
            "url": "https://..., called with POST. Addresses of private networks are refused.",
            "side_effects": "Unsafe external: an attempt without a clear answer is never repeated; its run"
            " waits until somebody says how it ended.",
            "timeout_s": "Bounds one attempt; 300 where it is empty. A schedule may say otherwise.",
            "heartbeat_timeout_s": "After a 202: the longest silence until the endpoint reports.",
            "tenants": "Who may schedule it, where it is not for every tenant.",
        }

    def clean(self) -> dict[str, Any]:
        if not self.errors and self._is_http():
            try:
                targets.check(self.body(), exists=self._exists())
            except ValidationFailed as failure:
                for error in failure.errors:
                    name = error.field.split(".")[0]
                    field = "secret_headers" if name == "headers" else name
                    self.add_error(field if field in self.fields else None, error.detail)
        return self.cleaned_data

    def body(self) -> dict[str, Any]:
        """As for the API."""
        data = self.cleaned_data
        body = {name: data[name] for name in ["name", *OF_CALLS] if name in data}
        if data.get("secret_headers"):
            body["headers"] = _headers(data["secret_headers"])
        if data.get("signing_secret"):
            body["signing_secret"] = data["signing_secret"]
        return body

    def _exists(self) -> bool:
        return not self.instance._state.adding

    def _is_http(self) -> bool:
        return not self._exists() or self.instance.kind == TargetKind.HTTP


def _headers(text: str) -> dict[str, str | None]:
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    return {name.strip(): value.strip() or None for name, _, value in pairs}


@admin.register(Target)
class TargetAdmin(ConsoleAdmin):
    form = TargetForm
    list_display = ["name", "kind", "owner", "side_effects", "everyone", "enabled"]
    list_filter = ["enabled", "everyone", "kind"]
    list_select_related = ["owner"]
    search_fields = ["name"]
    ordering = ["name"]
    autocomplete_fields = ["tenants"]

    def get_fields(self, request: HttpRequest, obj: Target | None = None) -> list[str]:
        if obj is None:
            return ["name", *OF_CALLS, *SECRETS, "everyone", "tenants"]
        given = ["owner"] if obj.owner else ["everyone", "tenants"]
        if obj.kind == TargetKind.HTTP:
            return [
                "name",
                "kind",
                *OF_CALLS,
                "sealed_credentials",
                *SECRETS,
                "enabled",
                *given,
                "created_at",
            ]
        return [
            "name", "description", "enabled", *given,
            "kind", "side_effects", *DECLARED, "created_at",
        ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Target | None = None) -> list[str]:
        if obj is None:
            return []
        fixed = ["name", "kind", "owner", "created_at", "sealed_credentials"]
        if obj.kind == TargetKind.HTTP:
            return fixed
        # A job declares its class of side effects; an existing task cannot.
        return [*fixed, *DECLARED, *([] if obj.kind == TargetKind.TASK else ["side_effects"])]

    def get_form(
        self, request: HttpRequest, obj: Target | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        kwargs["fields"] = [
            name
            for name in self.get_fields(request, obj)
            if name not in self.get_readonly_fields(request, obj)
        ]
        return super().get_form(request, obj, change, **kwargs)

    def save_model(self, request: HttpRequest, obj: Target, form: forms.ModelForm, change: bool) -> None:
        assert isinstance(form, TargetForm)
        if not change:
            self._create(request, obj, form)
        elif obj.kind == TargetKind.HTTP:
            self._edit(request, obj, form)
        audited = [*AUDITED, "side_effects"] if obj.kind == TargetKind.TASK else AUDITED
        obj.save(update_fields=audited)
        record(
            actor_of(request),
            "target.edit",
            tenant=obj.owner,
            at=database_time(),
            subject_kind="target",
            subject_id=obj.pk,
            before={name: form.initial.get(name) for name in audited},
            after={**{name: getattr(obj, name) for name in audited}, "tenants": _slugs(form)},
        )

    def _create(self, request: HttpRequest, obj: Target, form: TargetForm) -> None:
        made = targets.create_target(None, form.body(), actor=actor_of(request))
        obj.pk = made.target.pk
        obj._state.adding = False
        # Only the request lives until `response_add`.
        request.registered_target = made  # type: ignore[attr-defined]

    def _edit(self, request: HttpRequest, obj: Target, form: TargetForm) -> None:
        body, actor = form.body(), actor_of(request)
        body.pop("name", None)
        secret = body.pop("signing_secret", None)
        targets.edit_target(obj.owner, obj.pk, body, actor=actor)
        if secret:
            targets.rotate_secret(obj.owner, obj.pk, {"signing_secret": secret}, actor=actor)

    def response_add(self, request: HttpRequest, obj: Target, post_url_continue: Any = None) -> HttpResponse:
        """A page, not a redirect with a message: messages are kept in a cookie until they are shown."""
        context = {
            **self.admin_site.each_context(request),
            "title": "HTTP target",
            "opts": self.opts,
            "registered": request.registered_target,  # type: ignore[attr-defined]  # by save_model
        }
        return TemplateResponse(request, "admin/target_registered.html", context)

    @display(description="Credentials")
    def sealed_credentials(self, row: Target) -> str:
        """Names, never values."""
        shown = targets.shown_credentials(row, now=database_time())
        if shown["headers"] is None:
            return "Sealed under a key that FENCEPOST_SECRETS_KEY does not have"
        headers = ", ".join(shown["headers"]) or "no headers"
        return f"{headers}; signed by {len(shown['signing_secrets'])} secret(s)"

    @display(description="Retry")
    def retry_defaults(self, row: Target) -> Any:
        return row.retry or "The product's own"

    @display(description="Payload")
    def payload_schema(self, row: Target) -> Any:
        return row.parameters or "Anything"


def _slugs(form: forms.ModelForm) -> list[str]:
    return sorted(tenant.slug for tenant in form.cleaned_data.get("tenants", ()))
