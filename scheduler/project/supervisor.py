"""Starts a set of programs, restarts the ones that die, and ends all of them together.

Two directions of death are covered. Downwards in order: `Supervisor.stop` ends the stages one after
another within a fixed time. And when this process is killed without a chance to do so, every child
notices by itself: `watch_parent` runs in each of them.

Standard library only: children run this before Django is there.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PARENT_VARIABLE = "FENCEPOST_PARENT_PID"
POLL_S = 0.1
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0
HEALTHY_AFTER_S = 30.0

_PR_SET_PDEATHSIG = 1


# In the child -----------------------------------------------------------------------------------


def watch_parent() -> None:
    """End this process when the supervisor that started it is gone, however it went.

    Does nothing in a process that no supervisor started. The variable is taken out of the
    environment, for our own children have another parent.
    """
    text = os.environ.pop(PARENT_VARIABLE, "")
    if not text:
        return
    parent = int(text)
    end_with_parent(signal.SIGKILL)
    threading.Thread(target=_exit_when_orphaned, args=[parent], name="watch-parent", daemon=True).start()


def end_with_parent(number: signal.Signals) -> None:
    """Ask Linux to send us ``number`` when the thread that started us ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _exit_when_orphaned(parent: int) -> None:
    """The portable half. It also closes the gap of a parent that died before the kernel was asked."""
    while os.getppid() == parent:
        time.sleep(0.5)  # no signal tells of it everywhere: it is asked for
    os._exit(1)


# In the supervisor ------------------------------------------------------------------------------

# (stage, seconds after the request at which the next stage is told, whether what is left is then killed).
# The first stage hands out no more work once it is asked, so the second, where jobs of up to 5 s end, waits
# for it only a moment. All is gone within 10 s.
STOP_PLAN = ((0, 1.0, False), (1, 8.3, True), (2, 9.6, True))


@dataclass(frozen=True, kw_only=True)
class Program:
    """One entry of the process table. Lower stages are stopped first."""

    name: str
    command: Sequence[str]
    count: int = 1
    stage: int = 0
    watches_parent: bool = True  # False for a program that looks after itself


@dataclass(kw_only=True)
class Child:
    """One instance of a program: running, or due to be started at ``start_at`` (monotonic)."""

    program: Program
    label: str
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Owns the children. All methods belong to the thread that made it.

    ``environ``: what the children get. ``logs``: folder of their output, a file for each.
    ``say``: receives a line per event. ``changed``: called after a child was started.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        directory: Path,
        logs: Path,
        say: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.environ = {**environ, PARENT_VARIABLE: str(os.getpid())}
        self.directory = directory
        self.logs = logs
        self.say = say
        self.changed = changed
        self.children: list[Child] = []

    def start(self, *programs: Program) -> None:
        for program in programs:
            for number in range(1, program.count + 1):
                label = program.name if program.count == 1 else f"{program.name}-{number}"
                child = Child(program=program, label=label)
                self.children.append(child)
                self._spawn(child)
        self.changed()

    def run(self, stop: threading.Event) -> None:
        """Keep the children alive until ``stop`` is set."""
        while not stop.wait(POLL_S):
            self.tend()

    def tend(self) -> None:
        """One round: note which children died, start the ones whose pause is over."""
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._bury(child)
            if child.process is None and time.monotonic() >= child.start_at:
                self._spawn(child)
                self.say(f"{child.label} started again, pid {_pid(child)}")
                self.changed()

    def stop(self) -> None:
        """End every child, stage by stage. Takes at most the last limit of `STOP_PLAN`."""
        begun = time.monotonic()
        for stage, limit_s, kill in STOP_PLAN:
            for child in self._alive(stage):
                if child.program.stage == stage:
                    _signal(child, signal.SIGTERM)
            self._await_end(stage, begun + limit_s)
            if kill:
                self._kill(stage)

    def pids(self) -> dict[str, list[int]]:
        """Process ids of the running children by program name."""
        table: dict[str, list[int]] = {child.program.name: [] for child in self.children}
        for child in self.children:
            if child.running():
                table[child.program.name].append(_pid(child))
        return table

    def running(self, name: str) -> bool:
        return any(child.running() for child in self.children if child.program.name == name)

    def log_of(self, label: str) -> Path:
        return self.logs / f"{label}.log"

    def _spawn(self, child: Child) -> None:
        environ = dict(self.environ)
        if not child.program.watches_parent:
            del environ[PARENT_VARIABLE]
        with self.log_of(child.label).open("ab") as log:
            child.process = subprocess.Popen(
                child.program.command,
                cwd=self.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal must reach us alone: we end in order
            )
        child.started_at = time.monotonic()

    def _bury(self, child: Child) -> None:
        lived_s = time.monotonic() - child.started_at
        child.failures = 1 if lived_s > HEALTHY_AFTER_S else child.failures + 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (child.failures - 1), LONGEST_PAUSE_S)
        child.start_at = time.monotonic() + pause_s
        self.say(
            f"{child.label} (pid {_pid(child)}) {_manner_of_death(child)}; "
            f"next start in {pause_s:g} s. Its log: {self.log_of(child.label)}"
        )
        child.process = None

    def _alive(self, up_to_stage: int) -> list[Child]:
        return [child for child in self.children if child.program.stage <= up_to_stage and child.running()]

    def _await_end(self, up_to_stage: int, deadline: float) -> None:
        while self._alive(up_to_stage) and time.monotonic() < deadline:
            time.sleep(0.02)  # several processes at once: there is no call that waits for all until a time

    def _kill(self, up_to_stage: int) -> None:
        for child in self._alive(up_to_stage):
            self.say(f"{child.label} (pid {_pid(child)}) did not end in time and was killed")
            _signal(child, signal.SIGKILL)
            if child.process is not None:
                child.process.wait()


def _pid(child: Child) -> int:
    assert child.process is not None
    return child.process.pid


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None:
        child.process.send_signal(number)


def _manner_of_death(child: Child) -> str:
    assert child.process is not None
    code = child.process.returncode
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
