"""Reads for people. Every function takes the tenant first, or a row that was found by one that did.

The admin console sees all tenants, through `all_tenants_*` and nothing else.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import CharField, Exists, OuterRef, Q, QuerySet, Subquery
from django_celery_results.models import TaskResult

from scheduler import definitions, trigger_words
from scheduler.core.states import TERMINAL, AttemptOutcome, DeadLetterReason, SkipReason, State, WaitReason
from scheduler.core.triggers import PreviewInstant, trigger_of
from scheduler.definitions import allowed_targets
from scheduler.errors import NotFound
from scheduler.models import (
    Attempt,
    Calendar,
    Lease,
    Occurrence,
    Schedule,
    ScheduleRevision,
    ScheduleState,
    Target,
)
from scheduler.orm import database_time, raw_connection, run_key
from scheduler.store import schedules as ledger
from tenants.access import scoped
from tenants.models import Tenant

COUNTED_RUNS: Final = 1000
_FAILURES: Final = (State.FAILED, State.DEAD_LETTERED, State.UNKNOWN)


# Schedules ----------------------------------------------------------------------------------------


def schedules(tenant: Tenant, *, state: str | None = None, search: str = "") -> QuerySet[Schedule]:
    """Newest first. Cancelled ones only when `state` asks for them. `search`: part of the name."""
    rows = scoped(Schedule.objects.order_by("-created_at", "-id"), tenant)
    rows = rows.filter(state=state) if state else rows.exclude(state=ScheduleState.CANCELLED)
    return rows.filter(name__icontains=search) if search else rows


def schedule(tenant: Tenant, schedule_id: UUID) -> Schedule:
    """Raises NotFound, for another tenant's id too."""
    found = scoped(Schedule.objects.all(), tenant).filter(id=schedule_id).first()
    if found is None:
        raise NotFound("No such schedule.")
    return found


def revision(schedule: Schedule, number: int | None = None) -> ScheduleRevision:
    """The revision in force, or the one of this number. Raises NotFound."""
    found = revisions(schedule).filter(number=number or schedule.revision).first()
    if found is None:
        raise NotFound("No such revision.")
    return found


def revisions(schedule: Schedule) -> QuerySet[ScheduleRevision]:
    """Newest first."""
    return ScheduleRevision.objects.filter(schedule=schedule).select_related("target").order_by("-number")


def revisions_in_force(schedules: Collection[Schedule]) -> dict[UUID, ScheduleRevision]:
    """By schedule."""
    ids = [schedule.id for schedule in schedules]
    in_force = Schedule.objects.filter(id=OuterRef("schedule_id")).values("revision")
    rows = ScheduleRevision.objects.filter(schedule_id__in=ids, number=Subquery(in_force))
    return {row.schedule_id: row for row in rows}


def calendars(tenant: Tenant) -> QuerySet[Calendar]:
    return scoped(Calendar.objects.all(), tenant)


def calendar(tenant: Tenant, calendar_id: UUID) -> Calendar:
    """Raises NotFound, for another tenant's id too."""
    found = calendars(tenant).filter(id=calendar_id).first()
    if found is None:
        raise NotFound("No such calendar.")
    return found


def names_of_schedules_naming(calendar: Calendar) -> list[str]:
    """Of those that are not cancelled, by the revision in force."""
    naming = definitions.schedules_naming(calendar.tenant, calendar.name)
    return list(naming.order_by("name").values_list("name", flat=True))


def targets(tenant: Tenant) -> QuerySet[Target]:
    """What this tenant may schedule, by name."""
    return allowed_targets(tenant).order_by("name")


def all_targets(tenant: Tenant) -> QuerySet[Target]:
    """Those, and the tenant's own that are switched off."""
    allowed = allowed_targets(tenant).values("id")
    return Target.objects.filter(Q(id__in=allowed) | Q(owner=tenant))


def target(tenant: Tenant, target_id: UUID) -> Target:
    """Raises NotFound, for another tenant's id too."""
    found = all_targets(tenant).filter(id=target_id).first()
    if found is None:
        raise NotFound("No such target.")
    return found


def last_runs(schedules: Collection[Schedule], *, now: datetime) -> dict[UUID, Occurrence]:
    """For each schedule that has one, its latest run that has come due."""
    keys = ledger.last_runs(raw_connection(), [schedule.id for schedule in schedules], now=now)
    rows = _with_target(
        Occurrence.objects.filter(due_at__in={key.due_at for key in keys}, id__in=[key.id for key in keys])
    )
    return {row.schedule_id: row for row in rows}


