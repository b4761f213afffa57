"""Reads for people. Every function takes the tenant first, or a row that was found by one that did.

The admin console sees all tenants, through `all_tenants_*` and nothing else.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from scheduler.core.triggers import PreviewInstant
from scheduler.models import Attempt, Occurrence, Schedule, ScheduleRevision, Target
from tenants.models import Tenant


def schedules(tenant: Tenant, *, state: str | None = None, search: str = "") -> QuerySet[Schedule]:
    """Newest first. Cancelled ones only when `state` asks for them. `search`: part of the name."""
    raise NotImplementedError


def schedule(tenant: Tenant, schedule_id: UUID) -> Schedule:
    """Raises NotFound, for another tenant's id too."""
    raise NotImplementedError


def revision(schedule: Schedule, number: int | None = None) -> ScheduleRevision:
    """The revision in force, or the one of this number."""
    raise NotImplementedError


def revisions(schedule: Schedule) -> QuerySet[ScheduleRevision]:
    """Newest first."""
    raise NotImplementedError


def targets(tenant: Tenant) -> QuerySet[Target]:
    """What this tenant may schedule, by name."""
    raise NotImplementedError


def runs(
    tenant: Tenant,
    *,
    schedule_id: UUID | None = None,
    states: Collection[str] = (),
    due_after: datetime | None = None,
    due_before: datetime | None = None,
    target: str | None = None,
    tag: str | None = None,
) -> QuerySet[Occurrence]:
    """Latest due first; each with `schedule` loaded and `target_name` annotated."""
    raise NotImplementedError


def run(tenant: Tenant, run_id: UUID) -> Occurrence:
    """As in `runs`. Looks into one partition only, for the id holds the due instant. Raises NotFound."""
    raise NotImplementedError


def attempts(run: Occurrence) -> list[Attempt]:
    """In order of their number."""
    raise NotImplementedError


def last_runs(schedules: Collection[Schedule], *, now: datetime) -> Mapping[UUID, Occurrence]:
    """For each schedule that has one, its latest run that has come due."""
    raise NotImplementedError


def counts_by_state(schedule: Schedule) -> dict[str, int]:
    """Of the schedule's latest 1,000 runs: bounded, however long the history."""
    raise NotImplementedError


def next_instants(schedule: Schedule, count: int = 5) -> list[PreviewInstant]:
    """The coming instants by the revision in force; empty unless the schedule is active."""
    raise NotImplementedError


def preview_draft(
    tenant: Tenant, draft: Mapping[str, Any], count: int = 10, *, start: datetime | None = None
) -> list[PreviewInstant]:
    """The instants that a body would give from `start` (default: now). Needs `trigger`; other fields may be
    absent, but what is given is checked. Raises ValidationFailed."""
    raise NotImplementedError


def health(schedule: Schedule, last_run: Occurrence | None, *, now: datetime) -> str:
    """`ok`, `late`, `failing`, or the schedule's state when it is not active."""
    raise NotImplementedError


def why(run: Occurrence) -> str:
    """One sentence: why the run is where it is."""
    raise NotImplementedError


def all_tenants_schedules() -> QuerySet[Schedule]:
    """For the admin console only."""
    raise NotImplementedError


def all_tenants_runs() -> QuerySet[Occurrence]:
    """For the admin console only."""
    raise NotImplementedError


def all_tenants_run(run_id: UUID) -> Occurrence:
    """For the admin console only. Raises NotFound."""
    raise NotImplementedError
