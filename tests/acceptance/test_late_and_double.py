"""A worker that comes back too late changes nothing; a message that comes twice runs nothing twice."""

import signal

from tests.support.brokers import Queues
from tests.support.installation import Installation, recording
from tests.support.wait import wait_until


def ask_for_one_run(installation: Installation) -> None:
    """Of a schedule that is not due by itself within a test."""
    installation.apply(recording("asked-for", every_s=30 * 86400))
    installation.run_now("asked-for")


def test_a_worker_stopped_past_its_session_is_refused(installation: Installation) -> None:
    """It stops itself between the job's effect and its completion, the worst place."""
    installation.be_brisk()
    ledger = installation.ledger
    ask_for_one_run(installation)
    for name in ("tick", "relay", "sweep"):
        installation.start(name)
    late = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_effect:1:STOP"})
    wait_until(installation.fault_log.exists, 60, message="the worker did not reach the point")
    (run_id,) = wait_until(lambda: ledger.rows("SELECT id FROM occurrence WHERE state = 'RUNNING'"))[0]

    wait_until(lambda: ledger.states() == {"RETRY_WAIT": 1} or ledger.states() == {"QUEUED": 1}, 60)
    installation.start("worker")
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 1}, 60)
    late.signal(signal.SIGCONT)
    refused = "SELECT late_writes_refused FROM occurrence WHERE id = %(run_id)s"
    wait_until(lambda: ledger.scalar(refused, run_id=run_id) == 1, message="no late write was counted")

    (first, second) = ledger.attempts(run_id)
    assert (first[0], first[2], second[0], second[2]) == (1, "lost", 2, "succeeded")
    assert second[1] > first[1]
    assert installation.verify().violations == ()


def test_the_same_message_many_times_in_one_flush_runs_once(
    installation: Installation, queues: Queues
) -> None:
    ledger = installation.ledger
    ask_for_one_run(installation)
    tick, relay = installation.start("tick"), installation.start("relay")
    wait_until(lambda: ledger.states() == {"QUEUED": 1} and queues.ready() == 1, 60)
    tick.end()
    relay.end()
    queues.multiply_one(16)
    assert queues.ready() == 16
    installation.start("worker", "--concurrency", "16")
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 1}, 60)
    wait_until(lambda: queues.ready() == 0)

    assert len(installation.effects("begin")) == 1
    assert ledger.scalar("SELECT count(*) FROM attempt") == 1
    assert installation.verify().violations == ()
