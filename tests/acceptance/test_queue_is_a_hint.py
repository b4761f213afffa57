"""The ledger is the truth: a queue that lost everything makes runs late, never absent."""

from tests.support.brokers import Queues
from tests.support.installation import Installation, recording
from tests.support.wait import wait_until

WAITING = 20


def test_a_purged_queue_loses_no_run(installation: Installation, queues: Queues) -> None:
    installation.be_brisk()
    ledger = installation.ledger
    for name in ("tick", "relay", "sweep"):
        installation.start(name)
    installation.apply(*(recording(f"second-{number}") for number in range(4)))
    # No worker yet: everything released stays in the queue.
    wait_until(lambda: ledger.states().get("QUEUED", 0) >= WAITING and queues.ready() >= WAITING, 40)
    last = ledger.scalar("SELECT max(due_at) FROM occurrence WHERE state = 'QUEUED'")
    assert queues.purge() >= WAITING
    installation.start("worker")
    wait_until(lambda: ledger.settled(until=last), 40, interval=0.2)

    assert set(ledger.states(until=last)) == {"SUCCEEDED"}
    assert installation.verify(until=last).violations == ()
