"""Servers of a test's own, to be stopped, killed and started again on the same address.

The shared servers of a run serve other tests: nothing here touches them.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.project import embedded
from scheduler.project.supervisor import end_with_parent
from tests.support.machine import accepts_connections, find_free_port, rabbitmq_programs
from tests.support.processes import REPOSITORY
from tests.support.servers import FAST
from tests.support.wait import wait_until

BOOT_S = 60.0
# The broker looks at its consumers' time-outs once in a channel's tick: a minute, unless told otherwise.
CHANNEL_TICK_MS = 1000


class PrivateRabbitMQ:
    """One node with its own name, ports and folders; `settings` are lines of rabbitmq.conf."""

    def __init__(self, folder: Path, vhost: str, **settings: str) -> None:
        programs = rabbitmq_programs()
        assert programs is not None
        self.port = find_free_port()
        self.vhost = vhost
        self.url = self.url_through(self.port)
        self._programs = programs
        self._name = f"fencepost-{secrets.token_hex(6)}@localhost"
        self._log = folder / "rabbitmq.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = _rabbitmq_environ(folder, self._name)
        lines = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "log.file": "false", "log.console": "true"}
        config = "".join(f"{name} = {value}\n" for name, value in (lines | settings).items())
        (folder / "rabbitmq.conf").write_text(config)

    def url_through(self, port: int) -> str:
        """Of the vhost, behind a proxy that listens on `port`."""
        return f"amqp://guest:guest@127.0.0.1:{port}/{self.vhost}"

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._programs / "rabbitmq-server"],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGTERM),
            )
        wait_until(self._answers, BOOT_S, message=f"RabbitMQ did not start: see {self._log}")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        """kill -9, of the script and of the Erlang machine in its group."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        wait_until(lambda: not accepts_connections("127.0.0.1", self.port))

    def ctl(self, *arguments: str) -> str:
        """rabbitmqctl; what it wrote."""
        command = [self._programs / "rabbitmqctl", "--quiet", "--node", self._name, *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make_vhost(self) -> None:
        self.ctl("add_vhost", self.vhost)
        self.ctl("set_permissions", "-p", self.vhost, "guest", ".*", ".*", ".*")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        return accepts_connections("127.0.0.1", self.port)


def _rabbitmq_environ(folder: Path, name: str) -> dict[str, str]:
    """HOME holds the cookie; files of the machine's own node are pointed away from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")}
    return kept | {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_DIST_PORT": str(find_free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-rabbit channel_tick_interval {CHANNEL_TICK_MS}",
    }


class PrivatePostgres:
    """The wheel's server on a Unix socket that stays the same, whatever becomes of the server.

    Without fsync: what a process wrote survives its kill -9, only not the machine's.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home / "postgres.log"
        self._data = embedded.settle(home).data
        self._guardian: subprocess.Popen[bytes] | None = None
        self.url = embedded.database_url(home)

    @property
    def socket_path(self) -> str:
        return str(embedded.settle(self._home).socket / f".s.PGSQL.{embedded.SOCKET_NUMBER}")

    def url_through(self, port: int) -> str:
        """Of the same database, behind a proxy that listens on `port`."""
        return f"postgresql://{embedded.DATABASE}@127.0.0.1:{port}/{embedded.DATABASE}?sslmode=disable"

    def start(self) -> None:
        command = embedded.server_command(self._home, FAST)
        with self._log.open("ab") as output:
            guardian = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT)
        self._guardian = guardian
        embedded.wait_until_ready(self.url, alive=lambda: guardian.poll() is None, log=self._log)

    def stop(self) -> None:
        """As an operator does: connections are told."""
        assert self._guardian is not None
        self._guardian.terminate()
        self._guardian.wait(20)

    def crash(self) -> None:
        """`pg_ctl stop -m immediate`: every connection is cut, and the next start recovers from the log."""
        assert self._guardian is not None
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        self._guardian.wait(20)

    def crashes_recovered(self) -> int:
        """By the server's own log."""
        return self._log.read_text(errors="replace").count("automatic recovery in progress")


@contextmanager
def folder_of_servers() -> Iterator[Path]:
    """Below no folder that is closed to the server's account, as a test's own is."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-tests-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def private_rabbitmq(vhost: str, **settings: str) -> Iterator[PrivateRabbitMQ]:
    with folder_of_servers() as folder:
        node = PrivateRabbitMQ(folder, vhost, **settings)
        node.start()
        try:
            node.make_vhost()
            yield node
        finally:
            node.kill()


@contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    with folder_of_servers() as folder:
        server = PrivatePostgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
