"""A schedule as its author decides it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.core.triggers import Trigger, trigger_of
from scheduler.definitions.fields import CHOICES, DECISIONS, rfc3339
from scheduler.models import Schedule, ScheduleRevision, Target


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
    max_occurrences: int | None
    exclusions: list[dict[str, Any]]
    on_excluded: str
    calendars: dict[str, list[Any]]  # those that `exclusions` names, as they are now
    flexible_window_s: int
    mode: str
    catch_up: str
    catch_up_limit: int
    catch_up_window_s: int | None
    catch_up_after_s: int
    overlap: str
    buffer_limit: int
    retry: dict[str, Any]
    timeout_s: int
    cancel_grace_s: int
    schedule_to_start_s: int | None
    heartbeat_timeout_s: int | None
    pause_after: int | None
    late_after_s: int
    priority: str
    tags: list[str]
    description: str

    @property
    def on_failure(self) -> dict[str, int | None]:
        """As the API has it."""
        return {"pause_after": self.pause_after}

    def parsed_trigger(self) -> Trigger:
        return trigger_of(self)


@dataclass(frozen=True, kw_only=True)
class Current:
    """What is in force when a body edits it."""

    schedule: Schedule
    revision: ScheduleRevision


def body_of(name: str, revision: ScheduleRevision | Definition) -> dict[str, Any]:
    """The body that would define the same: every field of the contract, JSON values only."""
    target = revision.target_name if isinstance(revision, ScheduleRevision) else revision.target.name
    own = {field: _json(getattr(revision, field)) for field in DECISIONS}
    choices = {field: built[0] for field, (built, _) in CHOICES.items()}
    return {**choices, "name": name, "target": target, **own}


def _json(value: Any) -> Any:
    return rfc3339(value) if isinstance(value, datetime) else value
