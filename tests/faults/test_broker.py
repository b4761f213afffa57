"""The broker fails in every way it has, under a load that goes on: each due instant becomes one run, and each
run is executed once.

The runs that wait are in the ledger: the API takes on more of them whatever the broker does, the agenda keeps
its rows until the broker has confirmed them, and what comes back is found by the processes themselves.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime

import amqp
import pytest

from scheduler import topology
from tests.support.brokers import NORMAL, Queues
from tests.support.installation import recording
from tests.support.nodes import PrivateRabbitMQ, private_rabbitmq
from tests.support.processes import Launcher, installed_environ
from tests.support.proxy import Mode, Proxy
from tests.support.stage import RARELY_S, Stage
from tests.support.wait import wait_until

pytestmark = pytest.mark.rabbitmq_node

CONSUMER_TIMEOUT_S = 10
LONG_JOB_S = 40.0
SAID_WITHIN_S = 90.0  # the relay waits ten seconds for a confirm, and a worker longer for a heartbeat

REFUSED = r"unconfirmed.*refused=[1-9]"
UNHEARD = r"unconfirmed.*unheard=[1-9]"
AWAY = r"broker_away|publish_failed"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The node, what runs on it, and the ways between."""

    node: PrivateRabbitMQ
    queues: Queues
    stage: Stage
    relay_way: Proxy
    worker_way: Proxy

    def assert_work_is_taken_on(self, since: datetime) -> None:
        """Whatever the broker does; and nothing that was queued since the fault began counts as published."""
        self.stage.ask_for("asked-for")
        assert self.stage.hushed_up(since) == 0

    def assert_recovered(self) -> None:
        """Whatever came twice was claimed once."""
        self.stage.assert_recovered()
        self.stage.assert_each_ran_once()


