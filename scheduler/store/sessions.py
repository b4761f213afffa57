"""Sessions of processes, and the leases they hold."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row, scalar_row

from scheduler.store.statements import Connection, cursor, load

SQL = load("sessions")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLease:
    run_id: UUID
    fence: int
    cancel_requested: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a process says of itself: runs it can hold, holds, and has messages for without a slot."""

    capacity: int = 0
    busy: int = 0
    prefetched: int = 0

    @property
    def taken(self) -> int:
        return self.busy + self.prefetched


def open_session(
    connection: Connection, session_id: UUID, *, kind: str, worker: str, capacity: int, length_s: float
) -> None:
    """`worker` is `host:pid`, for people; nothing is decided by it."""
    connection.execute(
        SQL["open_session"],
        {"id": session_id, "kind": kind, "worker": worker, "capacity": capacity, "length_s": length_s},
    )


def renew_session(
    connection: Connection, session_id: UUID, *, load: Load, length_s: float
) -> datetime | None:
    """The instant of the renewal by the database clock; None: the session is over."""
    with cursor(connection, scalar_row) as rows:
        return rows.execute(
            SQL["renew_session"],
            {
                "id": session_id,
                "length_s": length_s,
                "capacity": load.capacity,
                "busy": load.busy,
                "prefetched": load.prefetched,
            },
        ).fetchone()


def held_leases(connection: Connection, session_id: UUID) -> dict[int, HeldLease]:
    """By fence."""
    with cursor(connection, class_row(HeldLease)) as rows:
        return {row.fence: row for row in rows.execute(SQL["held_leases"], {"id": session_id})}


def disown_leases(
    connection: Connection, session_id: UUID, *, fences: Collection[int], listed_at: datetime
) -> int:
    """Give up leases older than `listed_at` that are not among `fences`; how many."""
    found = connection.execute(
        SQL["disown_leases"], {"id": session_id, "fences": list(fences), "listed_at": listed_at}
    )
    return found.rowcount


def close_session(connection: Connection, session_id: UUID) -> None:
    connection.execute(SQL["close_session"], {"id": session_id})


def live_sessions(connection: Connection, *, kind: str) -> int:
    with cursor(connection, scalar_row) as rows:
        return int(rows.execute(SQL["live_sessions"], {"kind": kind}).fetchone() or 0)


def forget_sessions(connection: Connection) -> int:
    return connection.execute(SQL["forget_sessions"]).rowcount
