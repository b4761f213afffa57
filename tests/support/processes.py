"""The product's processes, started as a deployment starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from scheduler.project.supervisor import PARENT_VARIABLE
from tests.support.wait import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = frozenset(
    {
        "ADMIN_DATABASE_URL",
        "ALLOWED_HOSTS",
        "BIND",
        "BROKER_URL",
        "DATABASE_URL",
        "DEBUG",
        "DJANGO_SETTINGS_MODULE",
        "ENGINE_DATABASE_URL",
        "PORT",
        "SECRET_KEY",
    }
)


@dataclass(kw_only=True)
class Running:
    """One started process and what it has written."""

    label: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self, timeout: float = 30.0) -> int:
        """SIGTERM; the exit code. Fails when the process takes longer than it promises."""
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.label} did not end in {timeout:g} s:\n{self.output()}") from None

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        def said() -> bool:
            assert self.running() or text in self.output(), f"{self.label} ended:\n{self.output()}"
            return text in self.output()

        wait_until(said, timeout, message=f"{self.label} did not say {text!r}")


class Launcher:
    """Starts processes with one environment and ends whatever is left of them.

    They watch this process as they would watch `up`: a test run that is killed leaves nothing behind.
    """

    def __init__(self, environ: Mapping[str, str], logs: Path) -> None:
        self.environ = dict(environ)
        self.logs = logs
        self.started: list[Running] = []

    def __call__(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        """Start ``manage.py NAME``, or the Celery worker for the name ``worker``."""
        return self.start(name, command(name, *arguments), env=env)

    def start(self, name: str, argv: list[str], *, env: Mapping[str, str] | None = None) -> Running:
        label = f"{name}-{len(self.started) + 1}"
        log = self.logs / f"{label}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=REPOSITORY,
                env={PARENT_VARIABLE: str(os.getpid()), **self.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(label=label, process=process, log=log)
        self.started.append(running)
        return running

    def end_all(self) -> None:
        """Kill by pid, descendants included, and make sure that nothing is left."""
        family = [member for running in self.started for member in _family(running)]
        for member in family:
            _kill(member)
        for running in self.started:
            running.process.wait(10)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, f"left running: {alive}"


def command(name: str, *arguments: str) -> list[str]:
    """A worker has the threads pool unless its arguments say otherwise."""
    if name == "worker":
        pool = [] if "--pool" in arguments else ["--pool", "threads"]
        return [sys.executable, "-m", "celery", "-A", "scheduler.project", "worker", *pool, *arguments]
    return [sys.executable, str(REPOSITORY / "manage.py"), name, *arguments]


def product_environ(**values: str) -> dict[str, str]:
    """This process's environment without any configuration of the product but ``values``."""
    clean = {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith("FENCEPOST_")}
    return {**clean, **values}


def installed_environ(home: Path, **values: str) -> dict[str, str]:
    """What every process of an installation under test has in common; `values` name its servers."""
    return product_environ(
        SECRET_KEY="tests",
        ALLOWED_HOSTS="localhost,127.0.0.1",
        FENCEPOST_HOME=str(home),
        FENCEPOST_JOBS="examples.jobs",
        PYTHONUNBUFFERED="1",
        **values,
    )


def _family(running: Running) -> list[psutil.Process]:
    try:
        process = psutil.Process(running.pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