@pytest.fixture(scope="module")
def broken(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    folder = tmp_path_factory.mktemp("broker")
    with ExitStack() as stack:
        node = stack.enter_context(
            private_rabbitmq("fencepost", consumer_timeout=str(1000 * CONSUMER_TIMEOUT_S))
        )
        relay_way, worker_way = (Proxy(("127.0.0.1", node.port)) for _ in range(2))
        stack.callback(relay_way.stop)
        stack.callback(worker_way.stop)
        launch = Launcher(
            installed_environ(folder / "home", DATABASE_URL=module_database, BROKER_URL=node.url), folder
        )
        stack.callback(launch.end_all)
        stage = Stage(launch, folder)
        stack.callback(stage.ledger.close)
        stage.installation.environ["FENCEPOST_DISPATCH_GRACE_S"] = "2"
        stage.installation.make_tenant()
        stage.start("tick")
        stage.start("relay", BROKER_URL=node.url_through(relay_way.port))
        stage.start("sweep")
        stage.start("worker", "--concurrency", "4", BROKER_URL=node.url_through(worker_way.port))
        stage.open_the_api(BROKER_URL=node.url_through(relay_way.port))
        stage.load(recording("long", every_s=RARELY_S, seconds=LONG_JOB_S))
        yield Broken(
            node=node, queues=Queues(node.url), stage=stage, relay_way=relay_way, worker_way=worker_way
        )


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_stopped_and_killed_in_the_middle_of_a_job_that_outlasts_the_consumer_timeout(
    broken: Broken, seconds: int
) -> None:
    """Acknowledged when claimed, the job owes the broker nothing: neither its patience nor its return."""
    stage, node = broken.stage, broken.node
    run_id = stage.ask_for("long")
    wait_until(lambda: stage.effects_of(run_id) == ["begin"], 30)
    back_at = time.monotonic() + seconds
    for harm in (node.stop, node.kill):
        away = stage.hears("relay", AWAY)
        harm()
        since = stage.ledger.now()
        wait_until(away, 30)
        broken.assert_work_is_taken_on(since)
        wait_until(lambda: time.monotonic() > back_at, seconds + 1)  # the first outage's length is the fault
        node.start()
        broken.assert_recovered()
    assert_unacknowledged_is_taken_away(broken)
    wait_until(lambda: stage.effects_of(run_id) == ["begin", "end"], LONG_JOB_S + 30)
    broken.assert_recovered()
    stage.assert_ran_once(run_id)


def test_purged(broken: Broken) -> None:
    """What is in the queue is lost, with the broker in best health: unclaimed runs are announced again."""
    with stopped_worker(broken):
        wait_until(lambda: broken.queues.ready() >= 5, 30)
        assert broken.queues.purge() >= 5
    broken.assert_recovered()


def test_queue_deleted(broken: Broken) -> None:
    with broken.queues.channel() as channel:
        channel.queue_delete(NORMAL)
    broken.assert_recovered()


def test_unroutable(broken: Broken) -> None:
    """The broker confirms what it could not deliver anywhere: without `mandatory` it would be gone."""
    refused = broken.stage.hears("relay", REFUSED)
    with broken.queues.channel() as channel:
        channel.queue_unbind(NORMAL, topology.EXCHANGE, NORMAL)
    wait_until(refused, SAID_WITHIN_S)
    broken.assert_recovered()


def test_vhost_deleted_and_made_again(broken: Broken) -> None:
    away = broken.stage.hears("relay", AWAY)
    broken.node.ctl("delete_vhost", broken.node.vhost)
    since = broken.stage.ledger.now()
    wait_until(away, 30)
    broken.assert_work_is_taken_on(since)
    broken.node.make_vhost()
    broken.assert_recovered()


def test_full(broken: Broken) -> None:
    refused = broken.stage.hears("relay", REFUSED)
    limit = '{"max-length": 3, "overflow": "reject-publish"}'
    with stopped_worker(broken):
        broken.node.ctl("set_policy", "-p", broken.node.vhost, "full", ".*", limit, "--apply-to", "queues")
        wait_until(refused, SAID_WITHIN_S)
        since, refused = broken.stage.ledger.now(), broken.stage.hears("relay", REFUSED)
        wait_until(refused, SAID_WITHIN_S)
        broken.assert_work_is_taken_on(since)
        broken.node.ctl("clear_policy", "-p", broken.node.vhost, "full")
    broken.assert_recovered()


def test_memory_alarm(broken: Broken) -> None:
    """The broker reads nothing from publishers, and says so to none: their confirms are late for ever."""
    unheard = broken.stage.hears("relay", UNHEARD)
    since = broken.stage.ledger.now()  # not later: what then hangs may be queued before rabbitmqctl is done
    broken.node.ctl("set_vm_memory_high_watermark", "absolute", "1")
    wait_until(unheard, SAID_WITHIN_S)
    broken.assert_work_is_taken_on(since)
    broken.node.ctl("set_vm_memory_high_watermark", "0.6")
    broken.assert_recovered()


def test_half_open(broken: Broken) -> None:
    """Neither end hears of it. The relay misses its confirms; a worker only listens, and would for ever."""
    unheard = broken.stage.hears("relay", UNHEARD)
    relay_way, worker_way = broken.relay_way, broken.worker_way
    with worker_way.failing(Mode.BLACK_HOLE):
        wait_until(lambda: worker_way.done["bytes lost to client"])
        with relay_way.failing(Mode.BLACK_HOLE):
            since = broken.stage.ledger.now()
            wait_until(unheard, SAID_WITHIN_S)
            broken.assert_work_is_taken_on(since)
    broken.assert_recovered()


def test_confirm_lost(broken: Broken) -> None:
    """The message arrives, its run is claimed, and the agenda keeps the row: nobody has confirmed it."""
    ledger, way = broken.stage.ledger, broken.relay_way
    unheard = broken.stage.hears("relay", UNHEARD)
    with way.failing(Mode.DROP_ANSWERS):
        since, lost_before = ledger.now(), way.done["bytes lost to client"]
        claimed, kept = wait_until(lambda: claimed_since(broken, since))
        assert kept == claimed
        wait_until(unheard, SAID_WITHIN_S)
        assert way.done["bytes lost to client"] > lost_before
    broken.assert_recovered()


# ------------------------------------------------------------------------------------------------


def claimed_since(broken: Broken, since: datetime) -> tuple[int, int] | None:
    """How many of the runs queued since then are claimed, and how many of these are still on the agenda."""
    ((claimed, kept),) = broken.stage.ledger.rows(
        "SELECT count(*), count(b.run_id) FROM occurrence o"
        " JOIN attempt a ON a.run_id = o.id LEFT JOIN outbox b ON b.run_id = o.id"
        " WHERE o.queued_at > %(since)s",
        since=since,
    )
    return (claimed, kept) if claimed else None


@contextmanager
def stopped_worker(broken: Broken) -> Iterator[None]:
    """For a moment, well within its session: what is published stays in the queue."""
    worker = broken.stage.processes["worker"]
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def assert_unacknowledged_is_taken_away(broken: Broken) -> None:
    """The control: this node does close the channel of whoever does not acknowledge."""
    with broken.queues.channel() as channel:
        declared = channel.queue_declare("", exclusive=True)
        assert declared is not None
        channel.basic_publish(amqp.Message("never acknowledged"), "", declared.queue)
        channel.basic_consume(declared.queue, callback=lambda message: None)
        channel.connection.drain_events(timeout=5)  # the message
        with pytest.raises(amqp.PreconditionFailed, match="timeout"):
            channel.connection.drain_events(timeout=3 * CONSUMER_TIMEOUT_S)
