"""A worker process without its Celery: session, flusher and the table of what is held."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import random
from typing import Any, Protocol, TypeAlias
from uuid import UUID, uuid4

from scheduler import telemetry
from scheduler.core.states import Refusal
from scheduler.store import claims
from scheduler.store.accepted import Park
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.store.sessions import Load
from scheduler.store.statements import DATABASE_AWAY, Connection
from scheduler.worker import registry
from scheduler.worker.board import Board, Place
from scheduler.worker.endpoints import EndpointBounds
from scheduler.worker.execution import Held, attempt
from scheduler.worker.flusher import ClaimAnswer, ClaimWish, EndWish, Flusher, ParkWish
from scheduler.worker.reconciler import Reconciler
from scheduler.worker.registry import JobSpec
from scheduler.worker.sessions import SessionKeeper

CLAIM = "fencepost_claim"  # the field of a Celery request that names the claim it runs under

Connect: TypeAlias = Callable[[str], Connection]
Answer: TypeAlias = Callable[[UUID | Refusal], None]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A run that is held, and its place on the board."""

    held: Held
    place: Place


class Worker:
    """Claims runs, executes them under their fences and writes their ends.

    `load` is asked at each renewal for what the process has to say of itself; `abandoned` is called when the
    session ran out unrenewed while runs were held. What the session says of a run is written on `board`.
    `start_session`: where greenlets pass for threads, how to start one that is none.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        name: str,
        session_s: float,
        load: Callable[[], Load],
        abandoned: Callable[[], None],
        endpoints: EndpointBounds | None = None,
        board: Board | None = None,
        start_session: Callable[[SessionKeeper], None] = SessionKeeper.start,
    ) -> None:
        self._endpoints = endpoints or EndpointBounds(capacity=lambda: sys.maxsize, share=1)
        self._kept: dict[UUID, Kept] = {}
        self._lock = threading.Lock()
        self._board = board or Board()
        self._start_session = start_session
        self._flusher = Flusher(connect)
        self._progress = ProgressLine(connect)
        self._reconciler = Reconciler(connect, registry.jobs, hook_s=session_s)
        self._session = SessionKeeper(
            connect,
            worker=name,
            length_s=session_s,
            load=load,
            held=self.held,
            abandoned=abandoned,
            believe=self._board.believe,
        )

    def start(self) -> None:
        self._flusher.start()
        self._start_session(self._session)
        self._reconciler.start()

    @property
    def can_claim(self) -> bool:
        return self._session.session_id is not None

    def held(self) -> list[Held]:
        with self._lock:
            return [kept.held for kept in self._kept.values()]

    def kept(self, claim_id: UUID) -> Kept:
        """What this claim won. KeyError once its end is on record."""
        return self._kept[claim_id]

    def claim(
        self, run_id: UUID, due_at: datetime, answer: Answer, *, endpoint: str = "", generation: int = 0
    ) -> None:
        """Ask for a run. `answer` is called from another thread: with the claim id, or with why not.

        One of an HTTP target names its endpoint: where that is busy the run is parked instead.
        """
        session_id = self._session.session_id
        if session_id is None:
            answer(Refusal.SESSION_LOST)
            return
        claim_id = uuid4()
        if endpoint and not self._endpoints.enter(claim_id, endpoint):
            park = Park(run_id=run_id, due_at=due_at, generation=generation, jitter=random())
            self._flusher.submit(ParkWish(park=park, answer=lambda: answer(Refusal.PARKED)))
            return
        trace_id = claim_id.hex if endpoint else None
        claim = Claim(run_id=run_id, due_at=due_at, claim_id=claim_id, trace_id=trace_id)
        self._flusher.submit(
            ClaimWish(
                claim=claim,
                session_id=session_id,
                answer=lambda found: answer(self._keep(found, claim_id, session_id)),
            )
        )

    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        """Run the job that this claim holds, in the calling thread, and hand in its end.

        Does not wait for the end to be written: the next run need not. Returns what the job raised.
        """
        ending, error = attempt(self._kept[claim_id].held, spec, self._progress)
        self.end(claim_id, ending)
        return error

    def end(self, claim_id: UUID, ending: Ending) -> None:
        """Hand in how the attempt ended. Once for each claim."""
        self._endpoints.leave(claim_id)

        def written(accepted: bool) -> None:
            # Held until its end is on record: a renewal that no longer named it would disown its lease.
            with self._lock:
                kept = self._kept.pop(claim_id, None)
            if kept is not None:
                self._board.give_back(kept.place)
            if not accepted:
                telemetry.stale(ending.run_id, ending.fence)

        self._flusher.submit(EndWish(ending=ending, answer=written))

    def drain(self) -> None:
        """Ask the jobs that agreed to it to stop; their runs go back to the queue, uncounted."""
        self._board.draining.set()

    def finish(self, timeout_s: float) -> None:
        """Write what was handed in, then end the session: what still runs is the sweep's to take up again."""
        self._reconciler.finish(0.5)  # it holds nothing that others could not ask again
        self._flusher.finish(timeout_s)
        self._session.finish(timeout_s)
        self._progress.close()

    def _keep(self, found: ClaimAnswer, claim_id: UUID, session_id: UUID) -> UUID | Refusal:
        if isinstance(found, Refusal):
            self._endpoints.leave(claim_id)
            telemetry.claim_refused(found)
            return found
        place = self._board.take(found.fence)
        held = Held(
            claimed=found,
            session_id=session_id,
            good_until=self._session.watch_over(session_id),
            sure_until=self._session.sure_of(session_id),
            lost=place.lost,
            cancelled=place.cancelled,
            draining=self._board.draining,
            ends_at=(now := time.monotonic()) + found.timeout_s,
            heard_at=now,
        )
        with self._lock:
            self._kept[found.claim_id] = Kept(held=held, place=place)
        if not held.good_until():  # its session ended in between, and may not have seen it among the held
            held.lost.set()
        telemetry.LEASES_GRANTED.inc()
        telemetry.DUE_TO_START.observe(_lateness_s(found))
        return found.claim_id


class Executor(Protocol):
    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        """Run the job that this claim holds and hand in its end. Returns what the job raised."""


_executor: Executor | None = None


def install(executor: Executor) -> None:
    """Say who executes runs in this process; a child of a pool says otherwise than its parent did."""
    global _executor
    _executor = executor


def execute_here(claim_id: UUID, spec: JobSpec) -> BaseException | None:
    """What a job's Celery task does, where its pool runs it."""
    if _executor is None:
        raise RuntimeError("this process is no Fencepost worker")
    return _executor.execute(claim_id, spec)


class ProgressLine:
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
