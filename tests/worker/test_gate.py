"""What the gate says of its worker, without a Celery around it."""

from types import SimpleNamespace

from scheduler.store.sessions import Load
from scheduler.worker.gate import Gate


def test_a_worker_says_how_busy_it_was_at_its_quietest() -> None:
    """Slots that are all busy whenever a renewal looks may yet be free in between."""
    gate = Gate(SimpleNamespace(on_task_request=None, hub=None, pool=SimpleNamespace(num_processes=4)))
    gate.pump()
    gate._busy = 4
    gate.pump()
    assert gate._load() == Load(capacity=4)
    gate.pump()
    assert gate._load() == Load(capacity=4, busy=4)
