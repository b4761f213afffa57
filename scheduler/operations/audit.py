"""The audit entry of a change to a schedule."""

from datetime import datetime
from typing import Any

from scheduler.models import (
    Schedule,
)
from tenants.operations import Actor, record


def record_change(
    actor: Actor,
    action: str,
    schedule: Schedule,
    *,
    at: datetime,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record(
        actor,
        action,
        tenant=schedule.tenant,
        at=at,
        subject_kind="schedule",
        subject_id=schedule.id,
        before=before,
        after=after,
    )
