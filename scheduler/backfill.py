"""Backfill: runs for due instants of the past, each by the revision that was in force at it."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Final
from uuid import UUID

from django.db import transaction

from scheduler.core import identity
from scheduler.core.rest import Mode
from scheduler.core.triggers import trigger_of
from scheduler.errors import Conflict, FieldError, NotFound, ValidationFailed
from scheduler.models import Overlap, Schedule, ScheduleRevision, ScheduleState
from scheduler.operations import settle
from scheduler.orm import database_time, raw_connection
from scheduler.store import backfill as rows
from scheduler.store import due
from scheduler.store.backfill import BackfillRun
from tenants.access import scoped
from tenants.models import Tenant
from tenants.operations import Actor, record

MOST_INSTANTS: Final = 10_000
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """What a backfill did, or would do. `instants` = `existing` + `missing`; `runs` are new: the missing
    ones, or all of them where existing ones were to run again."""

    instants: int
    existing: int
    runs: int

    @property
    def missing(self) -> int:
        return self.instants - self.existing


@transaction.atomic
def backfill_schedule(
    tenant: Tenant,
    schedule_id: UUID,
    *,
    begin: datetime,
    end: datetime,
    overlap: str | None = None,
    rerun: bool = False,
    dry_run: bool = False,
    request_key: UUID,
    actor: Actor,
) -> Backfill:
    """Make a run for each due instant of [begin, end) that has none; with `rerun`, for each.

    `end` must not lie ahead. Instants before the first revision are those of the first one. The runs wait for
    each other unless the policy is `allow`, or `overlap` says otherwise.
    Raises ValidationFailed, NotFound, Conflict.
    """
    _check_overlap(overlap)
    schedule = scoped(Schedule.objects.select_for_update(), tenant).filter(id=schedule_id).first()
    if schedule is None:
        raise NotFound("No such schedule.")
    if schedule.state == ScheduleState.CANCELLED:
        raise Conflict("The schedule is cancelled.", state=schedule.state)
    now = database_time()
    _check_range(begin, end, now)
    settle(schedule.id, now)  # what a tick has not got to yet is its own, not missing
    due_then = _instants(schedule, begin, end)
    with_run = rows.instants_with_run(raw_connection(), schedule.id, begin=begin, end=end)
    wanted = [one for one in due_then if rerun or one[0] not in with_run]
    if wanted and not dry_run:
        _insert(schedule, wanted, overlap=overlap, request_key=request_key, now=now)
    done = Backfill(
        instants=len(due_then),
        existing=sum(instant in with_run for instant, _ in due_then),
        runs=len(wanted),
    )
    if not dry_run:
        _record(actor, schedule, done, begin=begin, end=end, rerun=rerun, now=now)
    return done


def _check_overlap(overlap: str | None) -> None:
    policies = [policy.value for policy in Overlap]
    if overlap is not None and overlap not in policies:
        detail = f"use one of {', '.join(policies)}."
        raise ValidationFailed(FieldError(field="overlap", code="invalid_choice", detail=detail))


def _check_range(begin: datetime, end: datetime, now: datetime) -> None:
    if begin >= end:
        raise ValidationFailed(
            FieldError(field="to", code="out_of_range", detail="'to' must lie after 'from'.")
        )
    if end > now:
        detail = "a backfill is for the past: 'to' lies ahead."
        raise ValidationFailed(FieldError(field="to", code="in_the_future", detail=detail))


def _instants(schedule: Schedule, begin: datetime, end: datetime) -> list[tuple[datetime, ScheduleRevision]]:
    """The due instants of [begin, end), each with the revision in force at it. Pauses make no difference."""
    found = list(islice(_each_instant(schedule, begin, end), MOST_INSTANTS + 1))
    if len(found) > MOST_INSTANTS:
        detail = f"the range holds more than {MOST_INSTANTS:,} instants: ask for a shorter one."
        raise ValidationFailed(FieldError(field="to", code="too_many", detail=detail))
    return found


def _each_instant(
    schedule: Schedule, begin: datetime, end: datetime
) -> Iterator[tuple[datetime, ScheduleRevision]]:
    revisions = list(schedule.revisions.select_related("target").order_by("number"))
    starts = [begin, *(revision.effective_from + _MICROSECOND for revision in revisions[1:]), end]
    for revision, (since, until) in zip(revisions, pairwise(starts), strict=True):
        if revision.mode == Mode.FIXED_DELAY:
            detail = "with a fixed delay no instant is known that did not come about."
            raise ValidationFailed(FieldError(field="from", code="not_applicable", detail=detail))
        for instant in trigger_of(revision).between(max(begin, since), min(end, until)):
            yield identity.whole_millisecond(instant), revision


def _insert(
    schedule: Schedule,
    wanted: Sequence[tuple[datetime, ScheduleRevision]],
    *,
    overlap: str | None,
    request_key: UUID,
    now: datetime,
) -> None:
    runs = [
        BackfillRun(
            id=identity.run_id(instant, os.urandom(10)),
            due_at=instant,
            revision=revision.number,
            overlap=overlap or _in_order(revision.overlap),
        )
        for instant, revision in wanted
    ]
    connection = raw_connection()
    if any(run.overlap != Overlap.ALLOW for run in runs):
        due.make_slots(connection, [schedule.id])
    rows.insert(connection, schedule.id, runs, origin_key=request_key, now=now)


def _in_order(policy: str) -> str:
    return policy if policy == Overlap.ALLOW else Overlap.BUFFER_ALL


def _record(
    actor: Actor,
    schedule: Schedule,
    done: Backfill,
    *,
    begin: datetime,
    end: datetime,
    rerun: bool,
    now: datetime,
) -> None:
    after = {"from": begin.isoformat(), "to": end.isoformat(), "rerun": rerun, "runs": done.runs}
    record(
        actor,
        "schedule.backfill",
        tenant=schedule.tenant,
        at=now,
        subject_kind="schedule",
        subject_id=schedule.id,
        after=after,
    )