def counts_by_state(schedule: Schedule) -> dict[str, int]:
    """Of the schedule's latest 1,000 runs: bounded, however long the history."""
    return counts_of([schedule])[schedule.id]


def counts_of(schedules: Collection[Schedule]) -> dict[UUID, dict[str, int]]:
    """`counts_by_state` of several schedules in one query."""
    counts: dict[UUID, dict[str, int]] = {schedule.id: {} for schedule in schedules}
    for row in ledger.counts_by_state(raw_connection(), list(counts), latest=COUNTED_RUNS):
        counts[row.schedule_id][row.state] = row.runs
    return counts


def health(schedule: Schedule, last_run: Occurrence | None, *, now: datetime, late_after_s: int) -> str:
    """`ok`, `late`, `failing`, or the schedule's state when it is not active.

    Late: the latest due run, or an instant that no tick has met, is not started `late_after_s` past due.
    """
    if schedule.state != ScheduleState.ACTIVE:
        return schedule.state
    if last_run is not None and last_run.state in _FAILURES and last_run.dismissed_at is None:
        return "failing"
    waiting = [schedule.next_due_at]
    if last_run is not None and last_run.started_at is None and last_run.state not in TERMINAL:
        waiting.append(last_run.dispatch_at)
    late = any(due_at and (now - due_at).total_seconds() > late_after_s for due_at in waiting)
    return "late" if late else "ok"


# Instants -----------------------------------------------------------------------------------------


def next_instants(
    schedule: Schedule, count: int = 5, *, revision: ScheduleRevision | None = None
) -> list[PreviewInstant]:
    """The coming instants, those included that have a row already; empty unless the schedule is active or
    its last instant lies ahead. `revision`: the one in force, where the caller has it at hand."""
    if schedule.state not in (ScheduleState.ACTIVE, ScheduleState.COMPLETED):
        return []
    return preview(schedule, count, revision=revision)


def preview(
    schedule: Schedule,
    count: int = 10,
    *,
    start: datetime | None = None,
    revision: ScheduleRevision | None = None,
) -> list[PreviewInstant]:
    """What the definition in force gives from `start` (default: now) on, whatever the schedule's state."""
    in_force = revision or ScheduleRevision.objects.get(schedule=schedule, number=schedule.revision)
    return trigger_of(in_force).preview(start or database_time(), count)


def preview_draft(
    tenant: Tenant, draft: Mapping[str, Any], count: int = 10, *, start: datetime | None = None
) -> list[PreviewInstant]:
    """The instants that a body would give from `start` (default: now). Of the body only what decides about
    instants is read (trigger, bounds, exclusions); others may be absent. Raises ValidationFailed."""
    now = database_time()
    return definitions.read_instants(tenant, draft, now=now).preview(start or now, count)


@dataclass(frozen=True, kw_only=True)
class EditPreview:
    """The coming instants as they are and as a draft would have them.

    `dropped` and `added` tell them apart, as far as both lists reach. `words`: the draft's trigger in words.
    """

    old: list[PreviewInstant]
    new: list[PreviewInstant]
    dropped: list[datetime]
    added: list[datetime]
    words: str


def preview_edit(
    tenant: Tenant,
    schedule: Schedule,
    changes: Mapping[str, Any],
    count: int = 10,
    *,
    start: datetime | None = None,
) -> EditPreview:
    """What an edit by `changes` would do to the instants from `start` (default: now) on. Nothing is stored.

    Raises ValidationFailed.
    """
    now = database_time()
    in_force = revision(schedule)
    body = {**definitions.body_of(schedule.name, in_force), **changes}
    current = definitions.Current(schedule=schedule, revision=in_force)
    draft = definitions.read(tenant, body, now=now, current=current)
    old = trigger_of(in_force).preview(start or now, count)
    new = draft.parsed_trigger().preview(start or now, count)
    before, after = ([instant.utc for instant in instants] for instants in (old, new))
    return EditPreview(
        old=old,
        new=new,
        dropped=_only_in(before, after, count),
        added=_only_in(after, before, count),
        words=trigger_words.plain_words(draft.trigger),
    )


def _only_in(instants: list[datetime], others: list[datetime], count: int) -> list[datetime]:
    """Where the other list was cut off after `count`, what lies beyond its end is not known to be missing."""
    reach = others[-1] if len(others) == count else None
    return [instant for instant in instants if instant not in others and (reach is None or instant <= reach)]


# Runs ---------------------------------------------------------------------------------------------


