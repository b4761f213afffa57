"""Postgres fails under a load that goes on: what was committed stands, what was not is asked for again.

Every process finds its way back by itself, and reads the ledger to learn what became of a commit whose answer
it never heard.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.api import PROBLEM
from tests.support.installation import recording
from tests.support.nodes import PrivatePostgres, private_postgres
from tests.support.processes import Launcher, installed_environ
from tests.support.proxy import Proxy
from tests.support.servers import migrate
from tests.support.stage import RARELY_S, Stage
from tests.support.wait import wait_until

BACK_WITHIN_S = 30.0  # the promise is five seconds
AWAY_S = 40
SESSION_S = 30  # the default, and shorter than the outage
LOST_COMMITS = 6


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The server, what runs on it, and the way of each process to it."""

    server: PrivatePostgres
    stage: Stage
    ways: dict[str, Proxy]

    def assert_all_are_back(self) -> None:
        """Soon: runs due from now on succeed, for which tick, relay and worker each do their part."""
        ledger = self.stage.ledger
        ledger.reconnect()
        since = ledger.now()
        wait_until(lambda: ledger.states(since=since).get("SUCCEEDED"), BACK_WITHIN_S)
        sweeps = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost sweep'"
        wait_until(lambda: ledger.scalar(sweeps), BACK_WITHIN_S)

    def assert_recovered(self) -> None:
        self.stage.assert_recovered()
        self.stage.assert_each_ran_once()


@pytest.fixture(scope="module")
def broken(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    folder = tmp_path_factory.mktemp("postgres")
    with ExitStack() as stack:
        server = stack.enter_context(private_postgres())
        migrate(server.url)
        ways = {name: Proxy(server.socket_path) for name in ("tick", "relay", "sweep", "worker")}
        for way in ways.values():
            stack.callback(way.stop)
        environ = installed_environ(folder / "home", DATABASE_URL=server.url, BROKER_URL=broker_url)
        launch = Launcher(environ, folder)
        stack.callback(launch.end_all)
        stage = Stage(launch, folder)
        stack.callback(stage.ledger.close)
        stage.installation.make_tenant()
        for name in ("tick", "relay", "sweep"):
            stage.start(name, DATABASE_URL=server.url_through(ways[name].port))
        stage.start("worker", "--concurrency", "16", DATABASE_URL=server.url_through(ways["worker"].port))
        stage.open_the_api()
        stage.load(
            recording("ends-in-the-outage", every_s=RARELY_S, seconds=AWAY_S / 2),
            recording("outlasts-the-outage", every_s=RARELY_S, seconds=AWAY_S + 10.0),
        )
        yield Broken(server=server, stage=stage, ways=ways)


@pytest.mark.parametrize(
    ("process", "says"),
    [("tick", "database_away"), ("relay", "database_away"), ("worker", "flush_repeated")],
)
def test_the_answer_to_a_commit_is_lost(broken: Broken, process: str, says: str) -> None:
    """The commit stands, and whoever made it does not know. Several times: a relay releases and forgets, a
    worker claims and ends.
    """
    way = broken.ways[process]
    for _ in range(LOST_COMMITS):
        heard, lost = broken.stage.hears(process, says), way.done["answers lost"]
        way.lose_answer_to(b"COMMIT")
        wait_until(lambda lost=lost: way.done["answers lost"] > lost, BACK_WITHIN_S)
        wait_until(heard, BACK_WITHIN_S)
        until = broken.stage.ledger.now()
        wait_until(lambda until=until: broken.stage.ledger.settled(until=until), BACK_WITHIN_S)
    broken.assert_all_are_back()
    broken.assert_recovered()


@pytest.mark.parametrize(("cut", "done"), [(Proxy.reset, "resets"), (Proxy.half_close, "half closed")])
def test_all_connections_are_cut(broken: Broken, cut: Callable[[Proxy], None], done: str) -> None:
    for way in broken.ways.values():
        before = way.done[done]
        cut(way)
        assert way.done[done] > before
    broken.assert_all_are_back()
    broken.assert_recovered()


def test_immediate_restart(broken: Broken) -> None:
    recovered = broken.server.crashes_recovered()
    broken.server.crash()
    broken.server.start()
    assert broken.server.crashes_recovered() == recovered + 1
    broken.assert_all_are_back()
    broken.assert_recovered()


def test_away_for_longer_than_a_session_under_running_jobs(broken: Broken) -> None:
    """Nobody could renew, so nobody is held to have died: what runs goes on, and ends as what it was."""
    stage = broken.stage
    running = [stage.ask_for(name) for name in ("ends-in-the-outage", "outlasts-the-outage")]
    wait_until(lambda: all(stage.effects_of(run_id) == ["begin"] for run_id in running), 30)
    back_at = time.monotonic() + AWAY_S
    broken.server.stop()
    assert_unavailable(stage)
    wait_until(lambda: time.monotonic() > back_at, AWAY_S + 1)  # the outage's length is the fault
    assert_unavailable(stage)
    stage.assert_all_run()
    assert stage.effects_of(running[0]) == ["begin", "end"]
    broken.server.start()
    broken.assert_all_are_back()
    wait_until(lambda: stage.effects_of(running[1]) == ["begin", "end"], AWAY_S)
    broken.assert_recovered()
    for run_id in running:
        stage.assert_ran_once(run_id)


@pytest.mark.soak
def test_away_for_minutes(broken: Broken) -> None:
    """A worker that cannot reach Postgres for two sessions' length leaves, for its supervisor to start again.
    What it held may run once more; it is neither lost nor left open.
    """
    stage = broken.stage
    held = stage.ask_for("outlasts-the-outage")
    wait_until(lambda: stage.effects_of(held) == ["begin"], 30)
    broken.server.stop()
    worker = stage.processes["worker"].process
    assert worker.wait(4 * SESSION_S) == os.EX_TEMPFAIL
    assert_unavailable(stage)
    broken.server.start()
    stage.start(
        "worker", "--concurrency", "16", DATABASE_URL=broken.server.url_through(broken.ways["worker"].port)
    )
    broken.assert_all_are_back()
    stage.assert_recovered()


def assert_unavailable(stage: Stage) -> None:
    """The API says so at once, in its own words, to readers and writers alike."""
    for answer in (stage.api.get("/api/v1/runs"), stage.api.post("/api/v1/schedules", {})):
        assert (answer.status, answer.content_type) == (503, PROBLEM)
        assert answer.body["code"] == "unavailable"
    ready = stage.api.get("/readyz")
    assert (ready.status, ready.body["database"]) == (503, False)
