"""Schedules of all tenants: read-only, with the operations that a platform operator may ask for."""

import json
from typing import Any
from uuid import UUID, uuid4

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe
from unfold.decorators import action, display

from scheduler import definitions, operations, queries
from scheduler.models import Schedule
from tenants.console import Operation, ReadOnlyAdmin

# What of a definition is worth a look, in the order in which it is asked for.
DEFINITION = [
    "target", "trigger", "payload", "payload_ref", "start_at", "end_at", "overlap", "catch_up", "retry",
    "timeout_s", "cancel_grace_s", "schedule_to_start_s", "heartbeat_timeout_s", "on_failure", "tags",
    "description",
]  # fmt: skip

LABELS = {"active": "success", "paused": "warning", "faulted": "danger"}

PAUSE = Operation(
    label="Pause",
    question="Pause these schedules? Nothing of them starts until they are resumed.",
    apply=lambda row, actor: operations.pause_schedule(row.tenant, row.pk, actor=actor),
)
RESUME = Operation(
    label="Resume",
    question="Resume these schedules? They go on from now.",
    apply=lambda row, actor: operations.resume_schedule(row.tenant, row.pk, actor=actor),
)
RUN_NOW = Operation(
    label="Run now",
    question="Run these schedules once, now?",
    apply=lambda row, actor: operations.trigger_schedule(
        row.tenant, row.pk, request_key=uuid4(), actor=actor
    ),
)
CANCEL = Operation(
    label="Cancel for good",
    question="Cancel these schedules for good? Waiting runs are cancelled and running ones asked to stop.",
    apply=lambda row, actor: operations.delete_schedule(row.tenant, row.pk, actor=actor),
)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ["name", "tenant", "state_label", "revision", "next_due_at", "last_due_at"]
    list_filter = ["state"]
    search_fields = ["id"]
    search_help_text = "A schedule's id, or TENANT/NAME with the beginning of its name"
    ordering = ["-id"]
    fields = ["name", "tenant", "state_label", "state_note", "fault", "definition", "coming", "recent_runs"]
    readonly_fields = ["state_label", "definition", "coming", "recent_runs"]
    actions = ["pause", "resume", "run_now", "cancel"]
    actions_detail = ["pause_one", "resume_one", "run_now_one", "cancel_one"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        return queries.all_tenants_schedules()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Only what an index answers: a substring search would read ten million names."""
        return find(queryset, search_term), False

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("scheduler.change_schedule")

    @display(description="State", label=LABELS)
    def state_label(self, row: Schedule) -> str:
        return row.state

    @display(description="Definition")
    def definition(self, row: Schedule) -> SafeString:
        body = definitions.body_of(row.name, queries.revision(row))
        shown = {name: json.dumps(body[name], ensure_ascii=False) for name in DEFINITION if body[name]}
        return _rendered("definition", {"body": shown, "revisions": queries.revisions(row)[:10]})

    @display(description="Next instants")
    def coming(self, row: Schedule) -> SafeString:
        return _rendered("coming", {"instants": queries.next_instants(row, 10)})

    @display(description="Recent runs")
    def recent_runs(self, row: Schedule) -> SafeString:
        return _rendered("recent_runs", {"runs": queries.runs(row.tenant, schedule_id=row.pk)[:20]})

    @action(description="Pause", permissions=["operate"])
    def pause(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, PAUSE)

    @action(description="Resume", permissions=["operate"])
    def resume(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, RESUME)

    @action(description="Run now", permissions=["operate"])
    def run_now(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, RUN_NOW)

    @action(description="Cancel for good", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: object) -> HttpResponse:
        return self.confirmed(request, CANCEL)

    @action(description="Pause", permissions=["operate"], url_path="pause")
    def pause_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, PAUSE, object_id)

    @action(description="Resume", permissions=["operate"], url_path="resume")
    def resume_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, RESUME, object_id)

    @action(description="Run now", permissions=["operate"], url_path="run")
    def run_now_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, RUN_NOW, object_id)

    @action(description="Cancel for good", permissions=["operate"], url_path="cancel")
    def cancel_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.confirmed_one(request, CANCEL, object_id)


def find(schedules: QuerySet[Any], term: str) -> QuerySet[Any]:
    """`term`: an id, `TENANT/` or `TENANT/beginning of a name`; a bare word is taken as a tenant."""
    term = term.strip()
    if not term:
        return schedules
    try:
        return schedules.filter(pk=UUID(term))
    except ValueError:
        tenant, _, name = term.partition("/")
        return schedules.filter(tenant__slug=tenant, name__startswith=name)


def _rendered(template: str, context: dict[str, Any]) -> SafeString:
    """The template escapes what it shows."""
    return mark_safe(render_to_string(f"admin/scheduler/{template}.html", context))
