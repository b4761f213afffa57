"""The promise under an ordinary load: each due instant is one run, it succeeds, and none is early."""

from datetime import timedelta

import pytest

from tests.support.installation import Installation, recording
from tests.support.wait import wait_until

SCHEDULES = 200
SECONDS = 60
TO_APPLY_S = 40  # for the file to be applied: the minute begins when all schedules are there


@pytest.mark.timeout(600)
def test_two_hundred_schedules_of_a_second_for_a_minute(installation: Installation) -> None:
    ledger = installation.ledger
    installation.start_all(concurrency=32)
    wait_until(lambda: ledger.scalar("SELECT count(*) FROM session WHERE kind = 'worker'"), 60)
    until = ledger.now().replace(microsecond=0) + timedelta(seconds=SECONDS + TO_APPLY_S)
    installation.apply(
        *(recording(f"second-{number:03}", end_at=until.isoformat()) for number in range(SCHEDULES))
    )
    since = ledger.now()
    wait_until(lambda: ledger.settled(until=until), SECONDS + 180, interval=0.5)

    instants = -((since - until) // timedelta(seconds=1))  # whole seconds in (since, until]
    assert instants >= SECONDS, "applying the file took too long"
    per_schedule = ledger.rows(
        "SELECT count(*), count(*) FILTER (WHERE state = 'SUCCEEDED') FROM occurrence"
        " WHERE due_at > %(since)s AND due_at <= %(until)s GROUP BY schedule_id",
        since=since,
        until=until,
    )
    assert per_schedule == [(instants, instants)] * SCHEDULES
    assert ledger.scalar("SELECT count(*) FROM attempt WHERE started_at < due_at") == 0
    report = installation.verify()
    assert (report.violations, report.totals.behind) == ((), 0)
    ended = {effect.run for effect in installation.effects("end") if effect.due_at > since}
    assert len(ended) == sum(runs for runs, _ in per_schedule)
