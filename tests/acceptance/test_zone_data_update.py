"""An update of the zone data under running processes: restarted one after the other, then `retime`."""

import math
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.installation import Installation, recording
from tests.support.wait import wait_until
from tests.support.zonefiles import VERSION, Jump, updated_wheel

SECONDS = timedelta(seconds=1)
TO_APPLY = 15 * SECONDS  # for the schedules to be made, before the first of them is due
# From that one's run to the jump: the processes are restarted and `retime` runs twice, which takes three to
# four times as long as they took to start. A slow machine gets its time by its own measure.
STARTS_TO_JUMP, AT_LEAST = 12, 30 * SECONDS
WATCHED = 18 * SECONDS  # after the jump

# Daily at the local time of (jump + old) by the old rules, which is (jump + new) by the new ones.
DAILY: dict[str, tuple[str, int, int]] = {
    "before-the-jump": ("Asia/Tokyo", -5, -5),
    "in-the-gap": ("Asia/Tokyo", 8, 0),
    "after-the-gap": ("Asia/Tokyo", 20, 8),
    "after-the-second-pass": ("Asia/Kolkata", 3, 15),
}
STAYS = "before-the-jump"  # of the others it is the next instant that moves: of the last, tomorrow's
SHOWN_AGAIN = "fired-and-shown-again"  # runs before the jump, and its time of day comes once more after it
AGAIN = 15 * SECONDS
NAMES = {*DAILY, SHOWN_AGAIN}


@pytest.mark.timeout(600)
def test_the_future_moves_as_planned_and_no_instant_is_lost_or_doubled(
    installation: Installation, tmp_path: Path
) -> None:
    ledger = installation.ledger
    began = time.monotonic()
    old = [installation.start(name) for name in ("tick", "tick", "relay", "sweep", "worker")]
    wait_until(lambda: ledger.scalar("SELECT count(*) FROM session WHERE kind = 'worker'"), 60)
    lead = max(AT_LEAST, STARTS_TO_JUMP * math.ceil(time.monotonic() - began) * SECONDS)
    jump = ledger.now().replace(microsecond=0) + TO_APPLY + lead
    steady = [recording(f"second-{number}") for number in range(3)]
    moving = [daily(name, zone, jump + old * SECONDS) for name, (zone, old, _) in DAILY.items()]
    installation.apply(*steady, *moving, daily(SHOWN_AGAIN, "Asia/Shanghai", jump - lead))
    wait_until(lambda: SHOWN_AGAIN in ran_at(installation), 60)

    jumps = {"Asia/Tokyo": 12 * SECONDS, "Asia/Kolkata": -12 * SECONDS, "Asia/Shanghai": -(lead + AGAIN)}
    installation.environ |= updated_wheel(tmp_path / "wheel", jumps_at(jump, jumps))
    for process in old:
        assert process.end() == 0
        installation.start(process.label.rsplit("-", 1)[0])
    planned, before = installation.command("retime", "--plan"), history(installation)
    applied = installation.command("retime", "--apply")
    assert ledger.now() < jump, "the restarts took too long"
    assert applied == planned.replace("would move", "moved")
    assert "0 schedules would move" in installation.command("retime", "--plan")

    until = jump + WATCHED
    wait_until(lambda: ledger.settled(until=until), lead.total_seconds() + 120, interval=0.5)
    by_new_rules = {name: [jump + new * SECONDS] for name, (_, _, new) in DAILY.items()}
    assert ran_at(installation) == by_new_rules | {SHOWN_AGAIN: [jump - lead]}
    assert {name for name in NAMES if f"/{name} " in planned} == NAMES - {STAYS}
    assert history(installation).items() >= before.items()
    assert {version for version, due_at in versions(installation) if due_at >= jump} == {VERSION}
    assert len(installation.effects("end")) == len({effect.run for effect in installation.effects("end")})
    # By the new rules, for which this process is too old.
    installation.command("verify", "--effects", str(installation.effects_file), "--until", until.isoformat())


def jumps_at(jump: datetime, by: dict[str, timedelta]) -> dict[str, Jump]:
    """Zones that keep one offset all year, and how far their clocks jump by the update."""
    return {
        zone: Jump(offset=jump.astimezone(ZoneInfo(zone)).utcoffset() or timedelta(0), at=jump, by=step)
        for zone, step in by.items()
    }


def daily(name: str, zone: str, first: datetime) -> dict[str, Any]:
    """At this instant's time of day by the old rules."""
    local = first.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    rule = {"rule": "FREQ=DAILY", "dtstart": local.isoformat(), "timezone": zone}
    return recording(name, trigger={"rrule": rule})


def history(installation: Installation) -> dict[Any, Any]:
    """Runs that have ended, with all that is on record of them."""
    rows = installation.ledger.rows(
        "SELECT o.id, to_jsonb(o) FROM occurrence o WHERE finished_at IS NOT NULL"
    )
    return dict(rows)


def ran_at(installation: Installation) -> dict[str, list[datetime]]:
    """The due instants of the daily schedules that have succeeded."""
    rows = installation.ledger.rows(
        "SELECT s.name, array_agg(o.due_at ORDER BY o.due_at) FROM occurrence o JOIN schedule s"
        " ON s.id = o.schedule_id WHERE s.name = ANY(%(names)s) AND o.state = 'SUCCEEDED' GROUP BY s.name",
        names=sorted(NAMES),
    )
    return dict(rows)


def versions(installation: Installation) -> list[tuple[str, datetime]]:
    rows = installation.ledger.rows("SELECT tzdata_version, due_at FROM occurrence")
    return [(version, due_at) for version, due_at in rows]