def runs(
    tenant: Tenant,
    *,
    schedule_id: UUID | None = None,
    states: Collection[str] = (),
    due_after: datetime | None = None,
    due_before: datetime | None = None,
    target: str | None = None,
    tag: str | None = None,
    dismissed: bool | None = None,
) -> QuerySet[Occurrence]:
    """Latest due first; each with `schedule` loaded and `target_name` annotated. Bounds are inclusive."""
    rows = _with_target(scoped(Occurrence.objects.all(), tenant))
    wanted = {
        "schedule_id": schedule_id,
        "state__in": list(states) or None,
        "due_at__gte": due_after,
        "due_at__lte": due_before,
        "dismissed_at__isnull": None if dismissed is None else not dismissed,
    }
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    if target is not None:
        rows = rows.filter(Exists(_revision_of_run().filter(target_name=target)))
    if tag is not None:
        rows = rows.filter(Exists(_revision_of_run().filter(tags__contains=[tag])))
    return rows.order_by("-due_at", "-id")


def run(tenant: Tenant, run_id: UUID) -> Occurrence:
    """As in `runs`. Looks into one partition only, for the id holds the due instant. Raises NotFound."""
    return _only(_with_target(scoped(Occurrence.objects.filter(**run_key(run_id)), tenant)))


def celery_result(run: Occurrence) -> TaskResult | None:
    """What the run's last attempt left in Celery's result backend, for a job or task that keeps its results
    there. Not written under the fence: the ledger's own result is the one that counts.
    """
    return TaskResult.objects.filter(task_id=str(run.id)).first()


def payload_of(run: Occurrence, revision: ScheduleRevision) -> dict[str, Any]:
    """Its own, where code asked for the run; else that of its revision."""
    return revision.payload if run.payload is None else run.payload


def attempts(run: Occurrence) -> list[Attempt]:
    """In order of their number."""
    return list(Attempt.objects.filter(due_at=run.due_at, run_id=run.id).order_by("number", "fence"))


def _only(rows: QuerySet[Occurrence]) -> Occurrence:
    found = rows.first()
    if found is None:
        raise NotFound("No such run.")
    return found


def _with_target(rows: QuerySet[Occurrence]) -> QuerySet[Occurrence]:
    name = Subquery(_revision_of_run().values("target_name")[:1], output_field=CharField())
    return rows.select_related("schedule").annotate(target_name=name)


def _revision_of_run() -> QuerySet[ScheduleRevision]:
    return ScheduleRevision.objects.filter(schedule_id=OuterRef("schedule_id"), number=OuterRef("revision"))


# Why ----------------------------------------------------------------------------------------------

_WAITS: Final = {
    WaitReason.OVERLAP: "Waits for an earlier run of its schedule to end.",
    WaitReason.TENANT_CONCURRENCY: "Waits for other runs of the tenant to end: its limit is reached.",
    WaitReason.TENANT_RATE: "Waits for the tenant's dispatch rate to allow it.",
    WaitReason.ENDPOINT_BUSY: "Waits for calls to its endpoint to end: workers make only so many at a time.",
    WaitReason.CATCH_UP_BUDGET: "Overdue; waits for its share of dispatch behind newly due work.",
}

_SKIPS: Final = {
    SkipReason.OVERLAP: "Skipped: an earlier run of its schedule had not ended.",
    SkipReason.MISSED: "Skipped: its time was missed, and the catch-up policy does not run it.",
    SkipReason.EXPIRED: "Skipped: it could not start within the time that its schedule allows.",
    SkipReason.QUOTA: "Skipped: the tenant's queue was full.",
}


def why(run: Occurrence) -> str:
    """One sentence: why the run is where it is."""
    tries = attempts(run)
    last = tries[-1] if tries else None
    return _SENTENCES[State(run.state)](run, last)


def _pending(run: Occurrence, last: Attempt | None) -> str:
    reason = WaitReason(run.wait_reason or WaitReason.DUE)
    return _WAITS.get(reason) or f"Waits for its time, {_moment(run.dispatch_at, run)}."


def _queued(run: Occurrence, last: Attempt | None) -> str:
    if last is not None and last.outcome == AttemptOutcome.SUPERSEDED:
        return f"Handed back at {_moment(run.queued_at, run)} by a worker that shut down; waits for another."
    return f"Released at {_moment(run.queued_at, run)}; no worker has claimed it yet."


def _running(run: Occurrence, last: Attempt | None) -> str:
    since, worker = (last.started_at, last.worker) if last else (run.started_at, "a worker")
    asked = " It was asked to stop." if run.cancel_requested_at else ""
    if Lease.objects.filter(run_id=run.id, expires_at__isnull=False).exists():
        begun = f"{_moment(since, run)} under fence {run.fence}"
        return f"Accepted by its endpoint, which is to end it; begun {begun}.{asked}"
    return f"Running since {_moment(since, run)} on {worker} under fence {run.fence}.{asked}"


