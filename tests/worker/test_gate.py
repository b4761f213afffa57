"""What the gate says of its worker, without a Celery around it."""

from types import SimpleNamespace

import pytest
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import ImproperlyConfigured

from scheduler.store.sessions import Load
from scheduler.worker.gate import Gate


def test_a_worker_says_how_busy_it_was_at_its_quietest() -> None:
    """Slots that are all busy whenever a renewal looks may yet be free in between."""
    gate = Gate(SimpleNamespace(on_task_request=None, hub=None, pool=ThreadPool(4)))
    gate.pump()
    gate._busy = 4
    gate.pump()
    assert gate._load() == Load(capacity=4)
    gate.pump()
    assert gate._load() == Load(capacity=4, busy=4)


def test_a_pool_that_was_never_tried_is_refused_at_the_start() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"--pool: 'solo' is none of threads, prefork, gevent"):
        Gate(SimpleNamespace(on_task_request=None, hub=None, pool=SoloPool(1)))
