"""Children are restarted, end together and in order, and never outlive the supervisor."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scheduler.project.supervisor import Program, Supervisor
from tests.support.processes import REPOSITORY, Launcher, product_environ
from tests.support.wait import wait_until

STAND_IN = [sys.executable, str(REPOSITORY / "tests/project/stand_in.py")]


class Scene:
    """A supervisor with its lines and its record of changes."""

    def __init__(self, logs: Path) -> None:
        self.lines: list[str] = []
        self.changes = 0
        environ = product_environ(PYTHONPATH=str(REPOSITORY))
        self.supervisor = Supervisor(
            environ=environ, directory=REPOSITORY, logs=logs, say=self.lines.append, changed=self.note
        )

    def note(self) -> None:
        self.changes += 1

    def start(self, *programs: Program) -> None:
        self.supervisor.start(*programs)
        labels = [child.label for child in self.supervisor.children]
        wait_until(lambda: all("ready" in self.log(label) for label in labels))

    def log(self, label: str) -> str:
        return self.supervisor.log_of(label).read_text()

    def moment(self, label: str, event: str) -> float:
        return float(
            next(line for line in self.log(label).splitlines() if line.startswith(event)).split()[-1]
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for child in scene.supervisor.children:
        if child.process is not None:
            child.process.kill()
            child.process.wait()


def stand_in(name: str, *arguments: str, count: int = 1, stage: int = 0) -> Program:
    return Program(name=name, command=[*STAND_IN, *arguments], count=count, stage=stage)


def test_a_killed_child_is_replaced_and_reported(scene: Scene) -> None:
    scene.start(stand_in("tick", count=2))
    before = scene.supervisor.pids()["tick"]
    os.kill(before[0], signal.SIGKILL)

    def replaced() -> bool:
        scene.supervisor.tend()
        return len(scene.supervisor.pids()["tick"]) == 2 and scene.supervisor.pids()["tick"] != before

    wait_until(replaced)
    assert scene.supervisor.pids()["tick"][1] == before[1]
    assert f"tick-1 (pid {before[0]}) was ended by SIGKILL" in scene.lines[0]
    assert scene.lines[1].startswith("tick-1 started again, pid ")
    assert scene.changes == 2


def test_a_child_that_keeps_dying_is_started_less_and_less_often(scene: Scene) -> None:
    scene.start(stand_in("relay", "--exit", "3"))
    (child,) = scene.supervisor.children

    def died(times: int) -> bool:
        scene.supervisor.tend()
        return child.failures >= times

    wait_until(lambda: died(3))
    pauses = [line.split("next start in ")[1].split()[0] for line in scene.lines if "ended with" in line]
    assert pauses == ["0.2", "0.4", "0.8"]
    assert "relay (pid" in scene.lines[0]
    assert "ended with exit code 3" in scene.lines[0]


def test_stages_end_one_after_another(scene: Scene) -> None:
    scene.start(
        stand_in("postgres", stage=2),
        stand_in("worker", "--drain", "1", stage=1),
        stand_in("relay", "--drain", "0.5"),
    )
    scene.supervisor.stop()
    assert scene.moment("relay", "ended") <= scene.moment("worker", "asked")
    assert scene.moment("worker", "ended") <= scene.moment("postgres", "asked")
    assert scene.lines == []


def test_a_job_of_five_seconds_ends_even_behind_a_slow_first_stage(scene: Scene) -> None:
    scene.start(stand_in("worker", "--drain", "5", stage=1), stand_in("sweep", "--drain", "4"))
    begun = time.monotonic()
    scene.supervisor.stop()
    assert time.monotonic() - begun < 8
    assert scene.moment("worker", "ended") > begun
    assert scene.moment("sweep", "ended") > begun


def test_the_deaf_are_killed_within_ten_seconds(scene: Scene) -> None:
    scene.start(stand_in("web", "--deaf"), stand_in("worker", "--deaf", stage=1))
    pids = [pid for group in scene.supervisor.pids().values() for pid in group]
    begun = time.monotonic()
    scene.supervisor.stop()
    assert time.monotonic() - begun < 10
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert all("was killed" in line for line in scene.lines)


SUPERVISE = """
import os, sys, threading
from pathlib import Path
from scheduler.project.supervisor import Program, Supervisor
supervisor = Supervisor(environ=os.environ, directory=Path.cwd(), logs=Path(sys.argv[1]), say=print)
supervisor.start(Program(name="tick", command=sys.argv[2:], count=2))
print("pids", *supervisor.pids()["tick"], flush=True)
supervisor.run(threading.Event())
"""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple[Launcher, list[psutil.Process]]]:
    """A supervisor in a process of its own, so that it can be killed; and its children."""
    launcher = Launcher(product_environ(PYTHONPATH=str(REPOSITORY)), tmp_path)
    running = launcher.start(
        "supervise", [sys.executable, "-c", SUPERVISE, str(tmp_path), *STAND_IN, "--deaf"]
    )
    running.wait_for("pids")
    logs = [tmp_path / "tick-1.log", tmp_path / "tick-2.log"]
    wait_until(lambda: all("ready" in log.read_text() for log in logs))
    yield launcher, [psutil.Process(int(pid)) for pid in running.output().split()[1:]]
    launcher.end_all()


def test_children_end_when_the_supervisor_is_killed(
    supervised: tuple[Launcher, list[psutil.Process]],
) -> None:
    launcher, children = supervised
    launcher.started[0].kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_children_notice_without_the_kernels_help(tmp_path: Path) -> None:
    """The portable half alone: a child told to watch a process that is not its parent ends itself."""
    launcher = Launcher(product_environ(PYTHONPATH=str(REPOSITORY), FENCEPOST_PARENT_PID="1"), tmp_path)
    child = launcher.start("orphan", STAND_IN)
    wait_until(lambda: not child.running())
    assert child.process.returncode == 1
    launcher.end_all()


def test_grandchildren_are_not_told_to_watch_their_grandparent(tmp_path: Path) -> None:
    launcher = Launcher(
        product_environ(PYTHONPATH=str(REPOSITORY), FENCEPOST_PARENT_PID=str(os.getpid())), tmp_path
    )
    code = "import os, scheduler.project; print('variable', os.environ.get('FENCEPOST_PARENT_PID'))"
    child = launcher.start("child", [sys.executable, "-c", code])
    assert child.process.wait(10) == 0
    assert "variable None" in child.output()
    launcher.end_all()
