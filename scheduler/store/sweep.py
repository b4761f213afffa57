"""What the sweep looks for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row

from scheduler.core.breaker import Strain
from scheduler.store.statements import Connection, cursor, load

SQL = load("sweep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A run under a lease that nobody keeps any more."""

    run_id: UUID
    due_at: datetime
    fence: int
    schedule_id: UUID
    slotted: bool
    fixed_delay: bool
    tries: int
    retry: dict[str, Any]
    deadline_at: datetime | None
    pause_after: int | None
    side_effects: str
    is_silent: bool = False  # it promised to report


def dead_leases(connection: Connection, *, limit: int) -> list[Orphan]:
    return _orphans(connection, "dead_leases", limit=limit)


def overdue_leases(connection: Connection, *, silent: bool, limit: int) -> list[Orphan]:
    """`silent`: also those that could have reported, and did not."""
    return _orphans(connection, "overdue_leases", silent=silent, limit=limit)


def _orphans(connection: Connection, statement: str, **parameters: int) -> list[Orphan]:
    with cursor(connection, class_row(Orphan)) as rows:
        return rows.execute(SQL[statement], parameters).fetchall()


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """`held`: nothing of anybody's is to be ended now; `begins`: it is this look that saw the gap."""

    held: bool
    begins: bool


def look(connection: Connection, *, gap_s: float, hold_s: float) -> Look:
    """Say that a sweep looks. No sweep's look for longer than `gap_s` holds all of them for `hold_s`."""
    with cursor(connection, class_row(Look)) as rows:
        found = rows.execute(SQL["look"], {"gap_s": gap_s, "hold_s": hold_s}).fetchone()
    assert found is not None  # the one row is made with the table
    return found


def take_turn(connection: Connection, *, wait_s: float) -> bool:
    """Whether it is ours to put orphans back now: nobody has for `wait_s`."""
    return connection.execute(SQL["take_turn"], {"wait_s": wait_s}).fetchone() is not None


def strain(connection: Connection, *, window_s: float) -> Strain:
    """How busy the living workers are, and how many were lost in the last `window_s`."""
    with cursor(connection, class_row(Strain)) as rows:
        found = rows.execute(SQL["strain"], {"window_s": window_s}).fetchone()
    assert found is not None  # an aggregate always answers
    return found


def redispatch_unclaimed(connection: Connection, *, grace_s: float, limit: int) -> int:
    return connection.execute(SQL["redispatch_unclaimed"], {"grace_s": grace_s, "limit": limit}).rowcount


def rearm_without_waker(connection: Connection, *, after_s: float, limit: int) -> list[UUID]:
    with cursor(connection, scalar_row) as rows:
        return rows.execute(SQL["rearm_without_waker"], {"after_s": after_s, "limit": limit}).fetchall()


def make_partitions(connection: Connection) -> int:
    with cursor(connection, scalar_row) as rows:
        return int(rows.execute(SQL["make_partitions"]).fetchone() or 0)
