"""Runs of unknown outcome: which of them a hook is asked about, and what it has said."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from scheduler.core.states import State
from scheduler.store import failures, rest, schedules
from scheduler.store.schedules import RunKey
from scheduler.store.statements import Connection, cursor, load

SQL = load("unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A run whose hook is to be asked now, with its last attempt: number, fence and error."""

    run_id: UUID
    due_at: datetime
    schedule_id: UUID
    revision: int
    origin_key: UUID
    fence: int
    attempt: int
    error: dict[str, Any] | None
    tenant: str
    target: str
    payload: dict[str, Any]
    payload_ref: str | None


def look(
    connection: Connection, *, targets: Collection[str], again_s: float, longest_s: float
) -> Look | None:
    """Claim a look at one run of these targets. If nothing comes of it the next look is due after `again_s`,
    and after each time twice as long, up to `longest_s`.
    """
    with cursor(connection, class_row(Look)) as rows:
        parameters = {"targets": list(targets), "again_s": again_s, "longest_s": longest_s}
        return rows.execute(SQL["look"], parameters).fetchone()


def tell(connection: Connection, one: Look, state: State, *, actor: str) -> bool:
    """Settle the run as `operations.reconcile_run` does, if it is still unknown under the same fence; whether
    it was. What is to be tried again belongs to a schedule that is not cancelled. Needs an open transaction.
    """
    key = RunKey(one.due_at, one.run_id)
    failures.lock_schedules(connection, [one.schedule_id])
    if state is State.PENDING and not _may_run_again(connection, one.schedule_id):
        return False
    schedules.lock_slot(connection, one.schedule_id)
    schedules.lock_run(connection, key)
    if not schedules.reconcile(connection, key, state, fence=one.fence):
        return False
    rest.wake(connection, [one.schedule_id])
    if state is State.FAILED:
        failures.pause_if_failing(connection, one.schedule_id)
    connection.execute(
        SQL["record"],
        {
            "actor": actor[:200],
            "due_at": one.due_at,
            "run_id": one.run_id,
            "before": Jsonb({"state": State.UNKNOWN}),
            "after": Jsonb({"state": state, "fence": one.fence}),
        },
    )
    return True


def _may_run_again(connection: Connection, schedule_id: UUID) -> bool:
    with cursor(connection, scalar_row) as rows:
        return bool(rows.execute(SQL["may_run_again"], {"schedule_id": schedule_id}).fetchone())
