"""`manage.py up` as a stranger meets it: no configuration, real processes, one way in and out."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from scheduler.project import embedded
from tests.support.machine import find_free_port
from tests.support.processes import REPOSITORY, Launcher, Running, command, product_environ
from tests.support.wait import wait_until

PROGRAMS = {"web": 1, "tick": 2, "relay": 1, "sweep": 1, "worker": 1}
READY_S = 120
SCHEDULE = "hello-every-10-seconds"


class Up:
    """One home folder, the `up` that runs on it, and its API."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        self.port = find_free_port()
        values = {"FENCEPOST_HOME": str(home), "PORT": str(self.port), "PYTHONUNBUFFERED": "1", **environ}
        self.launcher = Launcher(product_environ(**values), home)
        self.running: Running | None = None

    def start(self) -> "Up":
        self.running = self.launcher("up")
        self.running.wait_for("Fencepost is up", READY_S)
        wait_until(self.answers, READY_S)
        return self

    def answers(self) -> bool:
        try:
            return bool(self.get("/healthz") is not None)
        except (HTTPError, URLError, ConnectionError):
            return False

    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.home / "up.json").read_text())
        return content

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        record = self.record()
        headers = {"Authorization": f"Bearer {record['api_key']}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        with urlopen(Request(record["url"] + path, data, headers, method=method), timeout=10) as answer:
            return json.loads(answer.read() or "null")  # a 204 has no body

    def runs(self, **filters: str) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        results: list[dict[str, Any]] = self.get(f"/api/v1/runs?{query}")["results"]
        return results

    def tree(self) -> list[psutil.Process]:
        """`up` and everything under it, the embedded server's own children included."""
        assert self.running is not None
        parent = psutil.Process(self.running.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self) -> None:
        self.launcher.end_all()
        place = embedded.settle(self.home)
        subprocess.run(["rm", "-rf", str(place.folder), str(place.socket)], check=True)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that the tests share; it is alive and whole before and after each of them."""
    up = Up(tmp_path_factory.mktemp("up"))
    try:
        yield up.start()
    finally:
        up.end()


@pytest.fixture
def own_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Makes one for a test that ends it."""
    made: list[Up] = []

    def make(**environ: str) -> Up:
        made.append(Up(tmp_path, **environ))
        return made[-1]

    yield make
    for up in made:
        up.end()


def test_a_schedule_fires_and_nothing_touches_the_usual_ports(up: Up) -> None:
    begun = time.monotonic()
    strangers: set[tuple[str, Any]] = set()

    def fired() -> list[dict[str, Any]]:
        strangers.update(connections_to(up.tree(), {5432, 5672}))
        return up.runs(state="SUCCEEDED", target="demo.record")

    (run, *_) = wait_until(fired, 65, interval=0.25)
    assert time.monotonic() - begun < 65
    assert run["attempt_count"] == 1
    assert strangers == set()


def test_up_json_says_where_everything_is(up: Up) -> None:
    record = up.record()
    assert (up.home / "up.json").stat().st_mode & 0o777 == 0o600
    assert record["url"] == f"http://127.0.0.1:{up.port}"
    assert record["tenant"] == "demo"
    assert record["login"]["email"] == "demo@example.com"
    assert record["admin"]["email"] == "admin@example.com"
    assert record["database_url"] == embedded.database_url(up.home)
    assert record["broker_url"] == embedded.broker_url(up.home)
    pids = record["pids"]
    assert pids.pop("up") == up.running.pid if up.running else False
    assert {name: len(numbers) for name, numbers in pids.items()} == PROGRAMS
    for name, numbers in pids.items():
        assert all(name in psutil.Process(number).cmdline() for number in numbers)


def test_the_greeting_has_what_a_person_needs(up: Up) -> None:
    assert up.running is not None
    record, text = up.record(), up.running.output()
    for part in (record["url"], record["login"]["password"], record["admin"]["password"], "curl -H"):
        assert part in text
    assert (up.home / "credentials.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["tick", "relay", "sweep", "web", "worker"])
def test_a_killed_process_is_replaced_in_up_json(up: Up, name: str) -> None:
    before = up.record()["pids"][name]
    os.kill(before[0], signal.SIGKILL)

    def replaced() -> bool:
        now = up.record()["pids"][name]
        return len(now) == PROGRAMS[name] and before[0] not in now

    wait_until(replaced)
    assert up.running is not None
    assert f"(pid {before[0]}) was ended by SIGKILL" in up.running.output()
    wait_until(up.answers, READY_S)


def test_a_second_up_is_refused_with_the_first_ones_pid(up: Up) -> None:
    assert up.running is not None
    second = run_up(up.home, find_free_port())
    assert second.returncode != 0
    assert f"Another `up` (pid {up.running.pid}) runs in {up.home}" in second.stderr


def test_a_taken_port_is_named(up: Up, own_up: Callable[..., Up]) -> None:
    home = own_up().home
    second = run_up(home, up.port)
    assert second.returncode != 0
    assert f"PORT={up.port}" in second.stderr
    assert not embedded.settle(home).data.exists()


def test_a_bad_variable_is_named_before_anything_starts(tmp_path: Path) -> None:
    environ = product_environ(
        FENCEPOST_HOME=str(tmp_path), FENCEPOST_SHARD="4", DATABASE_URL="postgresql://h/d"
    )
    done = subprocess.run(command("up"), cwd=REPOSITORY, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Did you mean FENCEPOST_SHARDS?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    environ = product_environ(
        FENCEPOST_HOME=str(tmp_path),
        PORT=str(find_free_port()),
        DATABASE_URL=f"postgresql://nobody@127.0.0.1:{find_free_port()}/nothing",
    )
    done = subprocess.run(command("up"), cwd=REPOSITORY, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "The database of DATABASE_URL cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_lets_jobs_end_and_data_survives(own_up: Callable[..., Up]) -> None:
    up = own_up().start()
    schedule = five_second_job(up)
    sample = next(
        one["id"] for one in up.get("/api/v1/schedules")["results"] if one["name"] == "monthly-invoices"
    )
    up.request("DELETE", f"/api/v1/schedules/{sample}", {})
    run = up.request("POST", f"/api/v1/schedules/{schedule}/trigger", {})["run_id"]
    wait_until(lambda: up.get(f"/api/v1/runs/{run}")["state"] == "RUNNING", 30)
    family = up.tree()
    assert up.running is not None
    assert up.running.end(timeout=10) == 0
    assert not [process for process in family if process.is_running()]
    assert not (up.home / "up.json").exists()

    up.start()
    ended = up.get(f"/api/v1/runs/{run}")
    assert (ended["state"], ended["attempt_count"]) == ("SUCCEEDED", 1)
    assert up.get(f"/api/v1/schedules/{sample}")["state"] == "cancelled"
    living = [one["name"] for one in up.get("/api/v1/schedules")["results"] if one["state"] != "cancelled"]
    assert "monthly-invoices" not in living  # a sample that somebody deleted does not come back


def test_kill_of_the_parent_takes_everything_with_it(own_up: Callable[..., Up]) -> None:
    up = own_up().start()
    family = up.tree()
    assert any("postgres" in process.name() for process in family)
    assert up.running is not None
    up.running.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    up.start()


def five_second_job(up: Up) -> str:
    body = {
        "name": "five-seconds",
        "target": "demo.record",
        "payload": {"seconds": 5},
        "trigger": {"cron": {"expressions": ["0 0 1 1 *"], "timezone": "UTC"}},
    }
    identity: str = up.request("POST", "/api/v1/schedules", body)["id"]
    return identity


def run_up(home: Path, port: int) -> subprocess.CompletedProcess[str]:
    environ = product_environ(FENCEPOST_HOME=str(home), PORT=str(port))
    return subprocess.run(
        [sys.executable, "manage.py", "up"],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def connections_to(processes: list[psutil.Process], ports: set[int]) -> set[tuple[str, Any]]:
    found = set()
    for process in processes:
        try:
            connections = process.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        found |= {(process.name(), c.raddr) for c in connections if c.raddr and c.raddr.port in ports}
    return found
