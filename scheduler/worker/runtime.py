"""A worker process without its Celery: session, flusher and the table of what is held."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from scheduler import telemetry
from scheduler.core.states import Refusal, State
from scheduler.store import claims
from scheduler.store.claims import Claim, Claimed
from scheduler.store.sessions import Load
from scheduler.store.statements import DATABASE_AWAY, Connection
from scheduler.worker import registry
from scheduler.worker.execution import Held, attempt
from scheduler.worker.flusher import ClaimAnswer, ClaimWish, EndWish, Flusher
from scheduler.worker.reconciler import Reconciler
from scheduler.worker.registry import JobSpec
from scheduler.worker.sessions import SessionKeeper

Connect: TypeAlias = Callable[[str], Connection]
Answer: TypeAlias = Callable[[UUID | Refusal], None]


class Worker:
    """Claims runs, executes them under their fences and writes their ends.

    `load` is asked at each renewal for what the process has to say of itself; `abandoned` is called when the
    session ran out unrenewed while runs were held.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        name: str,
        session_s: float,
        load: Callable[[], Load],
        abandoned: Callable[[], None],
    ) -> None:
        self._held: dict[UUID, Held] = {}
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._flusher = Flusher(connect)
        self._progress = _ProgressLine(connect)
        self._reconciler = Reconciler(connect, registry.jobs, hook_s=session_s)
        self._session = SessionKeeper(
            connect, worker=name, length_s=session_s, load=load, held=self.held, abandoned=abandoned
        )

    def start(self) -> None:
        self._flusher.start()
        self._session.start()
        self._reconciler.start()

    @property
    def can_claim(self) -> bool:
        return self._session.session_id is not None

    def held(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def claim(self, run_id: UUID, due_at: datetime, answer: Answer) -> None:
        """Ask for a run. `answer` is called from another thread: with the claim id, or with why not."""
        session_id = self._session.session_id
        if session_id is None:
            answer(Refusal.SESSION_LOST)
            return
        claim = Claim(run_id=run_id, due_at=due_at, claim_id=uuid4(), trace_id=None)
        self._flusher.submit(
            ClaimWish(
                claim=claim,
                session_id=session_id,
                answer=lambda found: answer(self._keep(found, session_id)),
            )
        )

    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        """Run the job that this claim holds, in the calling thread, and hand in its end.

        Does not wait for the end to be written: the next run need not. Returns what the job raised.
        """
        held = self._held[claim_id]
        ending, error = attempt(held, spec, self._progress)

        def written(accepted: bool) -> None:
            # Held until its end is on record: a renewal that no longer named it would disown its lease.
            with self._lock:
                self._held.pop(claim_id, None)
            if not accepted:
                telemetry.stale(held.claimed.run_id, held.claimed.fence)
            elif ending.state is State.UNKNOWN:
                telemetry.outcome_unknown(held.claimed.run_id, held.claimed.fence)

        self._flusher.submit(EndWish(ending=ending, answer=written))
        return error

    def drain(self) -> None:
        """Ask the jobs that agreed to it to stop; their runs go back to the queue, uncounted."""
        self._draining.set()

    def finish(self, timeout_s: float) -> None:
        """Write what was handed in, then end the session: what still runs is the sweep's to take up again."""
        self._reconciler.finish(0.5)  # it holds nothing that others could not ask again
        self._flusher.finish(timeout_s)
        self._session.finish(timeout_s)
        self._progress.close()

    def _keep(self, found: ClaimAnswer, session_id: UUID) -> UUID | Refusal:
        if isinstance(found, Refusal):
            telemetry.claim_refused(found)
            return found
        held = Held(
            claimed=found,
            session_id=session_id,
            good_until=self._session.watch_over(session_id),
            draining=self._draining,
            ends_at=(now := time.monotonic()) + found.timeout_s,
            heard_at=now,
        )
        with self._lock:
            self._held[found.claim_id] = held
        telemetry.LEASES_GRANTED.inc()
        telemetry.DUE_TO_START.observe(_lateness_s(found))
        return found.claim_id


@dataclass(frozen=True, kw_only=True)
class _Installed:
    worker: Worker
    slot_is_free: Callable[[], None]


_installed: _Installed | None = None


def install(worker: Worker, slot_is_free: Callable[[], None]) -> None:
    """Make `worker` the one of this process. `slot_is_free` is called when a job's function has returned."""
    global _installed
    _installed = _Installed(worker=worker, slot_is_free=slot_is_free)


def execute_here(claim_id: UUID, spec: JobSpec) -> BaseException | None:
    """What a job's Celery task does, in the pool's thread."""
    if _installed is None:
        raise RuntimeError("this process is no Fencepost worker")
    try:
        return _installed.worker.execute(claim_id, spec)
    finally:
        _installed.slot_is_free()


class _ProgressLine:
    """One connection for progress reports, opened when the first job reports any."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def report_progress(self, held: Held, progress: dict[str, Any]) -> bool:
        """True also when the database is away: progress is a courtesy, the lease is judged by the session."""
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect("worker progress")
                return claims.report_progress(self._connection, held.claimed, progress)
            except DATABASE_AWAY as error:
                telemetry.trouble("progress_not_reported", error=str(error).strip())
                self._connection = None
                return True

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _lateness_s(claimed: Claimed) -> float:
    return max(0.0, (claimed.granted_at - claimed.due_at).total_seconds())
