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
    # Its own: what the worker killed before it had held would prove nothing.
    own = f"split_part(worker, ':', 2) = '{worker.pid}'"
    wait_until(lambda: load.count("attempt", f"{own} AND outcome IS NULL") >= 2, 30)
    os.killpg(worker.pid, signal.SIGSTOP)
    wait_until(lambda: load.count("attempt", f"{own} AND outcome = 'lost'") > 0, 60)
    wait_until(lambda: load.queues.ready() > 0, 60)
    assert load.queues.purge() > 0
    os.killpg(worker.pid, signal.SIGCONT)
    # What it held is others' now: its context raises, or its end is refused; and it takes up new work.
    done = load.count("attempt", f"{own} AND outcome = 'succeeded'")
    wait_until(lambda: load.count("attempt", f"{own} AND outcome = 'succeeded'") > done + SCHEDULES, 30)
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
    """Nothing is lost, and no attempt wasted, also where all processes of the group get the signal."""
    spoilt = load.count("attempt", "outcome <> 'succeeded'")
    load.goes_on(SCHEDULES)
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.process.wait(10) == 0
    assert load.count("lease", "true") == 0
    assert load.count("attempt", "outcome <> 'succeeded'") == spoilt


def test_a_process_leaves_whose_thread_will_not_once_it_is_alone(
    installation: Installation,
) -> None:
    """The run beside it is not cut off: it goes on until it ends. A second thread joins the first."""
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.odd_jobs"
    installation.be_brisk()
    for name in ("tick", "relay", "sweep"):
        installation.start(name)
    worker = installation.start("worker", "--concurrency", "4")
    limits = {"timeout_s": 1, "cancel_grace_s": 1, "retry": {"max_attempts": 1}}
    installation.apply(
        recording("deaf", target="tests.deaf", payload={"seconds": 600}, every_s=RARELY_S, **limits),
        recording("later", target="tests.deaf", payload={}, every_s=RARELY_S, **(limits | {"timeout_s": 8})),
        recording("beside", seconds=15.0, every_s=RARELY_S),
    )
    installation.run_now("deaf", "later", "beside")
    wait_until(lambda: "thread_does_not_end" in worker.output(), 60)
    assert worker.running()
    wait_until(lambda: not worker.running(), 60)
    assert installation.ledger.states() == {"DEAD_LETTERED": 2, "SUCCEEDED": 1}
    assert installation.ledger.scalar("SELECT count(*) FROM attempt") == 3
    assert installation.verify().violations == ()
