"""Processes that are stopped in mid-work, past every lease, and then go on as if nothing had been."""

import signal
from datetime import timedelta

import pytest

from tests.support.installation import Installation, recording
from tests.support.processes import Running
from tests.support.wait import wait_until

SCHEDULES = 20  # so many that each of three ticks, and of three relays, has some in its shards
ARGUMENTS = {"worker": ("--concurrency", "4")}

# Three at a time: with rows read, a broker's answer not yet noted and a job begun; then each with locks held.
WAVES = (
    ("tick.after_select", "relay.after_confirm", "worker.mid_body"),
    ("tick.after_advance", "relay.after_lock", "worker.after_claim_sql"),
)


def stop_at(installation: Installation, point: str) -> Running:
    """A process of this kind that has stopped itself there, at its third pass."""
    kind = point.partition(".")[0]
    fault = {"FENCEPOST_FAULT": f"{point}:3:STOP"}
    stopped = installation.start(kind, *ARGUMENTS.get(kind, ()), env=fault)
    reached = f"{point} {stopped.pid}\n"
    wait_until(
        lambda: installation.fault_log.exists() and reached in installation.fault_log.read_text(),
        60,
        message=f"{point} was not reached",
    )
    return stopped


@pytest.mark.timeout(600)
def test_whoever_is_stopped_past_its_lease_is_replaced_and_changes_nothing_later(
    installation: Installation,
) -> None:
    installation.be_brisk()
    ledger = installation.ledger
    installation.apply(*(recording(f"second-{number}", seconds=0.1) for number in range(SCHEDULES)))
    steady = [installation.start(name) for name in ("tick", "relay", "sweep")]
    steady.append(installation.start("worker", "--concurrency", "8"))
    returned: list[Running] = []
    for wave in WAVES:
        stopped = [stop_at(installation, point) for point in wave]
        # Everything goes on without them: what they had read, locked, published, claimed and begun.
        until = ledger.now() + timedelta(seconds=2)
        wait_until(lambda end=until: ledger.settled(until=end), 60, interval=0.2, message=f"stuck: {wave}")
        for one in stopped:
            one.signal(signal.SIGCONT)
        returned += stopped
    end = ledger.now() + timedelta(seconds=1)
    wait_until(lambda: ledger.settled(until=end), 60, interval=0.2)

    assert [one.label for one in (*steady, *returned) if not one.running()] == []
    assert set(ledger.states(until=end)) == {"SUCCEEDED"}
    report = installation.verify(until=end)
    assert (report.violations, report.totals.behind) == ((), 0)
    assert ledger.scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost'"), "nothing was taken over"
