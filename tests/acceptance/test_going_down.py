"""`manage.py up` goes down as a whole: gently, wasting no attempt, and at once when its head is cut off."""

import signal
import socket
from collections.abc import Iterator

import psutil
import pytest

from tests.support.installation import Installation, recording
from tests.support.processes import Running
from tests.support.wait import wait_until

DEMO = "demo"  # the tenant that `up` makes
ENDS_WITHIN_S = 30.0  # ten seconds are promised


@pytest.fixture
def up(installation: Installation) -> Iterator[Running]:
    """The tree, with a run of one to five seconds beginning each second."""
    running = installation.start("up", env={"PORT": str(_free_port())})
    running.wait_for("Fencepost is up", 120)
    lasting = [recording(f"lasts-{s}-s", every_s=5, seconds=float(s)) for s in (1, 2, 3, 4, 5)]
    installation.apply(*lasting, tenant=DEMO)
    wait_until(lambda: installation.ledger.states().get("RUNNING", 0) >= 4, 120)
    yield running
    running.process.wait(30)


def test_sigterm_ends_everything_and_wastes_nothing(installation: Installation, up: Running) -> None:
    tree = psutil.Process(up.pid).children(recursive=True)
    assert up.end(ENDS_WITHIN_S) == 0
    _, alive = psutil.wait_procs(tree, timeout=ENDS_WITHIN_S)
    assert alive == []

    outcomes = "SELECT DISTINCT coalesce(outcome, 'open') FROM attempt"
    assert installation.ledger.rows(outcomes) == [("succeeded",)]
    assert len(installation.effects("begin")) == len(installation.effects("end"))
    assert installation.verify().violations == ()


def test_a_job_that_agreed_to_stop_goes_on_in_another_worker(installation: Installation) -> None:
    """Within ten seconds, although it had a minute to go; uncounted, and in the slot that it had."""
    ledger = installation.ledger
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.long_job"
    tick, relay, first = (installation.start(name) for name in ("tick", "relay", "worker"))
    installation.apply(recording("long", target="tests.long", payload={}, overlap="skip"))
    run_id = wait_until(lambda: installation.effects("begin"), 60)[0].run
    tick.end()
    assert first.end(ENDS_WITHIN_S) == 0
    assert ledger.scalar("SELECT state FROM occurrence WHERE id = %(id)s", id=run_id) == "QUEUED"
    assert ledger.scalar("SELECT run_id FROM overlap_slot") == run_id

    second = installation.start("worker")
    succeeded = "SELECT count(*) FROM occurrence WHERE id = %(id)s AND state = 'SUCCEEDED'"
    wait_until(lambda: ledger.scalar(succeeded, id=run_id), 30)
    outcomes = "SELECT number, outcome FROM attempt WHERE run_id = %(id)s ORDER BY fence"
    assert ledger.rows(outcomes, id=run_id) == [(1, "superseded"), (1, "succeeded")]
    second.end()
    relay.end()
    assert installation.verify().violations == ()


def test_kill_of_the_parent_ends_the_children(up: Running) -> None:
    tree = psutil.Process(up.pid).children(recursive=True)
    assert len(tree) >= 6  # web, two ticks, relay, sweep, worker
    up.signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
