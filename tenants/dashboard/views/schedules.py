"""The list of schedules, one schedule, and making one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from scheduler import operations, queries, trigger_words
from scheduler.core.triggers import PreviewInstant, trigger_of
from scheduler.errors import Conflict, ValidationFailed
from scheduler.models import Occurrence, Schedule, ScheduleRevision, ScheduleState
from tenants.dashboard import forms, presentation
from tenants.dashboard.live import render_live
from tenants.dashboard.members import MemberRequest, actor_of, members_only
from tenants.models import Role, Tenant

PAGE = 50
NEXT_UP = 5
ATTENTION_LOOKS_AT = 1000  # of the latest runs: bounded, however many a tenant has
STRIP = 30
TABLE = 10
PREVIEW = 10


@dataclass(frozen=True, kw_only=True)
class Row:
    """A schedule with what its row in a list shows."""

    schedule: Schedule
    revision: ScheduleRevision
    next_at: datetime | None
    last_run: Occurrence | None
    is_late: bool


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a trigger means: its words and its coming instants."""

    words: str
    zone: ZoneInfo
    instants: list[PreviewInstant]


# Reading ----------------------------------------------------------------------------------------


@require_GET
@members_only()
def home(request: MemberRequest) -> HttpResponse:
    now = timezone.now()
    page = _page_number(request)
    found = list(queries.schedules(request.tenant)[(page - 1) * PAGE : page * PAGE + 1])
    active = queries.schedules(request.tenant, state=ScheduleState.ACTIVE)
    soonest = active.filter(next_due_at__isnull=False).order_by("next_due_at")[:NEXT_UP]
    context = {
        "section": "schedules",
        "now": now,
        "rows": _rows(found[:PAGE], now),
        "next_up": sorted(_rows(soonest, now), key=lambda row: row.next_at or now),
        "attention": _attention(request.tenant, now),
        "page": page,
        "has_more": len(found) > PAGE,
    }
    return render_live(request, "dashboard/home.html", "dashboard/_home.html", context, every_s=10)


@require_GET
@members_only()
def detail(request: MemberRequest, schedule_id: UUID) -> HttpResponse:
    schedule = queries.schedule(request.tenant, schedule_id)
    revision = queries.revision(schedule)
    zone = trigger_words.zone_of(revision.trigger)
    runs = list(queries.runs(request.tenant, schedule_id=schedule.id)[:STRIP])
    context = {
        "section": "schedules",
        "now": timezone.now(),
        "schedule": schedule,
        "revision": revision,
        "zone": zone,
        "instants": queries.next_instants(schedule, 5, revision=revision),
        "strip": runs[::-1],
        "runs": [(run, zone) for run in runs[:TABLE]],
        "request_key": uuid4(),
    }
    return render_live(
        request,
        "dashboard/schedule.html",
        "dashboard/_schedule.html",
        context,
        every_s=5,
        update="dashboard/_schedule_update.html",
    )


def _rows(schedules: Iterable[Schedule], now: datetime) -> list[Row]:
    schedules = list(schedules)
    revisions = queries.revisions_in_force(schedules)
    last_runs = queries.last_runs(schedules, now=now)
    return [_row(row, revisions[row.id], last_runs.get(row.id), now) for row in schedules]


def _row(schedule: Schedule, revision: ScheduleRevision, last_run: Occurrence | None, now: datetime) -> Row:
    health = queries.health(schedule, last_run, now=now, late_after_s=revision.late_after_s)
    return Row(
        schedule=schedule,
        revision=revision,
        next_at=_next_at(schedule, revision, now),
        last_run=last_run,
        is_late=health == "late",
    )


def _next_at(schedule: Schedule, revision: ScheduleRevision, now: datetime) -> datetime | None:
    """Not `next_due_at`: the tick moves that on some seconds before the instant comes."""
    if schedule.state != ScheduleState.ACTIVE:
        return None
    return trigger_of(revision).next_after(now)


def _attention(tenant: Tenant, now: datetime) -> list[Occurrence]:
    """What failed lately, latest first. Two steps, so that a calm day costs one narrow index scan."""
    since = now - timedelta(days=1)
    lately = queries.runs(tenant, due_after=since, due_before=now, dismissed=False)
    seen = lately.values_list("id", "due_at", "state")[:ATTENTION_LOOKS_AT]
    bad = [key for *key, state in seen if state in presentation.NEEDS_ATTENTION][:NEXT_UP]
    if not bad:
        return []
    ids, instants = zip(*bad, strict=True)
    return list(queries.runs(tenant).filter(due_at__in=instants, id__in=ids))


