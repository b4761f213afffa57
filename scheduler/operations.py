"""Writes that a person or a program asks for. Each runs in the caller's transaction, or in its own.

Each takes the tenant (another tenant's id is NotFound), and leaves one audit entry by `actor`.
Errors: NotFound, ValidationFailed, Conflict (StaleRevision among them), as drawn in errors.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from scheduler.models import Occurrence, Schedule
from tenants.models import Tenant
from tenants.operations import Actor


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    field: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class AppliedChange:
    """What `apply_schedules` did, or would do, to one schedule: `created`, `edited`, `unchanged`, `cancelled`."""

    name: str
    action: str
    changes: tuple[FieldChange, ...] = ()


def create_schedule(tenant: Tenant, draft: Mapping[str, Any], *, actor: Actor) -> Schedule:
    """Store a schedule from a body (06-api.md). Its first instant is the first one after now."""
    raise NotImplementedError


def edit_schedule(
    tenant: Tenant,
    schedule_id: UUID,
    changes: Mapping[str, Any],
    *,
    expected_revision: int | None,
    actor: Actor,
) -> Schedule:
    """Replace the top-level fields in `changes` by a new revision. Raises StaleRevision when
    `expected_revision` is given and not the one in force."""
    raise NotImplementedError


def pause_schedule(tenant: Tenant, schedule_id: UUID, *, note: str = "", actor: Actor) -> Schedule:
    """After this commits no nominal run due later than the pause starts. Paused already: nothing changes."""
    raise NotImplementedError


def resume_schedule(
    tenant: Tenant, schedule_id: UUID, *, resume: str = "from_now", note: str = "", actor: Actor
) -> Schedule:
    """Go on from now. Active already: nothing changes."""
    raise NotImplementedError


def delete_schedule(tenant: Tenant, schedule_id: UUID, *, actor: Actor) -> None:
    """Cancel the schedule and what of it has not started; ask running runs to stop. Idempotent."""
    raise NotImplementedError


def trigger_schedule(
    tenant: Tenant, schedule_id: UUID, *, overlap: str | None = None, request_key: UUID, actor: Actor
) -> UUID:
    """Ask for a run now; returns its id. The same `request_key` twice within ten minutes is one run.

    `overlap` (`skip`, `allow`) overrides the schedule's own. Raises Conflict on a cancelled schedule.
    """
    raise NotImplementedError


def cancel_run(tenant: Tenant, run_id: UUID, *, actor: Actor) -> Occurrence:
    """Cancel a run that waits; ask one that runs to stop (`cancel_requested_at`). Raises Conflict with the
    state when the run is over or its outcome unknown."""
    raise NotImplementedError


def apply_schedules(
    tenant: Tenant, drafts: Sequence[Mapping[str, Any]], *, dry_run: bool, prune: bool, actor: Actor
) -> list[AppliedChange]:
    """Bring the tenant's schedules in line with `drafts`, by name, all or nothing."""
    raise NotImplementedError
