"""A worker's session: renewed at a third of its length, and the judge of what the process still holds."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from uuid import UUID, uuid4

from scheduler import telemetry
from scheduler.store import sessions
from scheduler.store.sessions import Load
from scheduler.store.statements import DATABASE_AWAY, Connection
from scheduler.worker.execution import Held

RETRY_S = 0.5

# In lengths of a session, from the last renewal. With Postgres away nobody can take a run over, and jobs
# outlive a failover; a process that alone is cut off doubles, for the second length, what others were given.
BELIEF = 2


class SessionKeeper(threading.Thread):
    """Opens a session, renews it, and tells held runs that they are lost or cancelled.

    A session that could not be renewed in time claims nothing, and keeps what the sweep has not taken from
    it: the next renewal tells. Where it is the database that cannot be reached, the process believes in its
    runs for `BELIEF` lengths, and then `abandoned` is called: whoever holds runs by then had better leave.
    `believe` is told each time until when that is, on the monotonic clock, and until when it is certain.
    """

    def __init__(
        self,
        connect: Callable[[str], Connection],
        *,
        worker: str,
        length_s: float,
        load: Callable[[], Load],
        held: Callable[[], list[Held]],
        abandoned: Callable[[], None],
        believe: Callable[[float, float], None] = lambda until, sure_until: None,
    ) -> None:
        super().__init__(name="fencepost-session", daemon=True)
        self._connect = connect
        self._worker = worker
        self._length_s = length_s
        self._load = load
        self._held = held
        self._abandoned = abandoned
        self._believe = believe
        self._connection: Connection | None = None
        self._session_id: UUID | None = None
        self._good_until = 0.0
        self._believed_until = 0.0
        self._listed_at: datetime | None = None
        self._ending = threading.Event()
        self._opened = threading.Event()
        self._closed = threading.Event()

    @property
    def session_id(self) -> UUID | None:
        """None while there is none: nothing can be claimed then."""
        return self._session_id if time.monotonic() < self._good_until else None

    def watch_over(self, session_id: UUID) -> Callable[[], float]:
        """Until when, on the monotonic clock, what was claimed under this session may be believed held."""
        return lambda: self._believed_until if self._session_id == session_id else 0.0

    def sure_of(self, session_id: UUID) -> Callable[[], float]:
        """Until when nobody can have been given what was claimed under this session: its length from the last
        renewal. Beyond it a job that has begun goes on, in belief; none begins.
        """
        return lambda: self._good_until if self._session_id == session_id else 0.0

    def wait_open(self, timeout_s: float) -> bool:
        return self._opened.wait(timeout_s)

    def finish(self, timeout_s: float) -> None:
        """End the session: what it still held is the sweep's at once."""
        self._ending.set()
        self._closed.wait(timeout_s)

    def run(self) -> None:
        while not self._ending.is_set():
            self._ending.wait(self._step())
        self._close()
        self._closed.set()

    def _step(self) -> float:
        """One renewal or opening; seconds until the next."""
        try:
            connection = self._connected()
            if self._session_id is None or not self._renew(connection, self._session_id):
                self._open(connection)
            return self._length_s / 3
        except DATABASE_AWAY as error:
            telemetry.trouble("session_not_renewed", error=str(error).strip())
            self._drop_connection()
            if self._session_id is not None and time.monotonic() > self._believed_until and self._held():
                self._lose_everything()
                self._abandoned()
            return min(RETRY_S, self._length_s / 10)

    def _open(self, connection: Connection) -> None:
        self._lose_everything()
        session_id, began = uuid4(), time.monotonic()
        sessions.open_session(
            connection,
            session_id,
            kind="worker",
            worker=self._worker,
            capacity=self._load().capacity,
            length_s=self._length_s,
        )
        self._session_id, self._listed_at = session_id, None
        self._trust(began)
        self._opened.set()

    def _renew(self, connection: Connection, session_id: UUID) -> bool:
        # Measured from before the statement: the process must not believe longer than the database does.
        began = time.monotonic()
        named = [held for held in self._held() if held.session_id == session_id]
        renewed_at = sessions.renew_session(
            connection, session_id, load=self._load(), length_s=self._length_s
        )
        if renewed_at is None:
            telemetry.trouble("session_over", session=str(session_id), held=len(named))
            return False
        # Only then is it trusted anew: in between, a job whose lease is gone would begin.
        self._compare(connection, session_id, named)
        self._trust(began)
        self._listed_at = renewed_at
        return True

    def _trust(self, began: float) -> None:
        self._good_until = began + self._length_s
        self._believed_until = began + BELIEF * self._length_s
        self._believe(self._believed_until, self._good_until)

    def _compare(self, connection: Connection, session_id: UUID, named: list[Held]) -> None:
        on_record = sessions.held_leases(connection, session_id)
        for held in named:
            lease = on_record.get(held.claimed.fence)
            if lease is None:
                held.lost.set()
            elif lease.cancel_requested:
                held.cancelled.set()
        if self._listed_at is not None and len(on_record) > len(named):
            sessions.disown_leases(
                connection,
                session_id,
                fences=[held.claimed.fence for held in named],
                listed_at=self._listed_at,
            )

    def _lose_everything(self) -> None:
        self._forget_session()
        for held in self._held():
            held.lost.set()

    def _close(self) -> None:
        try:
            if self._session_id is not None:
                sessions.close_session(self._connected(), self._session_id)
        except DATABASE_AWAY as error:
            telemetry.trouble("session_not_closed", error=str(error).strip())
        self._forget_session()
        self._drop_connection()

    def _forget_session(self) -> None:
        self._session_id, self._good_until, self._believed_until = None, 0.0, 0.0
        self._believe(0.0, 0.0)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect("worker session")
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
