"""Every name of Celery's, kombu's and billiard's that the gate and its pools touch, documented or not.

When one of these fails after an upgrade, read gate.py before changing the pin.
"""

import inspect
from types import SimpleNamespace

import pytest
from amqp import Channel, RecoverableConnectionError
from billiard.pool import ApplyResult, Pool
from billiard.pool import Worker as PoolWorker
from celery import bootsteps
from celery.app import trace
from celery.concurrency import asynpool, gevent, prefork
from celery.concurrency.base import BasePool
from celery.worker import loops, state, strategy
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.strategy import default as default_strategy
from kombu import Queue
from kombu.asynchronous import Hub
from kombu.messaging import Consumer as TaskConsumer

from scheduler.project.celery import app
from scheduler.worker.gate import Gate


def test_steps_are_made_before_strategies_bind_the_handler() -> None:
    source = inspect.getsource(Consumer.__init__)
    assert source.index("self.on_task_request = on_task_request") < source.index("self.blueprint.apply(")
    assert "handle = consumer.on_task_request" in inspect.getsource(default_strategy)
    assert issubclass(Gate, bootsteps.StartStopStep)
    assert Gate in app.steps["consumer"]


def test_heartbeats_are_the_consumers_to_choose_until_it_connects() -> None:
    source = inspect.getsource(Consumer.__init__)
    assert source.index("self.amqheartbeat = 0") < source.index("self.blueprint.apply(")
    assert "heartbeat=self.amqheartbeat" in inspect.getsource(Consumer.connect)


def test_the_hub_can_be_woken_and_watched() -> None:
    assert list(inspect.signature(Hub.add_reader).parameters)[1:] == ["fds", "callback", "args"]
    assert list(inspect.signature(Hub.call_repeatedly).parameters)[1:4] == ["delay", "callback", "args"]
    registration = inspect.getsource(Consumer.register_with_event_loop)
    assert "'register_with_event_loop'" in registration
    assert "args=(hub,)" in registration


def test_consumer_tags_are_kept_as_the_gate_expects() -> None:
    assert list(inspect.signature(TaskConsumer._add_tag).parameters) == ["self", "queue", "consumer_tag"]
    assert "_active_tags" in inspect.getsource(TaskConsumer.__init__)
    assert hasattr(TaskConsumer, "_receive_callback")
    assert "nowait" in inspect.signature(Queue.consume).parameters
    assert "self.callbacks.pop(consumer_tag" in inspect.getsource(Channel._remove_tag)


def test_requests_can_be_marked_as_acknowledged() -> None:
    assert "if not self.acknowledged" in inspect.getsource(Request.acknowledge)
    assert "self.acknowledge()" in inspect.getsource(Request.on_accepted)
    assert "self.request_dict" in inspect.getsource(vars(strategy)["create_request_cls"])
    assert isinstance(Request.request_dict, property)


def test_a_close_in_the_first_drain_is_still_swallowed_and_the_beat_raises_it() -> None:
    """Once the first line fails, Celery raises it itself and `Gate._beat` may go."""
    assert "exc_errno is not None" in inspect.getsource(loops._quick_drain)
    gate = Gate.__new__(Gate)
    gate._consumer = SimpleNamespace(connection=SimpleNamespace(connected=False))
    with pytest.raises(RecoverableConnectionError):
        gate._beat()
    assert "hub.propagate_errors = errors" in inspect.getsource(loops.asynloop)


def test_shutdown_is_asked_for_by_a_module_variable() -> None:
    assert state.should_stop is None
    assert "should_stop" in inspect.getsource(state.maybe_shutdown)
    assert callable(state.task_ready)
    assert isinstance(BasePool.num_processes, property)


def test_a_run_is_handed_to_a_child_as_celery_hands_over_its_tasks() -> None:
    handed = inspect.getsource(vars(strategy)["create_request_cls"])
    for name in ("type", "request_dict", "body", "content_type", "content_encoding", "on_accepted"):
        assert f"self.{name}" in handed
        assert hasattr(Request, name)
    assert list(inspect.signature(trace.fast_trace_task).parameters)[:6] == [
        "task",
        "uuid",
        "request",
        "body",
        "content_type",
        "content_encoding",
    ]
    assert "return (1, R, T) if I else (0, Rstr, T)" in inspect.getsource(trace.fast_trace_task)
    options = inspect.signature(Pool.apply_async).parameters
    assert {"callback", "error_callback", "accept_callback", "correlation_id"} <= set(options)
    assert {"successful"} <= set(inspect.signature(state.task_ready).parameters)
    assert list(inspect.signature(Request.send_event).parameters) == ["self", "type", "fields"]


def test_the_pool_of_processes_can_be_kept_from_dropping_what_no_child_has_accepted() -> None:
    """Once the first line fails, `Children._finish_writes` may have nothing to do."""
    assert "if not job._accepted" in inspect.getsource(asynpool.AsynPool.flush)
    assert "if self.pool and self.pool.flush" in inspect.getsource(Consumer.on_close)
    assert "self.flush = getattr(P, 'flush', None)" in inspect.getsource(prefork.TaskPool.on_start)
    assert list(inspect.signature(asynpool.AsynPool._flush_writer).parameters) == ["self", "proc", "writer"]
    assert "self._active_writers = set()" in inspect.getsource(asynpool.AsynPool.__init__)
    assert "job._writer = ref(cor)" in inspect.getsource(asynpool.AsynPool._create_write_handlers)
    assert hasattr(ApplyResult, "_write_to")


def test_a_child_goes_to_one_run_at_a_time() -> None:
    """With `-O fair`, the default, nothing waits in the pipe of a busy child."""
    assert asynpool.SCHED_STRATEGIES[None] == asynpool.SCHED_STRATEGY_FAIR
    assert "is_fair_strategy and ready_fd in busy_workers" in inspect.getsource(
        asynpool.AsynPool._create_write_handlers
    )


def test_dead_children_are_replaced_by_a_call_that_anybody_may_make() -> None:
    assert "self.maintain_pool = P.maintain_pool" in inspect.getsource(prefork.TaskPool.on_start)
    assert "self.mark_as_worker_lost(job, exitcode)" in inspect.getsource(
        asynpool.AsynPool.on_job_process_lost
    )
    assert "set_pdeathsig('SIGKILL')" in inspect.getsource(prefork.process_initializer)


def test_the_signal_of_a_soft_limit_is_set_before_any_run_and_so_is_ours_to_set_again() -> None:
    assert "signal.signal(SIG_SOFT_TIMEOUT" in inspect.getsource(PoolWorker.after_fork)


def test_pools_are_known_by_the_module_that_celery_takes_them_from() -> None:
    assert prefork.TaskPool.__module__ == "celery.concurrency.prefork"
    assert gevent.TaskPool.__module__ == "celery.concurrency.gevent"
    assert gevent.TaskPool.is_green
