"""From a request body to a definition that can be stored, or to the list of everything wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.models import Schedule, ScheduleRevision, Target
from tenants.models import Tenant


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Everything a schedule's author decides, complete and checked. Durations are whole seconds."""

    name: str
    target: Target
    payload: dict[str, Any]
    payload_ref: str | None
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    catch_up: str
    catch_up_after_s: int
    overlap: str
    retry: dict[str, Any]
    timeout_s: int
    cancel_grace_s: int
    late_after_s: int
    priority: str
    tags: list[str]
    description: str


@dataclass(frozen=True, kw_only=True)
class Current:
    """What is in force when a body edits it."""

    schedule: Schedule
    revision: ScheduleRevision


def read(
    tenant: Tenant, body: Mapping[str, Any], *, now: datetime, current: Current | None = None
) -> Definition:
    """Check a whole body (06-api.md, "Schedule body"). Raises ValidationFailed naming every faulty field."""
    raise NotImplementedError


def body_of(schedule: Schedule, revision: ScheduleRevision) -> dict[str, Any]:
    """The body that would define the schedule as `revision` does: every field, JSON values only."""
    raise NotImplementedError
