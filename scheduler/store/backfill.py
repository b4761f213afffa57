"""Rows of a backfill. The caller owns the transaction and holds the schedule locked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import scalar_row

from scheduler.store.due import TZDATA_VERSION
from scheduler.store.statements import Connection, cursor, load

SQL = load("backfill")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackfillRun:
    id: UUID
    due_at: datetime
    revision: int
    overlap: str


def instants_with_run(
    connection: Connection, schedule_id: UUID, *, begin: datetime, end: datetime
) -> set[datetime]:
    """Of [begin, end)."""
    with cursor(connection, scalar_row) as rows:
        parameters = {"schedule_id": schedule_id, "begin": begin, "end": end}
        return set(rows.execute(SQL["instants_with_run"], parameters))


def insert(
    connection: Connection,
    schedule_id: UUID,
    runs: Sequence[BackfillRun],
    *,
    origin_key: UUID,
    now: datetime,
) -> int:
    """How many were not there yet. `origin_key` names the request: repeated, it inserts nothing."""
    with cursor(connection, scalar_row) as rows:
        parameters = {
            "schedule_id": schedule_id,
            "ids": [run.id for run in runs],
            "due": [run.due_at for run in runs],
            "revisions": [run.revision for run in runs],
            "overlaps": [run.overlap for run in runs],
            "origin_key": origin_key,
            "now": now,
            "tzdata": TZDATA_VERSION,
        }
        found: int | None = rows.execute(SQL["insert"], parameters).fetchone()
    return found or 0
