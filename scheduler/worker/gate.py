"""Between Celery's consumer and its pool: claim first, acknowledge when durable, then run.

A message is a hint. It waits here, unacknowledged and unclaimed, until a slot is free; then the run is
claimed, and once the claim or its refusal is committed the message is acknowledged. So a worker killed
before loses nothing, and a job of hours never meets the broker's consumer time-out.

All of Celery that is touched, documented or not, is touched in this module and in pools.py, greenlets.py
and children.py (Celery and kombu are pinned to their minors; tests/worker/test_celery_surface.py fails when a
name changes):
`Consumer.on_task_request`, `.amqheartbeat`, `.hub`, `.timer`, `.task_consumer`, `.connection`, `.pool`;
`Hub.add_reader`, `.call_repeatedly`; `Timer.call_repeatedly`; `Request.message`, `.request_dict`,
`.acknowledged`, `.type`, `.body`, `.content_type`, `.content_encoding`, `.on_accepted`, `.send_event`;
`TaskConsumer._add_tag`, `._receive_callback`, `._active_tags`; `Channel._remove_tag`;
`state.task_ready`, `.should_stop`; `trace.fast_trace_task`;
`TaskPool.num_processes`, and of prefork's `.apply_async`, `.maintain_pool`, `.flush`, `._pool`;
`AsynPool._cache`, `._active_writers`, `._flush_writer`; `ApplyResult._writer`, `._write_to`.
Every AMQP call is made by the thread that owns the connection; with gevent, which has one thread, by whoever
holds the lock.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from amqp import RecoverableConnectionError
from celery import bootsteps, signals
from celery.utils.log import get_logger
from celery.worker import state
from django.conf import settings

from scheduler import telemetry
from scheduler.core.states import Refusal
from scheduler.db import engine_connection
from scheduler.faultpoints import fault_point
from scheduler.store.sessions import Load
from scheduler.topology import is_amqp
from scheduler.worker.endpoints import EndpointBounds
from scheduler.worker.execution import Held
from scheduler.worker.pools import pool_of
from scheduler.worker.runtime import Worker

# No slot came free for so long: what is in hand goes back, another worker may have one. At 0.05 a busy host,
# whose claims alone take longer, fetched each message 2.6 times and ran 110 a second; at 0.3 it ran 260.
HOLD_S = 0.3
PUMP_S = 0.02
ABANDON_S = 5.0  # for jobs to notice that they are no longer held, before the process ends under them
DRAIN_S = 8.0  # of the ten seconds after SIGTERM; the rest is for writing ends and leaving

_log = get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class Delivery:
    """A message in hand."""

    request: Any
    run_id: UUID
    due_at: datetime
    received_at: float
    generation: int
    endpoint: str  # of an HTTP target, else empty


class Gate(bootsteps.StartStopStep):
    """A step of the consumer's blueprint: created before its strategies bind `on_task_request`."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._consumer = consumer
        self._run = consumer.on_task_request
        self._pool = pool_of(consumer, slot_is_free=self._slot_is_free, stuck=self._retreat)
        consumer.on_task_request = self.receive
        if not consumer.hub:
            consumer.amqheartbeat = 0  # with gevent, heartbeats wait on the events' connection: 11 tasks/s
        self._in_hand: deque[Delivery] = deque()
        self._busy = 0
        self._claiming = 0  # claims asked for and not yet settled
        self._is_remote = is_amqp(settings.CELERY_BROKER_URL)
        self._pump_timer: Any = None
        self._quietest: Load | None = None  # since the last renewal of the session
        self._moved_at = 0.0  # when a message last went from the hand to a slot
        self._subscribed = True
        self._cancelled_tags: list[str] = []
        self._draining = False
        self._leaving = threading.Event()
        self._lock = threading.RLock()
        self._mail: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._worker: Worker | None = None

    # ---- life of the step -----------------------------------------------------------------------------

    def start(self, consumer: Any) -> None:
        """At every (re)connection: what was in hand was of the old one, and the broker delivers it again."""
        with self._lock:
            self._in_hand.clear()
            self._cancelled_tags.clear()
            self._subscribed = True
        if self._worker is None:
            self._begin()
        if not consumer.hub and self._pump_timer is None:
            self._pump_timer = consumer.timer.call_repeatedly(PUMP_S, self.pump)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        hub.add_reader(self._wake_reader, self._read_mail)
        hub.call_repeatedly(PUMP_S, self._beat)
        self._pool.register_with_event_loop(hub)

    def _beat(self) -> None:
        """Celery's first drain of a new connection swallows the broker's close; its loop would then wait for
        ever on a socket that is gone. Raised here, the loss is one like any other: it connects again.
        """
        connection = self._consumer.connection
        if connection is not None and not connection.connected:
            raise RecoverableConnectionError("the broker closed the connection")
        self.pump()

    def _begin(self) -> None:
        """After the fork of the pool, never before: threads do not survive it."""
        worker = Worker(
            engine_connection,
            name=telemetry.who(),
            session_s=settings.FENCEPOST.session_s,
            load=self._load,
            abandoned=self._leave,
            endpoints=EndpointBounds(capacity=lambda: self._capacity, share=settings.FENCEPOST.http_share),
            board=self._pool.board,
            start_session=self._pool.start_session,
        )
        worker.start()
        self._pool.begin(worker)
        self._worker = worker
        signals.worker_ready.connect(self._take_over_signals, weak=False)

    def _load(self) -> Load:
        """The least since it was last asked. The sweep reads from it whether a message that waits would have
        been taken by now: a look at the moment of a renewal, every ten seconds, met the same second of a load
        that comes by the second, found all slots busy for minutes, and lost messages were not sent again.
        """
        quietest, self._quietest = self._quietest, None
        return quietest or self._load_now()

    def _note_load(self) -> None:
        """Without the lock, as `_load` is: with gevent a session that waited for it might wait for a job."""
        quietest, now = self._quietest, self._load_now()
        if quietest is None or now.taken < quietest.taken:
            self._quietest = now

    def _load_now(self) -> Load:
        return Load(capacity=self._capacity, busy=self._busy, prefetched=len(self._in_hand))

    @property
    def _capacity(self) -> int:
        return int(self._consumer.pool.num_processes)

    # ---- the way of a message -------------------------------------------------------------------------

    def receive(self, request: Any) -> None:
        """In place of Celery's handler. Messages that are not ours go straight on to it."""
        if "generation" not in request.request_dict:
            self._run(request)
            return
        fault_point("worker.received")
        try:
            delivery = Delivery(
                request=request,
                run_id=UUID(request.id),
                due_at=datetime.fromisoformat(request.request_dict["due_at"]),
                received_at=time.monotonic(),
                generation=int(request.request_dict["generation"]),
                endpoint=str(request.request_dict.get("endpoint") or ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            self._refuse_junk(request, error)
            return
        with self._lock:
            self._in_hand.append(delivery)
        self.pump()

    def pump(self) -> None:
        """Claim for as many as there are free slots; give back what waits too long. Owner's thread only."""
        with self._lock:
            self._note_load()
            self._claim_for_free_slots()
            if self._is_crowded():
                self._subscribe(False)
                self._give_back()
            elif not self._subscribed and not self._draining and self._busy < self._capacity:
                self._subscribe(True)

    def _claim_for_free_slots(self) -> None:
        worker = self._worker
        if worker is None or self._draining or not worker.can_claim:
            return
        while self._in_hand and self._busy < self._capacity:
            delivery = self._in_hand.popleft()
            self._moved_at = time.monotonic()
            self._busy += 1
            self._claiming += 1
            worker.claim(
                delivery.run_id,
                delivery.due_at,
                self._answer_to(delivery),
                endpoint=delivery.endpoint,
                generation=delivery.generation,
            )

    def _answer_to(self, delivery: Delivery) -> Callable[[UUID | Refusal], None]:
        return lambda answer: self._post(lambda: self._settle(delivery, answer))

    def _settle(self, delivery: Delivery, answer: UUID | Refusal) -> None:
        self._claiming -= 1
        if answer in (Refusal.SESSION_LOST, Refusal.TOO_EARLY):
            with self._lock:  # nothing moved: it stays in hand, and is asked for again at the next pump
                self._busy -= 1
                self._in_hand.appendleft(delivery)
            return
        fault_point("worker.before_ack")
        self._acknowledge(delivery.request)
        if isinstance(answer, UUID):
            self._pool.hand_over(delivery.request, answer)
        else:
            state.task_ready(delivery.request)
            self._slot_is_free()

    def _slot_is_free(self) -> None:
        """From the pool at the end of a run, and after a refusal."""
        with self._lock:
            self._busy -= 1
        self._post(self.pump)

    def _acknowledge(self, request: Any) -> None:
        request.message.ack_log_error(_log, request.connection_errors)
        request.acknowledged = True  # every later acknowledgement of Celery's is a no-op now

    def _refuse_junk(self, request: Any, error: Exception) -> None:
        telemetry.alert("junk_message", message=str(request.id)[:100], error=str(error)[:200])
        request.message.reject_log_error(_log, request.connection_errors, requeue=False)
        request.acknowledged = True
        state.task_ready(request)

    # ---- giving back ----------------------------------------------------------------------------------

    def _is_crowded(self) -> bool:
        if not self._is_remote:
            return self._draining and bool(self._in_hand)
        return self._is_stuck() or (self._draining and self._subscribed)

    def _is_stuck(self) -> bool:
        """Not the age of what is in hand: short jobs in a row may well wait longer, and to give them back and
        fetch them again for ever cost nine tenths of the rate.
        """
        if not self._in_hand:
            return False
        return time.monotonic() - max(self._in_hand[0].received_at, self._moved_at) > HOLD_S

    def _give_back(self) -> None:
        while self._in_hand:
            request = self._in_hand.popleft().request
            request.message.reject_log_error(_log, request.connection_errors, requeue=True)
            request.acknowledged = True  # not request.reject(): it would tell monitors the task was rejected
            state.task_ready(request)

    def _subscribe(self, wanted: bool) -> None:
        """Without waiting for replies: a waiting call would drain events, and come back in here.

        A fresh tag each time: a quorum queue of RabbitMQ 3.10 closes the channel on a reused one.
        """
        consumer = self._consumer.task_consumer
        if consumer is None or not consumer.channel.connection or wanted == self._subscribed:
            return
        self._subscribed = wanted
        if not self._is_remote:
            consumer.consume() if wanted else consumer.cancel()
            return
        if wanted:
            self._forget_cancelled(consumer.channel)
            for queue in consumer.queues:
                queue.consume(consumer._add_tag(queue), consumer._receive_callback, nowait=True)
        else:
            self._cancelled_tags = list(consumer._active_tags.values())
            for tag in self._cancelled_tags:
                consumer.channel.basic_cancel(tag, nowait=True)

    def _forget_cancelled(self, channel: Any) -> None:
        """py-amqp forgets a consumer when its cancellation is answered, and ours asks for no answer: a worker
        at its limit, which subscribes anew many times a second, would keep them all.
        """
        for tag in self._cancelled_tags:
            channel._remove_tag(tag)
        self._cancelled_tags = []

    # ---- the owner's mailbox --------------------------------------------------------------------------

    def _post(self, call: Callable[[], None]) -> None:
        """Have the thread that owns the connection do this. Without an event loop there is but one thread,
        gevent's, or the transport is a local one, whose acknowledgements any thread may make.
        """
        if not self._consumer.hub:
            with self._lock:
                call()
            return
        self._mail.append(call)
        try:
            os.write(self._wake_writer, b"!")
        except BlockingIOError:
            return  # the pipe is full of wake-ups already

    def _read_mail(self, *_: Any) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            return
        while self._mail:
            self._mail.popleft()()

    # ---- the way out ----------------------------------------------------------------------------------

    def _take_over_signals(self, **_: Any) -> None:
        """Celery's warm shutdown drops what it has acknowledged and not begun: drain first, then let it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._drain)

    def _drain(self, *_: Any) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            threading.Thread(target=self._drain_and_stop, name="fencepost-drain", daemon=True).start()

    def _leave(self) -> None:
        """The database could not be reached for two lengths of a session: what runs here is others' to run
        again. A thread that does not notice cannot be ended; the process can.
        """
        self._await(lambda: not self._busy, ABANDON_S)
        telemetry.alert("left_without_database", runs=self._busy)
        self._exit(os.EX_TEMPFAIL)

    def _retreat(self, stuck: Callable[[], list[Held]]) -> None:
        """Their runs were ended, their threads were not. The others are bounded by limits of their own: when
        nothing else is left, the process ends, and whoever started it starts the next.
        """
        for held in stuck():
            telemetry.alert("thread_does_not_end", run=str(held.claimed.run_id), target=held.claimed.target)
        self._draining = True
        self._post(self.pump)
        self._await(lambda: self._unfinished <= len(stuck()), float("inf"))
        self._exit(os.EX_TEMPFAIL)

    @property
    def _unfinished(self) -> int:
        """Runs that are claimed, or being claimed, and whose end is not on record."""
        return self._claiming + (len(self._worker.held()) if self._worker is not None else 0)

    def _await(self, done: Callable[[], bool], seconds: float) -> None:
        """Until it is so, or so long. Looks at the pump's rhythm: an event set at each end of a run would
        cost every run something for the sake of the last.
        """
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            time.sleep(PUMP_S)

    def _drain_and_stop(self) -> None:
        self._draining = True
        self._post(self.pump)
        if self._worker is not None:
            self._worker.drain()
        self._await(lambda: not self._unfinished, DRAIN_S)
        left = self._unfinished
        if left:
            # Their session is closed: the sweep takes these runs up again at once.
            telemetry.trouble("left_running", runs=left)
            self._pool.end_hard()
        if self._worker is not None:
            self._worker.finish(timeout_s=2.0)
        if left or not self._consumer.hub:  # without an event loop Celery looks up every two seconds only
            self._exit(os.EX_OK)
        state.should_stop = 0  # type: ignore[assignment]  # stubs know None alone; it is an exit code

    def _exit(self, code: int) -> None:
        """At once: threads that cannot be ended, Celery would wait for."""
        self._pool.end_hard()
        os._exit(code)
