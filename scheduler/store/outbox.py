"""The agenda: what is due, what was released, what the broker has confirmed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row, scalar_row

from scheduler.core.overlap import Slot
from scheduler.core.release import Candidate, Decision
from scheduler.store.statements import Connection, cursor, load

SQL = load("outbox")


@dataclass(frozen=True, kw_only=True, slots=True)
class AgendaRow:
    """`schedule_id` is None where the run is gone (withdrawn): such a row is out of date."""

    id: int
    dispatch_at: datetime
    run_id: UUID
    due_at: datetime
    generation: int
    tries: int
    schedule_id: UUID | None
    slotted: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A run that is QUEUED and must now be published; `queued`: this very release did it."""

    run_id: UUID
    due_at: datetime
    generation: int
    queued: bool


def due_rows(connection: Connection, *, shards: Sequence[int], limit: int) -> list[AgendaRow]:
    with cursor(connection, class_row(AgendaRow)) as rows:
        return rows.execute(SQL["due_rows"], {"shards": list(shards), "limit": limit}).fetchall()


def late_siblings(
    connection: Connection, schedule_ids: Collection[UUID], *, now: datetime
) -> list[AgendaRow]:
    with cursor(connection, class_row(AgendaRow)) as rows:
        return rows.execute(SQL["late_siblings"], {"schedule_ids": list(schedule_ids), "now": now}).fetchall()


def lock_slots(connection: Connection, schedule_ids: Collection[UUID]) -> dict[UUID, Slot]:
    """The slots, by schedule, that could be locked without waiting, as they are under the lock."""
    if not schedule_ids:
        return {}
    locked = connection.execute(
        SQL["lock_slots_free_of_waiting"], {"schedule_ids": list(schedule_ids)}
    ).fetchall()
    with cursor(connection, dict_row) as rows:
        rows.execute(SQL["slots"], {"schedule_ids": [schedule_id for (schedule_id,) in locked]})
        return {row.pop("schedule_id"): Slot(**row) for row in rows}


def rows_of_parked(connection: Connection, run_ids: Collection[UUID]) -> list[AgendaRow]:
    with cursor(connection, class_row(AgendaRow)) as rows:
        return rows.execute(SQL["rows_of_parked"], {"run_ids": list(run_ids)}).fetchall()


def lock_candidates(connection: Connection, rows: Sequence[AgendaRow]) -> list[Candidate]:
    """The runs of these rows under lock, paired with their rows; those that others hold are left out."""
    by_run: dict[UUID, list[AgendaRow]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    with cursor(connection, dict_row) as found:
        found.execute(
            SQL["lock_candidates"],
            {"run_ids": list(by_run), "due": [same[0].due_at for same in by_run.values()]},
        )
        return [_candidate(row, run) for run in found for row in by_run[run["run_id"]]]


def _candidate(row: AgendaRow, run: dict[str, Any]) -> Candidate:
    return Candidate(row_id=row.id, row_at=row.dispatch_at, row_generation=row.generation, **run)


def release(
    connection: Connection, decisions: Sequence[Decision], *, republish_s: float, recheck_s: float
) -> list[Standing]:
    """Carry the verdicts out; the runs to publish now. Nothing may be published before this is committed.

    Seconds until the agenda looks again: at what may not have been published, and at what is parked.
    """
    candidates = [decision.candidate for decision in decisions]
    with cursor(connection, class_row(Standing)) as rows:
        return rows.execute(
            SQL["release"],
            {
                "ids": [c.row_id for c in candidates],
                "at": [c.row_at for c in candidates],
                "run_ids": [c.run_id for c in candidates],
                "due": [c.due_at for c in candidates],
                "verdicts": [d.verdict for d in decisions],
                "reasons": [d.reason for d in decisions],
                "overdue": [d.overdue for d in decisions],
                "overlaps": [d.overlap for d in decisions],
                "look_by": [d.look_by for d in decisions],
                "republish_s": republish_s,
                "recheck_s": recheck_s,
            },
        ).fetchall()


def drop_rows(connection: Connection, rows: Sequence[AgendaRow]) -> None:
    """Rows whose run is gone."""
    _by_generation(connection, "confirmed", [(row.run_id, row.generation) for row in rows])


def confirmed(connection: Connection, runs: Sequence[tuple[UUID, int]]) -> int:
    """The broker has them, by (run, generation)."""
    return _by_generation(connection, "confirmed", runs)


def unconfirmed(connection: Connection, runs: Sequence[tuple[UUID, int]]) -> int:
    return _by_generation(connection, "unconfirmed", runs)


def _by_generation(connection: Connection, statement: str, runs: Sequence[tuple[UUID, int]]) -> int:
    if not runs:
        return 0
    return connection.execute(
        SQL[statement],
        {"run_ids": [run_id for run_id, _ in runs], "generations": [generation for _, generation in runs]},
    ).rowcount


def next_dispatch_s(connection: Connection, *, shards: Sequence[int]) -> float | None:
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["next_dispatch"], {"shards": list(shards)}).fetchone()
