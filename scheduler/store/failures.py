"""`on_failure.pause_after`: a schedule that fails so often in a row is paused by whoever ends its run."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from scheduler import telemetry
from scheduler.store import schedules
from scheduler.store.statements import Connection, cursor, load

SQL = load("failures")

ACTOR: Final = "on_failure.pause_after"
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Standing:
    now: datetime
    pause_after: int
    next_due_at: datetime | None
    last_due_at: datetime | None
    effective_from: datetime
    max_occurrences: int | None


def lock_schedules(connection: Connection, schedule_ids: Collection[UUID]) -> None:
    connection.execute(SQL["lock_schedules"], {"schedule_ids": sorted(schedule_ids)})


def pause_if_failing(connection: Connection, schedule_id: UUID) -> bool:
    """Pause a schedule, which the caller has locked before slots and runs, if its latest runs have failed so
    often in a row as its revision in force says; whether that was so.
    """
    with cursor(connection, class_row(_Standing)) as rows:
        found = rows.execute(SQL["standing"], {"schedule_id": schedule_id}).fetchone()
    if found is None or _failed_in_a_row(connection, schedule_id, found.pause_after) < found.pause_after:
        return False
    withdrawn = schedules.withdraw_look_ahead(connection, schedule_id, now=found.now)
    last_due_at = found.last_due_at
    if withdrawn:
        last_due_at = schedules.last_nominal(connection, schedule_id, now=found.now)
    note = f"Paused after {found.pause_after} failed runs in a row."
    connection.execute(
        SQL["pause"],
        {
            "schedule_id": schedule_id,
            "now": found.now,
            "last_due_at": last_due_at,
            "began_at": _accounted_until(found, last_due_at, withdrawn=withdrawn > 0),
            "actor": ACTOR,
            "note": note,
            "after": Jsonb({"note": note, "pause_after": found.pause_after}),
        },
    )
    telemetry.alert("schedule_paused", schedule=str(schedule_id), failures=found.pause_after)
    return True


def lately_dead(connection: Connection, *, within_s: float, limit: int) -> list[UUID]:
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["lately_dead"], {"within_s": within_s, "limit": limit}).fetchall()


def _failed_in_a_row(connection: Connection, schedule_id: UUID, most: int) -> int:
    with cursor(connection, scalar_row) as rows:
        parameters = {"schedule_id": schedule_id, "pause_after": most}
        return int(rows.execute(SQL["failed_in_a_row"], parameters).fetchone() or 0)


def _accounted_until(found: _Standing, last_due_at: datetime | None, *, withdrawn: bool) -> datetime:
    """Up to where the schedule's instants have rows. A person's pause has what is due made into rows first;
    here the pause begins before what no tick has met, and resuming with `catch_up` goes on from there.
    """
    at_limit = found.next_due_at is None and found.max_occurrences is not None and not withdrawn
    if at_limit:  # what comes after the last of max_occurrences is nobody's
        return max(found.effective_from, last_due_at or found.effective_from)
    reached = found.now
    if found.next_due_at is not None and found.next_due_at <= found.now:
        reached = found.next_due_at - _MICROSECOND
    return max(reached, last_due_at) if last_due_at else reached