def _retrying(run: Occurrence, last: Attempt | None) -> str:
    return f"{_ending(run, last)} The next attempt is due at {_moment(run.dispatch_at, run)}."


def _suspended(run: Occurrence, last: Attempt | None) -> str:
    return f"Suspended; it goes on at {_moment(run.dispatch_at, run)}."


def _succeeded(run: Occurrence, last: Attempt | None) -> str:
    if last is not None and _was_told(run, last):
        return f"{_ending(run, last)} Reconciled at {_moment(run.reconciled_at, run)}: it succeeded."
    return f"Attempt {run.attempt_count} succeeded at {_moment(run.finished_at, run)}."


def _failed(run: Occurrence, last: Attempt | None) -> str:
    if last is not None and _was_told(run, last):
        told = f"Reconciled at {_moment(run.reconciled_at, run)}: it failed."
        return f"{_ending(run, last)} {told}{_dismissal(run)}"
    return f"{_ending(run, last)} The error is permanent, so it was not tried again.{_dismissal(run)}"


def _was_told(run: Occurrence, last: Attempt) -> bool:
    """Whether a person or a hook settled its unknown outcome. A late holder who knew has closed the attempt
    as well.
    """
    return run.reconciled_at is not None and last.finished_at != run.finished_at


def _dead_lettered(run: Occurrence, last: Attempt | None) -> str:
    if run.dead_letter_reason == DeadLetterReason.EXPIRED:
        late = "No attempt may begin any more: its deadline leaves no time for one."
        return f"{_ending(run, last)} {late}{_dismissal(run)}"
    return f"{_ending(run, last)} All {run.tries} attempts are used up.{_dismissal(run)}"


def _dismissal(run: Occurrence) -> str:
    return f" Dismissed at {_moment(run.dismissed_at, run)}." if run.dismissed_at else ""


def _skipped(run: Occurrence, last: Attempt | None) -> str:
    return _SKIPS[SkipReason(run.skip_reason or SkipReason.MISSED)]


def _cancelled(run: Occurrence, last: Attempt | None) -> str:
    begun = f"after attempt {run.attempt_count} had started" if run.attempt_count else "before it started"
    return f"Cancelled at {_moment(run.finished_at, run)}, {begun}."


def _unknown(run: Occurrence, last: Attempt | None) -> str:
    asked = f" The hook of its job was asked {run.reconcile_tries} times." if run.reconcile_tries else ""
    return f"{_ending(run, last)} Whether it took effect is unknown; it waits for a person to say.{asked}"


_SENTENCES: Final = {
    State.PENDING: _pending,
    State.QUEUED: _queued,
    State.RUNNING: _running,
    State.RETRY_WAIT: _retrying,
    State.SUSPENDED: _suspended,
    State.SUCCEEDED: _succeeded,
    State.FAILED: _failed,
    State.DEAD_LETTERED: _dead_lettered,
    State.SKIPPED: _skipped,
    State.CANCELLED: _cancelled,
    State.UNKNOWN: _unknown,
}


def _ending(run: Occurrence, last: Attempt | None) -> str:
    """How the last attempt ended, with its error where it left one."""
    if last is None:
        return "It never started."
    outcome = {"lost": "was lost with its worker", "timed_out": "ran out of time"}.get(
        last.outcome or "", "failed"
    )
    error = last.error or run.error or {}
    text = ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))
    return f"Attempt {last.number} {outcome}" + (f" ({_shortened(text)})." if text else ".")


def _shortened(text: str, length: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}…"


def _moment(instant: datetime | None, run: Occurrence) -> str:
    """The time of day where it is the day on which the run was due, else with its date. UTC."""
    if instant is None:
        return "an unknown time"
    form = "%H:%M:%S" if instant.date() == run.due_at.date() else "%Y-%m-%d %H:%M:%S"
    return f"{instant:{form}} UTC"


# All tenants: the admin console only --------------------------------------------------------------


def all_tenants_schedules() -> QuerySet[Schedule]:
    return Schedule.objects.select_related("tenant").order_by("-created_at", "-id")


def all_tenants_runs() -> QuerySet[Occurrence]:
    return _with_target(Occurrence.objects.select_related("tenant")).order_by("-due_at", "-id")


def all_tenants_run(run_id: UUID) -> Occurrence:
    """Raises NotFound."""
    return _only(all_tenants_runs().filter(**run_key(run_id)))
