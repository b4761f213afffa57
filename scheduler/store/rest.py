"""Waking schedules at rest: in the transaction that ends a run, and by the sweep for what that missed."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from scheduler.core.errors import TriggerError
from scheduler.core.rest import Aim, NominalRuns, aim
from scheduler.core.triggers import trigger_of
from scheduler.store.statements import Connection, cursor, load

SQL = load("rest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resting:
    id: UUID
    effective_from: datetime
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    exclusions: list[dict[str, Any]]
    on_excluded: str
    calendars: dict[str, list[Any]]
    mode: str
    max_occurrences: int | None


def wake(connection: Connection, schedule_ids: Collection[UUID] | None = None, *, limit: int = 1000) -> int:
    """Give a next instant, or an end, to the schedules whose rest is over; how many. None: all that rest.

    Needs an open transaction. A schedule that somebody holds locked is left to the next call.
    """
    ids = None if schedule_ids is None else sorted(schedule_ids)
    with cursor(connection, class_row(Resting)) as rows:
        resting = rows.execute(SQL["resting_schedules"], {"schedule_ids": ids, "limit": limit}).fetchall()
    if not resting:
        return 0
    aims = {schedule.id: _aim(connection, schedule) for schedule in resting}
    woken = {schedule_id: found for schedule_id, found in aims.items() if not found.rests}
    parameters = {"schedule_ids": list(woken), "next": [found.next_due_at for found in woken.values()]}
    connection.execute(SQL["aim"], parameters)
    return len(woken)


def nominal_runs(connection: Connection, schedule_id: UUID, *, counted: bool) -> NominalRuns:
    """`counted`: whether the number of runs matters. The caller holds the schedule locked."""
    with cursor(connection, class_row(NominalRuns)) as rows:
        parameters = {"schedule_id": schedule_id, "counted": counted}
        found = rows.execute(SQL["nominal_runs"], parameters).fetchone()
    assert found is not None  # an aggregate always answers
    return found


def _aim(connection: Connection, schedule: Resting) -> Aim:
    """After its last run: what fell due while it rested is late, and its catch-up policy decides."""
    limit = schedule.max_occurrences
    runs = nominal_runs(connection, schedule.id, counted=limit is not None)
    try:
        trigger = trigger_of(schedule)
    except TriggerError:  # an edit will repair it; until then it rests
        return Aim(next_due_at=None, rests=True)
    begin = runs.last_due_at or schedule.effective_from
    return aim(trigger, mode=schedule.mode, max_occurrences=limit, runs=runs, begin=begin)
