"""Runs of all tenants, each with its attempts. The ledger is read here and moved by operations only."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe
from unfold.decorators import action, display

from scheduler import operations, queries
from scheduler.core.states import State
from scheduler.errors import NotFound
from scheduler.models import Occurrence
from scheduler.orm import run_key
from tenants.console import Operation, ReadOnlyAdmin

LABELS = {
    State.SUCCEEDED: "success",
    State.FAILED: "danger",
    State.DEAD_LETTERED: "danger",
    State.UNKNOWN: "warning",
    State.RETRY_WAIT: "warning",
    State.RUNNING: "info",
    State.QUEUED: "info",
}

CANCEL = Operation(
    label="Cancel",
    question="Cancel these runs? What waits is cancelled; what is running is asked to stop.",
    apply=lambda row, actor: operations.cancel_run(row.tenant, row.pk, actor=actor),
)

REDRIVE = Operation(
    label="Redrive",
    question="Have these runs tried again, with the same idempotency keys and a fresh budget of attempts?",
    apply=lambda row, actor: operations.redrive_run(row.tenant, row.pk, actor=actor),
)
DISMISS = Operation(
    label="Dismiss",
    question="Dismiss these runs? They stay as they are and no longer need attention.",
    apply=lambda row, actor: operations.dismiss_run(row.tenant, row.pk, actor=actor),
)


def _reconcile(label: str, outcome: str, question: str) -> Operation:
    def apply(row: Any, actor: Any) -> object:
        return operations.reconcile_run(row.tenant, row.pk, outcome, actor=actor)

    return Operation(label=label, question=question, apply=apply)


RECONCILE = {
    "succeeded": _reconcile("It succeeded", "succeeded", "Record that these runs took effect?"),
    "failed": _reconcile("It failed", "failed", "Record that these runs had no effect, and leave them so?"),
    "retry": _reconcile("Try again", "retry", "Try these runs again? Their effect must not have happened."),
}


@admin.register(Occurrence)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["due_at", "schedule", "tenant", "state_label", "attempt_count", "finished_at"]
    list_filter = ["state"]
    search_fields = ["id"]
    search_help_text = "A run's id, a schedule's id, or a tenant's slug"
    ordering = ["-due_at", "-id"]
    actions = ["cancel", "redrive", "dismiss", "succeeded", "failed", "retry"]
    actions_detail = ["cancel_one", "redrive_one", "dismiss_one", "succeeded_one", "failed_one", "retry_one"]
    readonly_fields = ["state_label", "why", "attempts", "kept_by_celery"]
    fieldsets = [
        (None, {"fields": ["state_label", "why", "attempts"]}),
        ("Identity", {"fields": ["id", "schedule", "tenant", "revision", "origin", "shard"]}),
        ("Times", {"fields": ["due_at", "dispatch_at", "queued_at", "started_at", "finished_at"]}),
        (
            "State",
            {
                "fields": [
                    "state", "wait_reason", "skip_reason", "dead_letter_reason", "generation", "fence",
                    "overdue", "coalesced", "cancel_requested_at", "attempts_forgiven", "counts_from",
                    "dismissed_at", "reconciled_at", "reconcile_at", "reconcile_tries",
                    "late_writes_refused", "tzdata_version", "payload", "result", "kept_by_celery",
                    "error", "progress",
                ]
            },
        ),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Occurrence]:
        return queries.all_tenants_runs()

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Occurrence | None:
        """By its id's due instant: without that every partition would be searched."""
        try:
            return queries.all_tenants_run(UUID(object_id))
        except (NotFound, ValueError):
            return None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return find(queryset, search_term), False

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("scheduler.change_occurrence")

    @display(description="State", label=LABELS)
    def state_label(self, row: Occurrence) -> str:
        return row.state

    @display(description="Why")
    def why(self, row: Occurrence) -> str:
        return queries.why(row)

    @display(description="Attempts")
    def attempts(self, row: Occurrence) -> SafeString:
        context = {"attempts": queries.attempts(row)}
        return mark_safe(render_to_string("admin/scheduler/attempts.html", context))

    @display(description="Kept by Celery")
    def kept_by_celery(self, row: Occurrence) -> str:
        kept = queries.celery_result(row)
        return f"{kept.status}: {kept.result}" if kept else "-"

    @action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, CANCEL)

    @action(description="Cancel", permissions=["operate"], url_path="cancel")
    def cancel_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, CANCEL, object_id)

    @action(description="Redrive", permissions=["operate"])
    def redrive(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, REDRIVE)

    @action(description="Redrive", permissions=["operate"], url_path="redrive")
    def redrive_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, REDRIVE, object_id)

    @action(description="Dismiss", permissions=["operate"])
    def dismiss(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, DISMISS)

    @action(description="Dismiss", permissions=["operate"], url_path="dismiss")
    def dismiss_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, DISMISS, object_id)

    @action(description="Reconcile: it succeeded", permissions=["operate"])
    def succeeded(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, RECONCILE["succeeded"])

    @action(description="Reconcile: it succeeded", permissions=["operate"], url_path="succeeded")
    def succeeded_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, RECONCILE["succeeded"], object_id)

    @action(description="Reconcile: it failed", permissions=["operate"])
    def failed(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, RECONCILE["failed"])

    @action(description="Reconcile: it failed", permissions=["operate"], url_path="failed")
    def failed_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, RECONCILE["failed"], object_id)

    @action(description="Reconcile: try again", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, RECONCILE["retry"])

    @action(description="Reconcile: try again", permissions=["operate"], url_path="retry")
    def retry_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, RECONCILE["retry"], object_id)


def find(runs: QuerySet[Any], term: str) -> QuerySet[Any]:
    """`term`: the id of a run or of a schedule, or the slug of a tenant."""
    term = term.strip()
    if not term:
        return runs
    try:
        key = UUID(term)
    except ValueError:
        return runs.filter(tenant__slug=term)
    if key.version == 7:  # run ids hold their due instant, schedule ids are random
        return runs.filter(**run_key(key))
    return runs.filter(schedule_id=key)
