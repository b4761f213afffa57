"""Writes that a person or a program asks for. Each runs in the caller's transaction, or in its own.

Each takes the tenant (another tenant's id is NotFound), and leaves one audit entry by `actor`.
Errors: NotFound, ValidationFailed, Conflict (StaleRevision among them), as drawn in errors.py.

Everything that decides over a schedule locks its row first, in a statement of its own, and reads the clock
after that. A tick moves the same row: whatever it wrote is then either visible here, or will not be written.
"""

from scheduler.operations.declared import JobSpec, apply_schedules, put_schedule, sync_targets
from scheduler.operations.editing import (
    AppliedChange,
    FieldChange,
    create_schedule,
    edit_schedule,
    reread,
    zone_rules,
)
from scheduler.operations.lifecycle import delete_schedule, pause_schedule, resume_schedule
from scheduler.operations.reports import complete_run, heartbeat_run
from scheduler.operations.requests import keep_up_with, request_run
from scheduler.operations.runs import cancel_run, dismiss_run, reconcile_run, redrive_run, trigger_schedule
from scheduler.operations.timeline import settle, what_is_ahead

__all__ = [
    "AppliedChange",
    "FieldChange",
    "JobSpec",
    "apply_schedules",
    "cancel_run",
    "complete_run",
    "create_schedule",
    "delete_schedule",
    "dismiss_run",
    "edit_schedule",
    "heartbeat_run",
    "keep_up_with",
    "pause_schedule",
    "put_schedule",
    "reconcile_run",
    "redrive_run",
    "request_run",
    "reread",
    "resume_schedule",
    "settle",
    "sync_targets",
    "trigger_schedule",
    "what_is_ahead",
    "zone_rules",
]
