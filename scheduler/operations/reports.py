"""What an endpoint tells of a run that it was called for: that it is alive, and how the run has ended.

The fence is its right to say so. A fence that is void is refused without a word about the one in force:
whoever holds an old one must not be able to use a newer.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from scheduler import payloads, telemetry
from scheduler.core.retry import UNSAFE, Decision, RetryPolicy, after_failure
from scheduler.core.states import AttemptOutcome, State
from scheduler.errors import Conflict, FieldError, NotFound, ValidationFailed
from scheduler.models import Attempt, Mode, Occurrence, ScheduleRevision, TargetKind
from scheduler.orm import raw_connection, run_key
from scheduler.store import accepted, claims, schedules
from scheduler.store.accepted import Renewal
from scheduler.store.claims import Ending
from tenants.access import scoped
from tenants.models import Tenant

RESULT_BYTES: Final = 64 * 1024
RESUME_BYTES: Final = 4096  # it goes to the next attempt in a header
OUTCOMES: Final = ("succeeded", "failed", "retry")


@transaction.atomic
def heartbeat_run(tenant: Tenant, run_id: UUID, *, fence: int, progress: dict[str, Any]) -> Renewal:
    """The endpoint is alive. What `progress` has (`percent`, `note`, `resume`) replaces what is on record.

    Raises Conflict `superseded_fence` when the run is no longer held under this fence.
    """
    _check_document("resume", progress.get("resume"), RESUME_BYTES)
    connection, run = raw_connection(), _find(tenant, run_id)
    schedules.lock_run(connection, schedules.RunKey(run.due_at, run.id))
    renewal = accepted.heartbeat(connection, run.id, run.due_at, fence=fence, progress=progress)
    if renewal is None:
        raise _superseded()
    return renewal


def complete_run(
    tenant: Tenant,
    run_id: UUID,
    *,
    fence: int,
    outcome: str,
    result: Any = None,
    error: str = "",
    retry_after_s: float | None = None,
) -> None:
    """The endpoint says how the run ended. The same said again changes nothing, and is no error.

    Taken too, under its last fence, of a run whose outcome was unknown. Raises ValidationFailed, and Conflict
    `superseded_fence` when the run is no longer held under this fence.
    """
    _check_document("result", result, RESULT_BYTES)
    run = _find(tenant, run_id)
    revision = _revision(run)
    if outcome == "retry" and revision.target.side_effects == UNSAFE:
        detail = f"a run of an {UNSAFE} target is not tried again: use succeeded or failed."
        raise ValidationFailed(FieldError(field="outcome", code="not_applicable", detail=detail))
    said = _Said(outcome=outcome, result=result, error=error, retry_after_s=retry_after_s)
    if not _write(run, revision, fence, said):
        # In a transaction of its own: the refusal undoes the other, and is to be counted.
        claims.count_late_writes(raw_connection(), [said.ending(run, revision, fence)])
        telemetry.stale(run.id, fence)
        raise _superseded()


class _Said:
    """One completion, and what it makes of its run."""

    def __init__(self, *, outcome: str, result: Any, error: str, retry_after_s: float | None) -> None:
        self.outcome = outcome
        self.result = result
        self.retry_after_s = retry_after_s
        self.error = None if outcome == "succeeded" else {"type": f"endpoint_{outcome}", "message": error}

    def ending(self, run: Occurrence, revision: ScheduleRevision, fence: int) -> Ending:
        decision = self._decision(run, revision)
        succeeded = decision.state is State.SUCCEEDED
        return Ending(
            run_id=run.id,
            due_at=run.due_at,
            fence=fence,
            schedule_id=run.schedule_id,
            slotted=run.slotted,
            fixed_delay=revision.mode == Mode.FIXED_DELAY,
            state=decision.state,
            outcome=AttemptOutcome.SUCCEEDED if succeeded else AttemptOutcome.FAILED,
            result=self.result,
            error=self.error,
            delay_s=decision.delay_s,
            deadline_at=_deadline(run, revision),
            pause_after=revision.pause_after,
        )

    def worst(self, run: Occurrence, revision: ScheduleRevision, fence: int) -> Ending:
        """What it may make of the run at most: whoever locks does not know yet how often it was tried."""
        ending = self.ending(run, revision, fence)
        return ending if self.error is None else replace(ending, state=State.FAILED)

    def _decision(self, run: Occurrence, revision: ScheduleRevision) -> Decision:
        if self.outcome == "succeeded":
            return Decision(state=State.SUCCEEDED)
        return after_failure(
            RetryPolicy.of(revision.retry),
            run_id=run.id,
            attempt=run.tries,
            side_effects=revision.target.side_effects,
            permanent=self.outcome == "failed",
            asked_delay_s=self.retry_after_s,
        )

    def is_on_record(self, run: Occurrence, fence: int) -> bool:
        """Whether the attempt was ended just so: a completion is repeated when its answer was lost."""
        attempt = Attempt.objects.filter(due_at=run.due_at, run_id=run.id, fence=fence).first()
        if attempt is None or attempt.outcome not in (AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED):
            return False
        if self.error is None:
            return attempt.outcome == AttemptOutcome.SUCCEEDED
        return attempt.error is not None and attempt.error.get("type") == self.error["type"]


@transaction.atomic
def _write(run: Occurrence, revision: ScheduleRevision, fence: int, said: _Said) -> bool:
    """Whether it is on record, by this or an earlier time."""
    connection = raw_connection()
    claims.lock(connection, endings=[said.worst(run, revision, fence)])
    run = Occurrence.objects.get(**run_key(run.id))  # as whoever had it locked has left it
    ending = said.ending(run, revision, fence)
    if claims.end_attempts(connection, [ending], guard="holder"):
        return True
    return said.is_on_record(run, fence) or bool(claims.resolve_unknown(connection, [ending]))


def _find(tenant: Tenant, run_id: UUID) -> Occurrence:
    """Of HTTP targets alone: a worker that holds a run would be surprised by another's word about it."""
    run = scoped(Occurrence.objects.filter(**run_key(run_id)), tenant).first()
    if run is None:
        raise NotFound("No such run.")
    if _revision(run).target.kind != TargetKind.HTTP:
        raise Conflict("This is the run of a job: only endpoints of HTTP targets report on theirs.")
    return run


def _revision(run: Occurrence) -> ScheduleRevision:
    revisions = ScheduleRevision.objects.select_related("target")
    return revisions.get(schedule_id=run.schedule_id, number=run.revision)


def _deadline(run: Occurrence, revision: ScheduleRevision) -> datetime | None:
    """No attempt begins later."""
    deadline_s = revision.retry.get("deadline_s")
    return None if deadline_s is None else (run.counts_from or run.due_at) + timedelta(seconds=deadline_s)


def _check_document(field: str, document: Any, max_bytes: int) -> None:
    errors = payloads.faults(field, document, max_bytes=max_bytes)
    if errors:
        raise ValidationFailed(*errors)


def _superseded() -> Conflict:
    return Conflict("This fence does not hold the run (any more).", code="superseded_fence")
