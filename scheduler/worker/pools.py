"""Where claimed runs are run: in threads or greenlets of this process, or in its children."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from celery.exceptions import ImproperlyConfigured

from scheduler.worker import runtime
from scheduler.worker.board import Board
from scheduler.worker.children import Children
from scheduler.worker.execution import Held
from scheduler.worker.registry import JobSpec
from scheduler.worker.runtime import Worker
from scheduler.worker.sessions import SessionKeeper

LOOK_S = 0.5


class Pool(Protocol):
    board: Board

    def start_session(self, session: SessionKeeper) -> None:
        """In a thread that no job can hold up."""

    def begin(self, worker: Worker) -> None:
        """Once Celery's pool stands; a pool of processes has forked by then."""

    def register_with_event_loop(self, hub: Any) -> None:
        """At every connection, where there is an event loop."""

    def hand_over(self, request: Any, claim_id: UUID) -> None:
        """Have the run of this claim run. From the thread that owns the connection."""

    def end_hard(self) -> None:
        """The process is about to leave: nothing of what it holds may run on."""


Stuck: TypeAlias = Callable[[Callable[[], list[Held]]], None]


def pool_of(consumer: Any, *, slot_is_free: Callable[[], None], stuck: Stuck) -> Pool:
    """`slot_is_free` is called at the end of each run, from any thread; `stuck`, once, when runs have ended
    without their threads: with what tells which they are by then.
    """
    name = type(consumer.pool).__module__.rpartition(".")[2]
    if name == "thread":
        return Threads(consumer, slot_is_free, stuck)
    if name == "prefork":
        return Children(consumer, slot_is_free)
    if name == "gevent":
        from scheduler.worker.greenlets import Greenlets  # gevent is loaded where it is the pool

        return Greenlets(consumer, slot_is_free)
    raise ImproperlyConfigured(f"--pool: {name!r} is none of threads, prefork, gevent")


class Threads:
    """Runs in threads of this process. A thread cannot be ended: the sweep ends its run, and where it does
    not notice, the process has to go.
    """

    def __init__(self, consumer: Any, slot_is_free: Callable[[], None], stuck: Stuck) -> None:
        self.board = Board()
        self._consumer = consumer
        self._run = consumer.on_task_request
        self._slot_is_free = slot_is_free
        self._stuck = stuck
        self._lost_since: dict[int, float] = {}
        self._worker: Worker | None = None

    def start_session(self, session: SessionKeeper) -> None:
        session.start()

    def begin(self, worker: Worker) -> None:
        self._worker = worker
        runtime.install(self)
        threading.Thread(target=self._watch, name="fencepost-watch", daemon=True).start()

    def register_with_event_loop(self, hub: Any) -> None:
        """Nothing."""

    def hand_over(self, request: Any, claim_id: UUID) -> None:
        request.request_dict[runtime.CLAIM] = str(claim_id)
        self._run(request)

    def end_hard(self) -> None:
        """They end with the process."""

    def execute(self, claim_id: UUID, spec: JobSpec) -> BaseException | None:
        assert self._worker is not None
        try:
            return self._worker.execute(claim_id, spec)
        finally:
            self._slot_is_free()

    def _watch(self) -> None:
        while not self._that_do_not_end():
            time.sleep(LOOK_S)
        self._stuck(self._that_do_not_end)

    def _that_do_not_end(self) -> list[Held]:
        """Whose run was taken from them longer ago than its grace."""
        assert self._worker is not None
        now = time.monotonic()
        lost = {held.claimed.fence: held for held in self._worker.held() if held.lost.is_set()}
        self._lost_since = {fence: self._lost_since.get(fence, now) for fence in lost}
        return [
            held
            for fence, held in lost.items()
            if now - self._lost_since[fence] > held.claimed.cancel_grace_s
        ]
