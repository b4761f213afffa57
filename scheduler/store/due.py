"""Due schedules and the rows that their instants become."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from scheduler.core.materialise import DueSchedule, Move
from scheduler.store.statements import Connection, cursor, load

SQL = load("due")
TZDATA_VERSION = version("tzdata")


@dataclass(frozen=True, kw_only=True, slots=True)
class Materialised:
    moved: frozenset[UUID]
    inserted: int


def due_schedules(
    connection: Connection, *, shards: Sequence[int], horizon: datetime, limit: int
) -> list[DueSchedule]:
    with cursor(connection, class_row(DueSchedule), shared_json=True) as rows:
        return rows.execute(
            SQL["due_schedules"], {"shards": list(shards), "horizon": horizon, "limit": limit}
        ).fetchall()


def due_schedule(connection: Connection, schedule_id: UUID) -> DueSchedule | None:
    """None when the schedule is not active or has no next instant."""
    with cursor(connection, class_row(DueSchedule)) as rows:
        return rows.execute(SQL["due_schedule"], {"schedule_id": schedule_id}).fetchone()


def next_wake(connection: Connection, *, shards: Sequence[int]) -> datetime | None:
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["next_wake"], {"shards": list(shards)}).fetchone()


def lock_schedules(connection: Connection, schedule_ids: Sequence[UUID]) -> set[UUID]:
    """Those that could be locked without waiting: a batch that waited could meet another in a circle."""
    locked = connection.execute(SQL["lock_schedules"], {"schedule_ids": list(schedule_ids)})
    return {schedule_id for (schedule_id,) in locked}


def keep_counts(connection: Connection, schedule_ids: Sequence[UUID], *, now: datetime) -> None:
    """The caller holds the schedules locked."""
    connection.execute(SQL["keep_counts"], {"schedule_ids": list(schedule_ids), "now": now})


def materialise(connection: Connection, moves: Sequence[Move], *, now: datetime) -> Materialised:
    """Apply all moves in one statement; those whose schedule changed meanwhile do nothing."""
    rows = [(move, planned) for move in moves for planned in move.occurrences]
    parameters = {
        "schedule_ids": [move.due.id for move in moves],
        "revisions": [move.due.revision for move in moves],
        "expected": [move.due.next_due_at for move in moves],
        "next": [move.next_due_at for move in moves],
        "last": [move.occurrences[-1].due_at if move.occurrences else None for move in moves],
        "rests": [move.rests for move in moves],
        "row_schedule_ids": [move.due.id for move, _ in rows],
        "ids": [planned.id for _, planned in rows],
        "due": [planned.due_at for _, planned in rows],
        "dispatch": [planned.dispatch_at for _, planned in rows],
        "skips": [planned.skip_reason for _, planned in rows],
        "overdue": [planned.overdue for _, planned in rows],
        "coalesced": [planned.coalesced for _, planned in rows],
        "coalesced_from": [planned.coalesced_from for _, planned in rows],
        "overlaps": [planned.overlap for _, planned in rows],
        "now": now,
        "tzdata": TZDATA_VERSION,
    }
    with cursor(connection, class_row(_Materialised)) as answer:
        found = answer.execute(SQL["materialise"], parameters).fetchone()
    assert found is not None  # an aggregate always answers
    return Materialised(moved=frozenset(found.moved), inserted=found.inserted)


@dataclass(frozen=True)
class _Materialised:
    moved: list[UUID]
    inserted: int


def make_slots(connection: Connection, schedule_ids: Sequence[UUID]) -> None:
    connection.execute(SQL["make_slots"], {"schedule_ids": list(schedule_ids)})


def fault_schedule(
    connection: Connection, schedule_id: UUID, *, revision: int, fault: str, now: datetime
) -> bool:
    found = connection.execute(
        SQL["fault_schedule"],
        {"schedule_id": schedule_id, "revision": revision, "fault": fault, "now": now},
    ).fetchone()
    return found is not None


def request_run(
    connection: Connection,
    schedule_id: UUID,
    *,
    run_id: UUID,
    due_at: datetime,
    origin_key: UUID,
    overlap: str,
    now: datetime,
    payload: dict[str, Any] | None = None,
) -> UUID | None:
    """A `trigger` run of the revision in force; None: no such schedule. Its row is locked by the caller.

    `payload` instead of the revision's.
    """
    with cursor(connection, scalar_row) as rows:
        return rows.execute(
            SQL["request_run"],
            {
                "id": run_id,
                "due_at": due_at,
                "schedule_id": schedule_id,
                "origin_key": origin_key,
                "overlap": overlap,
                "now": now,
                "tzdata": TZDATA_VERSION,
                "payload": None if payload is None else Jsonb(payload),
            },
        ).fetchone()
