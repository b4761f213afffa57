"""A third of the workers is killed under load and started again, as a supervisor would: the backlog goes."""

from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from tests.support.installation import Installation, recording
from tests.support.ledger import LedgerReader
from tests.support.processes import Running
from tests.support.wait import wait_until

WORKERS, SLOTS = 3, 12
WINDOW_S = 3.0
CALM_WINDOWS = 2

BACKLOG = """
SELECT count(*) FROM occurrence
WHERE dispatch_at <= clock_timestamp() AND state IN ('PENDING', 'QUEUED', 'RETRY_WAIT')
"""
BUSY = "SELECT count(*) FROM lease"
NEEDLESS = "SELECT sum(generation - attempt_count) FROM occurrence WHERE state = 'SUCCEEDED'"


def start_worker(installation: Installation) -> Running:
    return installation.start("worker", "--concurrency", str(SLOTS))


def occupy(installation: Installation, utilisation: float) -> None:
    """So many schedules of every second with a job of a second that this share of all slots is at work."""
    count = round(WORKERS * SLOTS * utilisation)
    installation.apply(*(recording(f"second-{number:02}", seconds=0.9) for number in range(count)))


def sampled(ledger: LedgerReader, into: list[int]) -> float:
    """One more look; the database's time after it."""
    into.append(ledger.scalar(BACKLOG))
    return ledger.now().timestamp()


def backlogs(installation: Installation) -> Iterator[float]:
    """The mean of each window, one after the other."""
    ledger = installation.ledger
    while True:
        seen: list[int] = []
        ends = ledger.now().timestamp() + WINDOW_S
        wait_until(
            lambda into=seen, by=ends: sampled(ledger, into) > by,
            3 * WINDOW_S,
            interval=0.2,
        )
        yield sum(seen) / len(seen)


def falls_three_times(installation: Installation, *, calm: float, windows: int = 20) -> list[float]:
    """The means up to three in a row that each are below the one before, or not above what is there on a calm
    day: on a busy machine some runs always wait.
    """
    means: list[float] = []
    for mean, _ in zip(backlogs(installation), range(windows), strict=False):
        means.append(mean)
        last = means[-4:]
        if len(last) == 4 and all(b < a or b <= calm for a, b in pairwise(last)):
            return means
    raise AssertionError(f"the backlog did not fall in three windows in a row: {means}")


def losses(installation: Installation) -> int:
    return int(installation.ledger.scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost'"))


@pytest.mark.timeout(400)
def test_the_backlog_falls_at_sixty_and_at_eighty_percent(installation: Installation) -> None:
    installation.be_brisk()
    ledger = installation.ledger
    for name in ("tick", "relay", "sweep"):
        installation.start(name)
    workers = [start_worker(installation) for _ in range(WORKERS)]
    for utilisation in (0.6, 0.8):
        occupy(installation, utilisation)
        wait_until(lambda at=utilisation: ledger.scalar(BUSY) >= at * WORKERS * SLOTS * 0.8, 60)
        before, calm = losses(installation), max(islice(backlogs(installation), 1, 1 + CALM_WINDOWS))
        workers.pop(0).kill()
        wait_until(lambda seen=before: losses(installation) > seen, 60)
        workers.append(start_worker(installation))
        print(f"{utilisation:.0%}: {[round(mean, 1) for mean in falls_three_times(installation, calm=calm)]}")
    until = ledger.now()
    wait_until(lambda: ledger.settled(until=until), 90, interval=0.2)

    assert [one.label for one in workers if not one.running()] == []
    assert set(ledger.states(until=until)) == {"SUCCEEDED"}
    runs = ledger.scalar("SELECT count(*) FROM occurrence WHERE state = 'SUCCEEDED'")
    assert ledger.scalar(NEEDLESS) <= runs / 2, "a spiral of messages"
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)
