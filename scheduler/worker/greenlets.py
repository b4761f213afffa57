"""Runs in greenlets of this process: the gevent pool.

Celery has patched the standard library by now, and threads are greenlets too. The one exception is the
session, which is renewed by a real thread: a job that computes without ever yielding stands in the way of all
others, yet what they hold must not be given to other workers for that.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import gevent
from celery.exceptions import TimeLimitExceeded
from gevent import GreenletExit, monkey

from scheduler import telemetry
from scheduler.errors import Cancelled, LeaseLost
from scheduler.worker import runtime
from scheduler.worker.board import Board
from scheduler.worker.execution import Held
from scheduler.worker.registry import Function, JobSpec
from scheduler.worker.runtime import Worker
from scheduler.worker.sessions import SessionKeeper

LOOK_S = 0.25
STILL_S = 10.0  # how long the loop may stand still with no job to blame


@dataclass(eq=False, kw_only=True)
class _Inside:
    """A greenlet that is in a job's function now."""

    held: Held
    greenlet: Any
    may_stay_until: float
    unwanted_since: float | None = None


class Greenlets:
    """Hands runs to greenlets, and throws them out of a job that passes its limits or is not wanted."""

    def __init__(self, consumer: Any, slot_is_free: Callable[[], None]) -> None:
        self.board = Board()
        self._run = consumer.on_task_request
        self._slot_is_free = slot_is_free
        self._inside: dict[UUID, _Inside] = {}
        self._turned_at = time.monotonic()
        self._worker: Worker | None = None

    def start_session(self, session: SessionKeeper) -> None:
        _start_real_thread(session.run)

    def begin(self, worker: Worker) -> None:
        self._worker = worker
        runtime.install(self)
        _start_real_thread(self._guard)
        threading.Thread(target=self._watch, name="fencepost-watch", daemon=True).start()

    def register_with_event_loop(self, hub: Any) -> None:
        """There is none of Celery's: gevent's is the loop."""

    def hand_over(self, request: Any, claim_id: UUID) -> None:
        request.request_dict[runtime.CLAIM] = str(claim_id)
        self._run(request)

    def end_hard(self) -> None:
        """They end with the process."""

    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        assert self._worker is not None
        held = self._worker.kept(claim_id).held
        try:
            return self._worker.execute(claim_id, replace(spec, function=self._bounded(held, spec.function)))
        finally:
            self._slot_is_free()

    def _bounded(self, held: Held, function: Function) -> Function:
        """`function`, which a passed limit and an unheeded cancellation end, and only there: thrown into what
        surrounds it, they would break off the report of its end. What is thrown is no Exception, so that jobs
        which catch those end too; outside it becomes what it means.
        """
        claimed = held.claimed
        limit_s = claimed.timeout_s + claimed.cancel_grace_s

        def bounded(*args: Any, **kwargs: Any) -> Any:
            inside = self._inside[claimed.claim_id] = _Inside(
                held=held,
                greenlet=gevent.getcurrent(),
                may_stay_until=time.monotonic() + limit_s + claimed.cancel_grace_s,
            )
            limit = gevent.Timeout.start_new(limit_s)
            try:
                return function(*args, **kwargs)
            except gevent.Timeout as passed:
                if passed is not limit:
                    raise
                raise TimeLimitExceeded(limit_s) from None
            except GreenletExit:
                if inside.unwanted_since is None:
                    raise
                if held.cancelled.is_set():
                    raise Cancelled(f"run {claimed.run_id} did not stop by itself") from None
                raise LeaseLost(f"run {claimed.run_id} is no longer held") from None
            finally:
                limit.close()
                del self._inside[claimed.claim_id]

        return bounded

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self._turned_at = time.monotonic()
            for inside in list(self._inside.values()):
                if inside.held.cancelled.is_set() or inside.held.lost.is_set():
                    self._press(inside)

    def _press(self, inside: _Inside) -> None:
        now, claimed = time.monotonic(), inside.held.claimed
        inside.unwanted_since = inside.unwanted_since or now
        if now - inside.unwanted_since <= claimed.cancel_grace_s:
            return
        telemetry.trouble("greenlet_killed", run=str(claimed.run_id))
        gevent.get_hub().loop.run_callback(self._throw, claimed.claim_id, inside)

    def _throw(self, claim_id: UUID, inside: _Inside) -> None:
        """From the loop itself, where between this look and the throw nothing else runs."""
        if self._inside.get(claim_id) is inside:
            inside.greenlet.throw(GreenletExit)

    def _guard(self) -> None:
        """A job that never yields cannot be thrown out, and its session would be renewed for ever. Once it is
        well past its limit the process has to go; what else it holds is run again. Counted in looks, and not
        by the clock: a process that was stopped and goes on has not stood still.
        """
        sleep = monkey.get_original("time", "sleep")
        seen, looks = 0.0, 0
        while True:
            sleep(LOOK_S)
            looks = looks + 1 if self._turned_at == seen else 0
            seen = self._turned_at
            latest = max((inside.may_stay_until for inside in list(self._inside.values())), default=0.0)
            if looks * LOOK_S > STILL_S and time.monotonic() > latest:
                telemetry.alert("loop_stands_still", inside=len(self._inside))
                os._exit(os.EX_TEMPFAIL)


def _start_real_thread(run: Callable[[], None]) -> None:
    monkey.get_original("_thread", "start_new_thread")(run, ())
