"""Runs: the list, and one run from its due instant to its end."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from scheduler import operations, queries, trigger_words
from scheduler.core.states import LIVE, State
from scheduler.errors import Conflict, NotFound, ValidationFailed
from scheduler.models import Occurrence
from scheduler.orm import run_key
from tenants.access import allows
from tenants.dashboard import presentation
from tenants.dashboard.live import render_live
from tenants.dashboard.members import MemberRequest, actor_of, members_only
from tenants.models import Role

PAGE = 50
FAILED = (State.FAILED, State.DEAD_LETTERED)

FILTERS = {
    "attention": presentation.NEEDS_ATTENTION,
    "going": tuple(sorted(LIVE)),
    "succeeded": (State.SUCCEEDED,),
}


@require_GET
@members_only()
def listing(request: MemberRequest) -> HttpResponse:
    """`show` names one of FILTERS, `schedule` one schedule, `before` the last run of the page before."""
    show = request.GET.get("show", "")
    schedule_id, before = _uuid(request, "schedule"), _uuid(request, "before")
    schedule = queries.schedule(request.tenant, schedule_id) if schedule_id else None
    dismissed = False if show == "attention" else None
    runs = queries.runs(
        request.tenant, schedule_id=schedule_id, states=FILTERS.get(show, ()), dismissed=dismissed
    )
    if before is not None:
        key = run_key(before)
        runs = runs.filter(Q(due_at__lt=key["due_at"]) | Q(due_at=key["due_at"], id__lt=before))
    found = list(runs[: PAGE + 1])
    context = {
        "section": "runs",
        "schedule": schedule,
        "show": show if show in FILTERS else "",
        "runs": _with_zones(found[:PAGE]),
        "oldest": found[PAGE - 1].id if len(found) > PAGE else None,
        "is_first_page": before is None,
        "can_settle": show == "attention" and allows(request.membership.role, Role.OPERATOR),
    }
    return render(request, "dashboard/runs.html", context)


@require_GET
@members_only()
def detail(request: MemberRequest, run_id: UUID) -> HttpResponse:
    run = queries.run(request.tenant, run_id)
    revision = queries.revision(run.schedule, run.revision)
    moving = run.state in LIVE
    context = {
        "section": "runs",
        "now": timezone.now(),
        "run": run,
        "revision": revision,
        "zone": trigger_words.zone_of(revision.trigger),
        "why": queries.why(run),
        "attempts": queries.attempts(run),
        "payload": queries.payload_of(run, revision),
        "celery_result": queries.celery_result(run),
        "can_cancel": moving and run.cancel_requested_at is None,
        "can_redrive": run.state in FAILED,
        "can_dismiss": run.state in FAILED and run.dismissed_at is None,
        "can_reconcile": run.state == State.UNKNOWN,
        "is_moving": moving,
    }
    return render_live(
        request,
        "dashboard/run.html",
        "dashboard/_run.html",
        context,
        every_s=2 if moving else None,
        update="dashboard/_run_update.html",
    )


@require_POST
@members_only(Role.OPERATOR)
def cancel(request: MemberRequest, run_id: UUID) -> HttpResponse:
    try:
        run = operations.cancel_run(request.tenant, run_id, actor=actor_of(request))
        done = "Cancelled." if run.state == State.CANCELLED else "Asked to stop. The worker ends it shortly."
        messages.success(request, done)
    except Conflict as refused:
        messages.error(request, str(refused))
    return redirect("dashboard:run", run_id)


@require_POST
@members_only(Role.OPERATOR)
def redrive(request: MemberRequest, run_id: UUID) -> HttpResponse:
    try:
        operations.redrive_run(request.tenant, run_id, actor=actor_of(request))
        messages.success(request, "It is tried again, with a fresh budget of attempts.")
    except Conflict as refused:
        messages.error(request, str(refused))
    return redirect("dashboard:run", run_id)


@require_POST
@members_only(Role.OPERATOR)
def dismiss(request: MemberRequest, run_id: UUID) -> HttpResponse:
    try:
        operations.dismiss_run(request.tenant, run_id, actor=actor_of(request))
        messages.success(request, "Dismissed. It no longer needs attention.")
    except Conflict as refused:
        messages.error(request, str(refused))
    return redirect("dashboard:run", run_id)


_SETTLED: Final[dict[str, tuple[Callable[..., Occurrence], str]]] = {
    "redrive": (operations.redrive_run, "tried again"),
    "dismiss": (operations.dismiss_run, "dismissed"),
}


@require_POST
@members_only(Role.OPERATOR)
def settle(request: MemberRequest) -> HttpResponse:
    """Redrive or dismiss the runs that were marked in the list, each by itself: what one of them refuses
    holds up no other.
    """
    verb, words = _SETTLED.get(request.POST.get("action", ""), _SETTLED["dismiss"])
    done, refusals = 0, list[str]()
    for run_id in _marked(request):
        try:
            verb(request.tenant, run_id, actor=actor_of(request))
            done += 1
        except (Conflict, NotFound) as refused:
            refusals.append(str(refused))
    if done:
        messages.success(request, f"{done} {'run is' if done == 1 else 'runs are'} {words}.")
    for refusal, count in Counter(refusals).items():
        messages.error(request, f"{refusal} ({count})" if count > 1 else refusal)
    return redirect(f"{reverse('dashboard:runs')}?show=attention")


def _marked(request: MemberRequest) -> list[UUID]:
    """At most a page of them; what is no id is none of ours."""
    found = []
    for text in request.POST.getlist("run")[:PAGE]:
        with suppress(ValueError):
            found.append(UUID(text))
    return found


def _with_zones(runs: list[Occurrence]) -> list[tuple[Occurrence, ZoneInfo]]:
    """Each run with the zone of its schedule."""
    revisions = queries.revisions_in_force({run.schedule for run in runs})
    return [(run, trigger_words.zone_of(revisions[run.schedule_id].trigger)) for run in runs]


def _uuid(request: MemberRequest, name: str) -> UUID | None:
    try:
        return UUID(request.GET.get(name, ""))
    except ValueError:
        return None


_RECONCILED: Final = {
    State.SUCCEEDED: "Recorded: it succeeded.",
    State.FAILED: "Recorded: it failed.",
    State.PENDING: "It is tried again.",
}


@require_POST
@members_only(Role.OPERATOR)
def reconcile(request: MemberRequest, run_id: UUID) -> HttpResponse:
    try:
        run = operations.reconcile_run(
            request.tenant, run_id, request.POST.get("outcome", ""), actor=actor_of(request)
        )
        messages.success(request, _RECONCILED[State(run.state)])
    except (Conflict, ValidationFailed) as refused:
        messages.error(request, str(refused))
    return redirect("dashboard:run", run_id)
