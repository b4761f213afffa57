"""With ownership ignored, every tick and relay works every shard: more work, and not one run more."""

from collections import Counter
from datetime import timedelta

from tests.support.installation import Installation, recording
from tests.support.wait import wait_until

SCHEDULES = 30
SECONDS = 15


def test_three_ticks_and_two_relays_on_all_shards(installation: Installation) -> None:
    installation.environ["FENCEPOST_IGNORE_OWNERSHIP"] = "1"
    installation.start_all(ticks=3, relays=2)
    installation.apply(*(recording(f"second-{number:02}") for number in range(SCHEDULES)))
    since = installation.ledger.now()
    until = since + timedelta(seconds=SECONDS)
    wait_until(lambda: installation.ledger.settled(until=until), SECONDS + 60, interval=0.5)

    assert installation.ledger.states(since=since, until=until) == {"SUCCEEDED": SCHEDULES * SECONDS}
    begun = Counter(effect.run for effect in installation.effects("begin"))
    assert {run: times for run, times in begun.items() if times > 1} == {}
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)
