"""What people ask of the ledger, written and read. The caller owns the transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row

from scheduler.core.states import State
from scheduler.store import slots
from scheduler.store.statements import Connection, cursor, load

SQL = load("schedules")


@dataclass(frozen=True, slots=True)
class RunKey:
    """The primary key of a run."""

    due_at: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class Requested:
    """A run that was asked for. `payload` is its own; None where it has its revision's."""

    id: UUID
    due_at: datetime
    payload: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StateCount:
    schedule_id: UUID
    state: str
    runs: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """`shards_forsaken`: those without an owner for longer than the patience asked for."""

    ticks: int
    shards_unowned: int
    shards_forsaken: int
    oldest_due_age_s: float


def withdraw_look_ahead(connection: Connection, schedule_id: UUID, *, now: datetime) -> int:
    """Delete the pending nominal runs due after `now`, with their agenda rows; how many there were."""
    with cursor(connection, class_row(RunKey)) as rows:
        ahead = rows.execute(SQL["lock_look_ahead"], {"schedule_id": schedule_id, "now": now}).fetchall()
    connection.execute(SQL["withdraw"], _keys(ahead))
    return len(ahead)


def last_nominal(connection: Connection, schedule_id: UUID, *, now: datetime) -> datetime | None:
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["last_nominal"], {"schedule_id": schedule_id, "now": now}).fetchone()


def keep_called_off(
    connection: Connection, schedule_id: UUID, *, revision: int, effective_from: datetime
) -> None:
    connection.execute(
        SQL["keep_called_off"],
        {"schedule_id": schedule_id, "revision": revision, "effective_from": effective_from},
    )


def lock_slot(connection: Connection, schedule_id: UUID) -> None:
    """Precedes every lock on a run of the schedule: whoever parks and whoever frees meets here."""
    connection.execute(SQL["lock_slot"], {"schedule_id": schedule_id})


def lock_run(connection: Connection, run: RunKey) -> None:
    connection.execute(SQL["lock_run"], {"due_at": run.due_at, "id": run.id})


def lock_unfinished(connection: Connection, schedule_id: UUID) -> list[RunKey]:
    with cursor(connection, class_row(RunKey)) as rows:
        return rows.execute(SQL["lock_unfinished"], {"schedule_id": schedule_id}).fetchall()


def cancel(connection: Connection, runs: Sequence[RunKey], *, now: datetime) -> dict[UUID, State]:
    """By run: CANCELLED, or RUNNING where the run is only asked to stop; absent where nothing was to be done.
    The caller has locked the slot and the runs."""
    found = connection.execute(SQL["cancel"], {**_keys(runs), "now": now}).fetchall()
    return {run_id: State(state) for run_id, state in found}


def redrive(connection: Connection, run: RunKey) -> bool:
    """Whether the run, which the caller has locked, had failed for good and now waits again."""
    return connection.execute(SQL["redrive"], {"due_at": run.due_at, "id": run.id}).fetchone() is not None


def reconcile(connection: Connection, run: RunKey, state: State, *, fence: int | None = None) -> bool:
    """Whether the run, which the caller has locked after its slot, was UNKNOWN and is now `state`: SUCCEEDED,
    FAILED, or PENDING to be tried again. With `fence` only as long as no other attempt was made.
    """
    parameters = {"due_at": run.due_at, "id": run.id, "state": state, "fence": fence}
    told = connection.execute(SQL["reconcile"], parameters).fetchone() is not None
    if told and state is not State.PENDING:
        slots.give_slots_on(connection, [run.id])
    return told


def dismiss(connection: Connection, run: RunKey) -> bool:
    """Whether the run, which the caller has locked, had failed for good and was not dismissed yet."""
    return connection.execute(SQL["dismiss"], {"due_at": run.due_at, "id": run.id}).fetchone() is not None


def requested_run(
    connection: Connection, schedule_id: UUID, *, origin_key: UUID, since: datetime
) -> Requested | None:
    parameters = {"schedule_id": schedule_id, "origin_key": origin_key, "since": since}
    with cursor(connection, class_row(Requested)) as rows:
        return rows.execute(SQL["requested"], parameters).fetchone()


def hold_on_request(connection: Connection, *, tenant_id: UUID, target_id: UUID) -> UUID | None:
    """The schedule of a tenant's runs on request of a target, which now stays as it is until the caller's
    transaction ends. None: there is none yet.
    """
    parameters = {"tenant_id": tenant_id, "target_id": target_id}
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["hold_on_request"], parameters).fetchone()


def lock_request(connection: Connection, schedule_id: UUID, *, origin_key: UUID) -> None:
    """Whoever else asks under this key waits until the caller's transaction has ended."""
    connection.execute(SQL["lock_request"], {"schedule_id": schedule_id, "origin_key": origin_key})


def counts_by_state(connection: Connection, schedule_ids: Sequence[UUID], *, latest: int) -> list[StateCount]:
    with cursor(connection, class_row(StateCount)) as rows:
        return rows.execute(
            SQL["counts_by_state"], {"schedule_ids": list(schedule_ids), "latest": latest}
        ).fetchall()


def last_runs(connection: Connection, schedule_ids: Sequence[UUID], *, now: datetime) -> list[RunKey]:
    with cursor(connection, class_row(RunKey)) as rows:
        return rows.execute(SQL["last_runs"], {"schedule_ids": list(schedule_ids), "now": now}).fetchall()


def readiness(connection: Connection, *, shards: int, patience_s: float) -> Readiness:
    with cursor(connection, class_row(Readiness)) as rows:
        found = rows.execute(SQL["readiness"], {"shards": shards, "patience_s": patience_s}).fetchone()
    assert found is not None  # an aggregate over a row always answers
    return found


def _keys(runs: Sequence[RunKey]) -> dict[str, list[UUID] | list[datetime]]:
    return {"run_ids": [run.id for run in runs], "due": [run.due_at for run in runs]}
