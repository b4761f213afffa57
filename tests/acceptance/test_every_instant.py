"""The promise under an ordinary load: each due instant is one run, it succeeds, and none is early."""

from datetime import timedelta

import pytest

from tests.support.installation import Installation, recording
from tests.support.wait import wait_until

SCHEDULES = 200
SECONDS = 60


@pytest.mark.timeout(600)
def test_two_hundred_schedules_of_a_second_for_a_minute(installation: Installation) -> None:
    installation.start_all(concurrency=32)
    installation.apply(*(recording(f"second-{number:03}") for number in range(SCHEDULES)))
    since = installation.ledger.now()
    until = since + timedelta(seconds=SECONDS)
    wait_until(lambda: installation.ledger.settled(until=until), SECONDS + 240, interval=0.5)

    per_schedule = installation.ledger.rows(
        "SELECT schedule_id, count(*), count(*) FILTER (WHERE state = 'SUCCEEDED') FROM occurrence"
        " WHERE due_at > %(since)s AND due_at <= %(until)s GROUP BY schedule_id",
        since=since,
        until=until,
    )
    assert [(runs, succeeded) for _, runs, succeeded in per_schedule] == [(SECONDS, SECONDS)] * SCHEDULES
    early = "SELECT count(*) FROM attempt WHERE started_at < due_at"
    assert installation.ledger.scalar(early) == 0
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)
    ended = [effect.run for effect in installation.effects("end") if since < effect.due_at <= until]
    assert len(ended) >= len(set(ended)) == SCHEDULES * SECONDS