def _page_number(request: MemberRequest) -> int:
    text = request.GET.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


# Making -----------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@members_only(Role.EDITOR)
def create(request: MemberRequest) -> HttpResponse:
    """Without JavaScript the button "Preview" comes here too, and stores nothing."""
    if request.method == "GET":
        form = _form(request)
        return _form_page(request, form, _preview_of(request.tenant, {"trigger": form.initial_trigger()}))
    form = _form(request, request.POST)
    if "preview" in request.POST:
        shown = _preview(request.tenant, form)
        form.keep_errors_about_instants()
        return _form_page(request, form, shown)
    schedule = _store(request, form)
    if schedule is None:
        return _form_page(request, form, _preview(request.tenant, form), status=422)
    messages.success(request, f"{schedule.name} is scheduled.")
    return redirect("dashboard:schedule", schedule.id)


@require_POST
@members_only(Role.EDITOR)
def preview(request: MemberRequest) -> HttpResponse:
    """The fragment behind the form's live preview."""
    form = _form(request, request.POST)
    shown = _preview(request.tenant, form)
    return render(request, "dashboard/_preview.html", {"preview": shown, "form": form, "is_update": True})


def _form(request: MemberRequest, given: QueryDict | None = None) -> forms.ScheduleForm:
    return forms.ScheduleForm(
        given,
        targets=queries.targets(request.tenant).values_list("name", flat=True),
        calendars=queries.calendars(request.tenant).order_by("name").values_list("name", flat=True),
    )


def _store(request: MemberRequest, form: forms.ScheduleForm) -> Schedule | None:
    """None, with the errors in the form, when it cannot be stored as it is."""
    if not form.is_valid():
        return None
    try:
        return operations.create_schedule(request.tenant, form.draft(), actor=actor_of(request))
    except ValidationFailed as failed:
        form.refuse(failed.errors)
    except Conflict as conflict:
        form.add_error(None, str(conflict))
    return None


def _preview(tenant: Tenant, form: forms.ScheduleForm) -> Preview | None:
    """None, with the errors at their fields, when the trigger is not right."""
    if form.has_errors_about_instants():
        return None
    try:
        return _preview_of(tenant, form.timing())
    except ValidationFailed as failed:
        form.refuse(failed.errors)
    return None


def _preview_of(tenant: Tenant, body: dict[str, Any]) -> Preview:
    trigger = body["trigger"]
    instants = queries.preview_draft(tenant, body, PREVIEW)
    words, zone = trigger_words.plain_words(trigger), trigger_words.zone_of(trigger)
    return Preview(words=words, zone=zone, instants=instants)


def _form_page(
    request: MemberRequest, form: forms.ScheduleForm, shown: Preview | None, *, status: int = 200
) -> HttpResponse:
    context = {"section": "schedules", "form": form, "preview": shown, "time_zones": forms.time_zones()}
    return render(request, "dashboard/schedule_form.html", context, status=status)


# Acting -----------------------------------------------------------------------------------------


@require_POST
@members_only(Role.OPERATOR)
def pause(request: MemberRequest, schedule_id: UUID) -> HttpResponse:
    return _act(
        request, schedule_id, operations.pause_schedule, "Paused. Nothing starts until you resume it."
    )


@require_POST
@members_only(Role.OPERATOR)
def resume(request: MemberRequest, schedule_id: UUID) -> HttpResponse:
    return _act(request, schedule_id, operations.resume_schedule, "Resumed. It goes on from now.")


def _act(
    request: MemberRequest, schedule_id: UUID, operation: Callable[..., Schedule], done: str
) -> HttpResponse:
    try:
        operation(request.tenant, schedule_id, actor=actor_of(request))
        messages.success(request, done)
    except (Conflict, ValidationFailed) as refused:
        messages.error(request, str(refused))
    return redirect("dashboard:schedule", schedule_id)


@require_POST
@members_only(Role.OPERATOR)
def run_now(request: MemberRequest, schedule_id: UUID) -> HttpResponse:
    """The form carries the request's key, so that a double click asks for one run."""
    try:
        key = UUID(request.POST.get("request_key", ""))
    except ValueError:
        key = uuid4()
    try:
        run_id = operations.trigger_schedule(
            request.tenant, schedule_id, request_key=key, actor=actor_of(request)
        )
    except (Conflict, ValidationFailed) as refused:
        messages.error(request, str(refused))
        return redirect("dashboard:schedule", schedule_id)
    return redirect("dashboard:run", run_id)
