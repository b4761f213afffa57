"""Runs in child processes: the prefork pool.

The parent has the session, claims, acknowledges, hands a run to a child that is free, and writes its end.
What a child has to say does not come back by Celery's pipes: they are read by the event loop, which stands
still while the broker is away, and runs would end only when it returns. It comes as datagrams, each whole or
not at all however the child dies, and a thread of the parent's reads them. The same thread sees that a child
is gone, sends the signals of time limits, and kills what will not stop. Celery's pool brings runs to free
children and replaces dead ones; what it reports of a run frees the slot.

Nothing but plain data crosses: what a job returned as JSON, what it raised as text.
"""

import json
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from billiard import get_start_method
from billiard.einfo import ExceptionInfo
from celery.app.trace import fast_trace_task
from celery.exceptions import Ignore, ImproperlyConfigured, SoftTimeLimitExceeded, TimeLimitExceeded
from celery.worker import state

from scheduler import telemetry
from scheduler.core.states import AttemptOutcome
from scheduler.db import engine_connection
from scheduler.store.claims import Claimed, Ending
from scheduler.worker import runtime
from scheduler.worker.board import Board
from scheduler.worker.execution import Held, attempt, broken_off
from scheduler.worker.registry import Function, JobSpec
from scheduler.worker.runtime import ProgressLine, Worker
from scheduler.worker.sessions import SessionKeeper

LOOK_S = 0.25  # how soon a child that is gone, or a limit that has passed, is noticed
MAINTAIN_S = 0.5  # Celery looks for dead children every five seconds, and sees most at once
DATAGRAM_BYTES = 256 * 1024  # results are bounded by 64 KiB, errors by 16 Ki characters


# ---- what crosses ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Handed:
    """A run on its way to a child. `place`: where on the board the parent writes what becomes of it."""

    claimed: Claimed
    session_id: UUID
    place: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A child is about to call the job; `at` on the monotonic clock, which all processes of a host share."""

    claim_id: UUID
    pid: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """`ending` without its result, which is JSON already: its bound is one of text."""

    claim_id: UUID
    ending: Ending
    result: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """For Celery's monitors. `failed`: None where they are to hear neither of success nor of failure."""

    failed: bool | None
    text: str
    runtime_s: float


Datagram: TypeAlias = Begun | Ended


# ---- in the child ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shared:
    """What the children find in their memory when they are forked."""

    board: Board
    to_parent: socket.socket


_shared: _Shared | None = None


def attempt_in_child(handed: Handed, *call: Any) -> Told:
    """What the pool calls in a child: the job's Celery task, for this run.

    SIGTERM to a whole process group is the parent's to act on: it waits for this job. To a child between two
    jobs it means what Celery means by it.
    """
    assert _shared is not None, "forked before there was a board"
    runtime.install(_Child(handed, _shared))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        failed, said, runtime_s = fast_trace_task(*call)
    finally:
        signal.signal(signal.SIGTERM, before)
    if failed and isinstance(said.exception, Ignore):
        return Told(failed=None, text="", runtime_s=runtime_s)
    text = str(said.traceback) if failed else str(said)
    return Told(failed=bool(failed), text=text, runtime_s=runtime_s)


class _Child:
    """Executes the one run that was handed over."""

    def __init__(self, handed: Handed, shared: _Shared) -> None:
        self._handed = handed
        self._shared = shared

    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        held = self._held()
        limit_s = held.claimed.timeout_s
        began = time.monotonic()
        self._send(Begun(claim_id=claim_id, pid=os.getpid(), at=began))
        function = _interruptible(spec.function, began + limit_s)
        ending, error = attempt(held, replace(spec, function=function), _progress_line())
        self._send(
            Ended(
                claim_id=claim_id,
                ending=replace(ending, result=None),
                result=json.dumps(ending.result, ensure_ascii=False),
            )
        )
        return error

    def _held(self) -> Held:
        handed, board = self._handed, self._shared.board
        place = board.find(handed.place, handed.claimed.fence)
        return Held(
            claimed=handed.claimed,
            session_id=handed.session_id,
            good_until=board.believed_until,
            sure_until=board.sure_until,
            lost=place.lost,
            cancelled=place.cancelled,
            draining=board.draining,
            ends_at=(now := time.monotonic()) + handed.claimed.timeout_s,
            heard_at=now,
        )

    def _send(self, datagram: Datagram) -> None:
        self._shared.to_parent.send(pickle.dumps(datagram))


