"""Every name of Celery's and kombu's that worker/gate.py touches, documented or not.

When one of these fails after an upgrade, read gate.py before changing the pin.
"""

import inspect
from types import SimpleNamespace

import pytest
from amqp import Channel, RecoverableConnectionError
from celery import bootsteps
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
