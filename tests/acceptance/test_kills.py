"""One continuous load, and kill -9 at every fault point of every process."""

import os
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from scheduler.faultpoints import POINTS
from tests.support.installation import Installation, recording
from tests.support.processes import Running
from tests.support.wait import wait_until

SCHEDULES = 20

# At which pass the process dies: late enough to have done some work before, soon enough to be reached.
PASSES = {"tick": 3, "relay": 4, "release": 4, "worker": 6, "sweep": 1}


class Victim:
    """A process that is killed at one point after the other, and replaced each time as a supervisor would."""

    def __init__(self, installation: Installation, name: str, points: Sequence[str], *arguments: str) -> None:
        self.installation = installation
        self.name = name
        self.arguments = arguments
        self.remaining = list(points)
        self.killed: list[tuple[str, int]] = []
        self.armed: str | None = None
        self.running = self._start()

    def tend(self) -> bool:
        """True once every point has killed one, and an unarmed successor runs."""
        if self.running.running():
            return self.armed is None
        assert self.armed is not None, f"{self.name} ended by itself:\n{self.running.output()}"
        assert self.running.process.returncode == -signal.SIGKILL, self.running.output()
        self.killed.append((self.armed, self.running.pid))
        self.running = self._start()
        return False

    def _start(self) -> Running:
        self.armed = self.remaining.pop(0) if self.remaining else None
        fault = f"{self.armed}:{PASSES[self.armed.split('.')[0]]}:KILL" if self.armed else ""
        return self.installation.start(self.name, *self.arguments, env={"FENCEPOST_FAULT": fault})


def points_of(*processes: str) -> list[str]:
    return sorted(point for point in POINTS if point.split(".")[0] in processes)


@pytest.mark.timeout(600)
def test_kill_at_every_point(installation: Installation) -> None:
    kill_at_every_point(installation, times=1, within_s=300)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_kill_at_every_point_many_times(installation: Installation) -> None:
    """Forty times, unless KILLS says otherwise."""
    times = int(os.environ.get("KILLS", "40"))
    kill_at_every_point(installation, times=times, within_s=times * 300)


def kill_at_every_point(installation: Installation, *, times: int, within_s: float) -> None:
    installation.be_brisk()
    installation.apply(*(recording(f"second-{number:02}", seconds=0.3) for number in range(SCHEDULES)))
    steady = [
        installation.start("tick"),
        installation.start("relay"),
        installation.start("worker", "--concurrency", "8"),
    ]
    victims = [
        Victim(installation, "tick", times * points_of("tick")),
        Victim(installation, "relay", times * points_of("relay", "release")),
        Victim(installation, "worker", times * points_of("worker"), "--concurrency", "8"),
        Victim(installation, "sweep", times * points_of("sweep")),
    ]
    wait_until(
        lambda: not [victim for victim in victims if not victim.tend()],
        within_s,
        message="not every point killed its process",
        interval=0.1,
    )
    end = installation.ledger.now()
    wait_until(lambda: installation.ledger.settled(until=end), 90, interval=0.5)

    killed = [kill for victim in victims for kill in victim.killed]
    reached = [line.split() for line in installation.fault_log.read_text().splitlines()]
    here = [point for point in POINTS if not point.startswith("http.")]  # those: test_http_targets.py
    assert Counter(point for point, _ in killed) == dict.fromkeys(here, times)
    assert sorted((point, int(pid)) for point, pid in reached) == sorted(killed)
    report = installation.verify(until=end)
    assert (report.violations, report.totals.behind) == ((), 0)
    assert set(installation.ledger.states(until=end)) == {"SUCCEEDED"}
    assert_orphans_were_taken_up(installation)
    assert all(running.running() for running in steady)


def assert_orphans_were_taken_up(installation: Installation) -> None:
    """Else no kill has hit a worker in mid-run, and the test has shown nothing."""
    lost = installation.ledger.rows("SELECT run_id FROM attempt WHERE number = 1 AND outcome = 'lost'")
    assert lost
    for (run_id,) in lost:
        attempts = installation.ledger.attempts(run_id)
        fences = [fence for _, fence, _ in attempts]
        assert fences == sorted(set(fences))
        assert attempts[-1][2] == "succeeded"
