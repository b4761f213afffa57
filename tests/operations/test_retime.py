"""Zone data switched under schedules: the future moves as planned, the past stays, nothing fires twice.

The old data are made up: what is kept of the zone is replaced by another zone's rules, as if the wheel had
said so until now, and the next instant is put where those rules have it.
"""

from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command

from scheduler import retime
from scheduler.core import zonedata
from scheduler.models import Schedule, ZoneRules
from scheduler.operations import edit_schedule
from tenants.models import Tenant
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.timetravel import Clock, due_instants, texts

pytestmark = pytest.mark.django_db

NINE_IN_BERLIN = {"cron": {"expressions": ["0 9 * * *"], "timezone": "Europe/Berlin"}}


def until_now_berlin_was(other: str) -> None:
    ZoneRules.objects.filter(zone="Europe/Berlin").update(rules=zonedata.rules_of(other))


def next_due(schedule: Schedule, text: str, last: str | None = None) -> None:
    Schedule.objects.filter(id=schedule.id).update(
        next_due_at=instant(text), last_due_at=instant(last) if last else None
    )


def test_rules_are_kept_when_a_zone_is_first_used(tenant: Tenant, clock: Clock) -> None:
    factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    factories.schedule(tenant, name="other", trigger=every(60))
    kept = ZoneRules.objects.get()
    zone = zonedata.zone_by(bytes(kept.rules), kept.zone)
    assert clock.now.astimezone(zone) == clock.now.astimezone(ZoneInfo("Europe/Berlin"))
    assert retime.plan() == []


def test_what_the_plan_lists_is_what_moves(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    factories.schedule(
        tenant, name="tokyo", trigger={"cron": {"expressions": ["0 9 * * *"], "timezone": "Asia/Tokyo"}}
    )
    until_now_berlin_was("Europe/London")
    next_due(schedule, "2026-12-01T09:00:00Z")
    (planned,) = retime.plan()
    assert (planned.schedule.name, planned.before) == (schedule.name, instant("2026-12-01T09:00:00Z"))
    assert planned.after == instant("2026-12-01T08:00:00Z")
    schedule.refresh_from_db()
    assert schedule.next_due_at == planned.before
    out = StringIO()
    call_command("retime", "--apply", stdout=out)
    assert "2026-12-01 09:00:00 -> 2026-12-01 08:00:00 UTC" in out.getvalue()
    schedule.refresh_from_db()
    assert schedule.next_due_at == planned.after
    assert retime.plan() == []


@pytest.mark.parametrize(
    ("other", "fired_at", "old_next"),
    [
        ("Europe/London", "2026-12-01T09:00:00Z", "2026-12-02T09:00:00Z"),
        ("Europe/Moscow", "2026-12-01T06:00:00Z", "2026-12-02T06:00:00Z"),
    ],
)
def test_a_local_time_that_has_fired_does_not_fire_again(
    tenant: Tenant, clock: Clock, other: str, fired_at: str, old_next: str
) -> None:
    schedule = factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    until_now_berlin_was(other)
    next_due(schedule, fired_at)
    clock.at(fired_at).tick()
    next_due(schedule, old_next, last=fired_at)
    clock.forward(minutes=5)
    retime.apply()
    clock.tick_until("2026-12-03T00:00:00Z", every_s=600)
    assert texts(due_instants(schedule)) == [fired_at, "2026-12-02T08:00:00Z"]
    assert clock.accounts() == []


def test_a_local_time_that_is_past_now_and_has_not_fired_is_late_and_not_lost(
    tenant: Tenant, clock: Clock
) -> None:
    schedule = factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    until_now_berlin_was("Europe/London")
    next_due(schedule, "2026-12-01T09:00:00Z")
    clock.at("2026-12-01T08:30:00Z")
    retime.apply()
    clock.tick()
    assert texts(due_instants(schedule, overdue=True)) == ["2026-12-01T08:00:00Z"]
    clock.tick_until("2026-12-02T12:00:00Z", every_s=600)
    assert texts(due_instants(schedule)) == ["2026-12-01T08:00:00Z", "2026-12-02T08:00:00Z"]
    assert clock.accounts() == []


def test_what_is_in_the_look_ahead_stays(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    until_now_berlin_was("Europe/London")
    next_due(schedule, "2026-12-01T09:00:00Z")
    clock.at("2026-12-01T08:59:55Z").tick()
    next_due(schedule, "2026-12-02T09:00:00Z", last="2026-12-01T09:00:00Z")
    retime.apply()
    clock.tick_until("2026-12-02T12:00:00Z", every_s=600)
    assert texts(due_instants(schedule)) == ["2026-12-01T09:00:00Z", "2026-12-02T08:00:00Z"]
    assert clock.accounts() == []


def test_a_schedule_that_left_the_zone_does_not_move(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=NINE_IN_BERLIN)
    edit_schedule(tenant, schedule.id, {"trigger": every(3600)}, expected_revision=None, actor=ACTOR)
    until_now_berlin_was("Europe/London")
    assert retime.plan() == []
    assert retime.apply() == []
    assert ZoneRules.objects.get().tzdata_version
