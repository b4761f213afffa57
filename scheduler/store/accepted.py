"""Runs of HTTP targets: accepted by an endpoint, or parked because it is busy. The caller has locked them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from scheduler.store.claims import Ending
from scheduler.store.statements import Connection, cursor, load

SQL = load("accepted")

# Between two looks at a run whose endpoint is busy, before a jitter that takes off up to half.
LEAST_PARKED_S: Final = 1.0
MOST_PARKED_S: Final = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Park:
    """A run that cannot be called for now. `jitter` from 0 to 1."""

    run_id: UUID
    due_at: datetime
    generation: int
    jitter: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewal:
    """`expires_at`: when the next heartbeat is due; None: none is. `ends_by`: the attempt's limit."""

    expires_at: datetime | None
    ends_by: datetime
    cancel_requested: bool


def hand_over(connection: Connection, endings: Sequence[Ending]) -> set[int]:
    """Let go of runs that their endpoints have accepted; the fences that were let go of.

    Once more is the same again: a commit whose answer was lost may be repeated.
    """
    return _fences(connection, "hand_over", endings)


def reported(connection: Connection, endings: Sequence[Ending]) -> set[int]:
    """Fences whose attempt has been ended by its endpoint."""
    return _fences(connection, "reported", endings)


def _fences(connection: Connection, statement: str, endings: Sequence[Ending]) -> set[int]:
    if not endings:
        return set()
    parameters = {
        "run_ids": [ending.run_id for ending in endings],
        "due": [ending.due_at for ending in endings],
        "fences": [ending.fence for ending in endings],
    }
    with cursor(connection, scalar_row) as rows:
        return set(rows.execute(SQL[statement], parameters))


def heartbeat(
    connection: Connection, run_id: UUID, due_at: datetime, *, fence: int, progress: dict[str, Any]
) -> Renewal | None:
    """Members of `progress` replace those on record. None: the lease is gone."""
    with cursor(connection, class_row(Renewal)) as rows:
        return rows.execute(
            SQL["heartbeat"],
            {"run_id": run_id, "due_at": due_at, "fence": fence, "progress": Jsonb(progress)},
        ).fetchone()


def park(connection: Connection, runs: Sequence[Park]) -> int:
    """How many were: whoever moved on meanwhile is left alone."""
    if not runs:
        return 0
    return connection.execute(
        SQL["park"],
        {
            "run_ids": [run.run_id for run in runs],
            "due": [run.due_at for run in runs],
            "generations": [run.generation for run in runs],
            "jitters": [run.jitter for run in runs],
            "least_s": LEAST_PARKED_S,
            "most_s": MOST_PARKED_S,
        },
    ).rowcount