def _interruptible(function: Function, deadline: float) -> Function:
    """`function`, in which the signal of its time limit raises, and only there: in what surrounds it the
    signal would break off the report of an end, and one that comes late would hit the next run.
    """
    inside = False

    def interrupt(*_: Any) -> None:
        if inside and time.monotonic() >= deadline:
            raise SoftTimeLimitExceeded

    def interruptible(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            return function(*args, **kwargs)
        finally:
            inside = False

    signal.signal(signal.SIGUSR1, interrupt)
    return interruptible


_own_progress: tuple[int, ProgressLine] | None = None


def _progress_line() -> ProgressLine:
    """This process's own: a connection must not be shared across a fork."""
    global _own_progress
    if _own_progress is None or _own_progress[0] != os.getpid():
        _own_progress = os.getpid(), ProgressLine(engine_connection)
    return _own_progress[1]


# ---- in the parent --------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class _Out:
    """A run that was handed over and has not ended. `doom`: as what it ends once its killed child is gone."""

    held: Held
    begun: Begun | None = None
    warned: bool = False
    unwanted_since: float | None = None
    doom: AttemptOutcome | None = None


class Children:
    """Hands runs to child processes, hears of their ends, and ends those whose child cannot tell any more."""

    def __init__(self, consumer: Any, slot_is_free: Callable[[], None]) -> None:
        global _shared
        if get_start_method(allow_none=True) not in (None, "fork"):
            raise ImproperlyConfigured("worker_pool_start_method: the prefork pool needs 'fork'")
        self.board = Board()
        self._consumer = consumer
        self._slot_is_free = slot_is_free
        self._worker: Worker | None = None
        self._out: dict[UUID, _Out] = {}
        self._lock = threading.RLock()
        self._reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DATAGRAM_BYTES)
        _shared = _Shared(board=self.board, to_parent=writer)

    def start_session(self, session: SessionKeeper) -> None:
        session.start()

    def begin(self, worker: Worker) -> None:
        """After the fork of the pool: threads do not survive it."""
        self._worker = worker
        self._consumer.pool.flush = self._finish_writes
        threading.Thread(target=self._attend, name="fencepost-children", daemon=True).start()

    def register_with_event_loop(self, hub: Any) -> None:
        """Most deaths show at once, by a pipe that closes: not where a child leaves processes of its own."""
        hub.call_repeatedly(MAINTAIN_S, self._consumer.pool.maintain_pool)

    def hand_over(self, request: Any, claim_id: UUID) -> None:
        assert self._worker is not None
        kept = self._worker.kept(claim_id)
        claimed = kept.held.claimed
        handed = Handed(claimed=claimed, session_id=kept.held.session_id, place=kept.place.index)
        with self._lock:
            self._out[claim_id] = _Out(held=kept.held)
        request.request_dict[runtime.CLAIM] = str(claim_id)
        self._consumer.pool.apply_async(
            attempt_in_child,
            args=(
                handed,
                request.type,
                request.id,
                request.request_dict,
                request.body,
                request.content_type,
                request.content_encoding,
            ),
            accept_callback=request.on_accepted,
            callback=partial(self._returned, request, claim_id),
            error_callback=partial(self._broke, request, claim_id),
            correlation_id=request.id,
        )

    def end_hard(self) -> None:
        """The process is about to leave: nothing of what it held runs on."""
        with self._lock:
            for out in self._out.values():
                if out.begun is not None:
                    _signal(out.begun.pid, signal.SIGKILL)

    # ---- what Celery's pool reports, in the thread of its event loop ----------------------------------

    def _returned(self, request: Any, claim_id: UUID, told: Told) -> None:
        self._settle(claim_id, AttemptOutcome.FAILED, "The task ended without having come to the job.")
        state.task_ready(request, successful=told.failed is False)
        if told.failed is False:
            request.send_event("task-succeeded", result=told.text, runtime=told.runtime_s)
        elif told.failed:
            request.send_event("task-failed", exception=told.text[-200:], traceback=told.text)
        self._slot_is_free()

    def _broke(self, request: Any, claim_id: UUID, error: ExceptionInfo) -> None:
        """The child is gone, or the pool could not bring the run to one."""
        is_limit = isinstance(error.exception, TimeLimitExceeded)
        outcome = AttemptOutcome.TIMED_OUT if is_limit else AttemptOutcome.LOST
        self._settle(claim_id, outcome, f"The child process ended: {error.exception}")
        state.task_ready(request)
        request.send_event("task-failed", exception=repr(error.exception), traceback=str(error.traceback))
        self._slot_is_free()

    def _settle(self, claim_id: UUID, outcome: AttemptOutcome, message: str) -> None:
        """What the child said before counts: its datagrams lie here by now."""
        with self._lock:
            self._hear()
            out = self._out.get(claim_id)
            if out is not None:
                self._break_off(claim_id, out.doom or outcome, message)

    def _finish_writes(self) -> None:
        """In place of the pool's flush, which after a lost connection drops what no child has accepted, since
        the broker delivers it again: ours are claimed, and acknowledged. But what the event loop, now reset,
        had written in part to a child must be written to its end.
        """
        pool = self._consumer.pool._pool
        jobs = [job for job in pool._cache.values() if getattr(job, "_writer", None) is not None]
        for job in jobs:
            writer = job._writer()
            if writer in pool._active_writers:
                pool._flush_writer(job._write_to, writer)

    # ---- the thread that attends to the children ------------------------------------------------------

    def _attend(self) -> None:
        while True:
            select.select([self._reader], [], [], LOOK_S)
            with self._lock:
                self._hear()
                self._look()

    def _hear(self) -> None:
        while True:
            try:
                datagram: Datagram = pickle.loads(self._reader.recv(DATAGRAM_BYTES, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return
            out = self._out.get(datagram.claim_id)
            if out is None:
                continue  # it was broken off, by a limit of Celery's own
            if isinstance(datagram, Begun):
                out.begun = datagram
            else:
                ending = replace(datagram.ending, result=json.loads(datagram.result))
                self._end(datagram.claim_id, ending)

    def _look(self) -> None:
        for claim_id, out in list(self._out.items()):
            if out.begun is None:
                continue
            if _has_exited(out.begun.pid):
                self._settle(claim_id, AttemptOutcome.LOST, "The child process died while it held this run.")
            elif out.doom is None:
                self._press(out, out.begun)

    def _press(self, out: _Out, begun: Begun) -> None:
        """Soft at the time limit; hard after the grace, also of a run that is not wanted any more."""
        now, claimed = time.monotonic(), out.held.claimed
        overdue_s = now - begun.at - claimed.timeout_s
        if out.held.cancelled.is_set() or out.held.lost.is_set():
            out.unwanted_since = out.unwanted_since or now
        if overdue_s > claimed.cancel_grace_s:
            self._kill(out, begun, AttemptOutcome.TIMED_OUT)
        elif out.unwanted_since is not None and now - out.unwanted_since > claimed.cancel_grace_s:
            is_cancel = out.held.cancelled.is_set()
            self._kill(out, begun, AttemptOutcome.CANCELLED if is_cancel else AttemptOutcome.LOST)
        elif overdue_s > 0 and not out.warned:
            out.warned = True
            _signal(begun.pid, signal.SIGUSR1)

    def _kill(self, out: _Out, begun: Begun, outcome: AttemptOutcome) -> None:
        """Its run ends when it is seen to be gone, so that a next attempt does not meet it."""
        out.doom = outcome
        telemetry.trouble("child_killed", run=str(out.held.claimed.run_id), pid=begun.pid, why=outcome)
        _signal(begun.pid, signal.SIGKILL)

    def _break_off(self, claim_id: UUID, outcome: AttemptOutcome, message: str) -> None:
        held = self._out[claim_id].held
        telemetry.trouble("attempt_" + outcome, run=str(held.claimed.run_id), fence=held.claimed.fence)
        self._end(claim_id, broken_off(held, outcome, message))

    def _end(self, claim_id: UUID, ending: Ending) -> None:
        assert self._worker is not None
        del self._out[claim_id]
        self._worker.end(claim_id, ending)


def _has_exited(pid: int) -> bool:
    """Whether this child is gone, without taking its exit status from Celery, which replaces it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal(pid: int, number: int) -> None:
    """Nothing, if the child is gone."""
    if not _has_exited(pid):
        os.kill(pid, number)
