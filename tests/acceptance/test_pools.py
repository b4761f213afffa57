"""What the suite shows on threads holds on processes and greenlets: one load, and every fault in turn."""

import os
import signal
from dataclasses import dataclass

import pytest

from tests.support.brokers import Queues
from tests.support.installation import Installation, recording
from tests.support.machine import rabbitmqctl
from tests.support.processes import Running
from tests.support.wait import wait_until

SCHEDULES = 4
RARELY_S = 30 * 86400
COPIES = 50
PARENTS_POINTS = ("worker.after_claim_commit", "worker.before_ack", "worker.after_complete_sql")
CHILDS_POINTS = ("worker.mid_body", "worker.after_effect")


@dataclass(frozen=True, kw_only=True)
class Load:
    """A run of each schedule every second, on workers of one pool."""

    installation: Installation
    queues: Queues
    pool: str

    def start_worker(self, fault: str = "") -> Running:
        arguments = ("--pool", self.pool, "--concurrency", "8")
        return self.installation.start("worker", *arguments, env={"FENCEPOST_FAULT": fault})

    def goes_on(self, runs: int = 2 * SCHEDULES) -> None:
        """So many more succeed."""
        before = self.count("occurrence", "state = 'SUCCEEDED'")
        wait_until(lambda: self.count("occurrence", "state = 'SUCCEEDED'") >= before + runs, 60)

    def count(self, table: str, condition: str) -> int:
        found: int = self.installation.ledger.scalar(f"SELECT count(*) FROM {table} WHERE {condition}")
        return found

    def are_done(self) -> None:
        end = self.installation.ledger.now()
        wait_until(lambda: self.installation.ledger.settled(until=end), 60, interval=0.1)
        assert set(self.installation.ledger.states(until=end)) == {"SUCCEEDED"}
        report = self.installation.verify(until=end)
        assert (report.violations, report.totals.behind) == ((), 0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_one_load_and_every_fault_in_turn(
    installation: Installation, queues: Queues, vhost: str, pool: str
) -> None:
    installation.be_brisk()
    load = Load(installation=installation, queues=queues, pool=pool)
    installation.apply(*(recording(f"second-{number}", seconds=0.2) for number in range(SCHEDULES)))
    for name in ("tick", "relay", "sweep"):
        installation.start(name)

    one_message_many_times(load)
    killed_at_fault_points(load)
    worker = load.start_worker()
    load.goes_on()
    stopped_past_its_session_while_the_queue_is_purged(load, worker)
    broker_connections_closed(load, worker, vhost)
    drained(load, worker)
    load.start_worker()
    load.are_done()


def one_message_many_times(load: Load) -> None:
    wait_until(lambda: load.count("occurrence", "state = 'QUEUED'") >= SCHEDULES, 60)
    wait_until(lambda: load.queues.ready() > 0, 60)
    load.queues.multiply_one(COPIES)
    worker = load.start_worker()
    load.goes_on()
    assert load.count("attempt", "number > 1") == 0
    worker.kill()


def killed_at_fault_points(load: Load) -> None:
    """In processes, a job's own points end the child, and each of its successors, and no worker."""
    points = PARENTS_POINTS if load.pool == "prefork" else PARENTS_POINTS + CHILDS_POINTS
    for point in points:
        worker = load.start_worker(f"{point}:4:KILL")
        wait_until(lambda dying=worker: not dying.running(), 60, message=point)
        assert worker.process.returncode == -signal.SIGKILL, worker.output()
    for point in CHILDS_POINTS if load.pool == "prefork" else ():
        worker = load.start_worker(f"{point}:4:KILL")
        load.goes_on(8 * SCHEDULES)
        assert worker.running()
        assert load.installation.fault_log.read_text().count(point) > 1
        worker.kill()
    assert load.count("attempt", "outcome = 'lost'") > 0


def stopped_past_its_session_while_the_queue_is_purged(load: Load, worker: Running) -> None:
    lost = load.count("attempt", "outcome = 'lost'")
    running = "SELECT count(*) FROM lease l JOIN session s ON s.id = l.session_id WHERE s.expires_at > now()"
    wait_until(lambda: load.installation.ledger.scalar(running) >= 2, 30)
    os.killpg(worker.pid, signal.SIGSTOP)
    wait_until(lambda: load.count("attempt", "outcome = 'lost'") > lost, 60)
    wait_until(lambda: load.queues.ready() > 0, 60)
    assert load.queues.purge() > 0
    os.killpg(worker.pid, signal.SIGCONT)
    # What ran on there raised at its next look, and what it then wrote was refused.
    wait_until(lambda: load.count("occurrence", "late_writes_refused > 0") > 0, 20)
    load.goes_on()
    assert worker.running()


def broker_connections_closed(load: Load, worker: Running, vhost: str) -> None:
    attempts = load.count("attempt", "outcome <> 'succeeded'")
    for _ in range(2):
        cut = rabbitmqctl("close_all_connections", "--vhost", vhost, "a test")
        assert cut.returncode == 0, cut.stderr
        load.goes_on()
    assert worker.running()
    assert load.count("attempt", "outcome <> 'succeeded'") == attempts


def drained(load: Load, worker: Running) -> None:
    """Nothing is lost, and no attempt wasted."""
    spoilt = load.count("attempt", "outcome <> 'succeeded'")
    load.goes_on(SCHEDULES)
    assert worker.end(10) == 0
    assert load.count("lease", "true") == 0
    assert load.count("attempt", "outcome <> 'succeeded'") == spoilt


def test_a_process_leaves_whose_thread_will_not_once_it_is_alone(
    installation: Installation,
) -> None:
    """The run beside it is not cut off: it goes on until it ends."""
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.odd_jobs"
    installation.be_brisk()
    for name in ("tick", "relay", "sweep"):
        installation.start(name)
    worker = installation.start("worker", "--concurrency", "4")
    limits = {"timeout_s": 1, "cancel_grace_s": 1, "retry": {"max_attempts": 1}}
    installation.apply(
        recording("deaf", target="tests.deaf", payload={"seconds": 600}, every_s=RARELY_S, **limits),
        recording("beside", seconds=15.0, every_s=RARELY_S),
    )
    installation.run_now("deaf", "beside")
    wait_until(lambda: "thread_does_not_end" in worker.output(), 60)
    assert worker.running()
    wait_until(lambda: not worker.running(), 60)
    assert installation.ledger.states() == {"DEAD_LETTERED": 1, "SUCCEEDED": 1}
    assert installation.ledger.scalar("SELECT count(*) FROM attempt") == 2
    assert installation.verify().violations == ()
