"""Hosts whose clocks are wrong: the database's clock decides what is due, and such a host owns nothing."""

from datetime import timedelta

import pytest

from tests.support.installation import Installation, recording
from tests.support.machine import libfaketime_path
from tests.support.wait import wait_until

pytestmark = pytest.mark.faketime

SCHEDULES = 5
WRONG = {"five minutes fast": "+5m", "a day slow": "-1d"}


def off_by(offset: str) -> dict[str, str]:
    """The environment of a process on such a host; its waits, which go by the monotonic clock, are sound."""
    return {
        "LD_PRELOAD": libfaketime_path() or "",
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.parametrize("offset", WRONG.values(), ids=WRONG.keys())
def test_a_tick_with_a_wrong_clock_owns_nothing_and_says_so(installation: Installation, offset: str) -> None:
    ledger = installation.ledger
    installation.apply(recording("second"))
    wrong = installation.start("tick", env=off_by(offset))
    wrong.wait_for("clock_skew")
    sound = installation.start("tick")
    wait_until(lambda: ledger.scalar("SELECT count(*) FROM occurrence"), 30)
    owners = (
        "SELECT DISTINCT s.worker FROM shard_lease l JOIN session s ON s.id = l.owner WHERE l.kind = 'tick'"
    )
    assert [worker.rpartition(":")[2] for (worker,) in ledger.rows(owners)] == [str(sound.pid)]
    assert wrong.running()


def test_with_every_clock_wrong_nothing_runs_early_or_twice(installation: Installation) -> None:
    """Ownership ignored, so that the wrong clocks do all the work there is."""
    installation.be_brisk()
    installation.environ["FENCEPOST_IGNORE_OWNERSHIP"] = "1"
    ledger, (fast, slow) = installation.ledger, (off_by(offset) for offset in WRONG.values())
    installation.apply(*(recording(f"second-{number}") for number in range(SCHEDULES)))
    since = ledger.now()
    hosts = {"tick": fast, "relay": slow, "sweep": fast, "worker": slow}
    started = [installation.start(name, env=clock) for name, clock in hosts.items()]
    started.append(installation.start("tick", env=slow))
    until = since + timedelta(seconds=20)
    wait_until(lambda: ledger.settled(until=until), 80, interval=0.2)

    assert [one.label for one in started if not one.running()] == []
    assert set(ledger.states(since=since, until=until)) == {"SUCCEEDED"}
    early = "SELECT count(*) FROM attempt WHERE started_at < due_at"
    far_ahead = "SELECT count(*) FROM occurrence WHERE due_at > created_at + interval '1 minute'"
    assert (ledger.scalar(early), ledger.scalar(far_ahead)) == (0, 0)
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)
