"""What users of other schedulers reported (reports.jsonl) as a sequence of steps, played on a real ledger.

The clock is the test's; operations, tick and tables are the product's. Each test is named by its report.
"""

import subprocess
import sys
from typing import Any

import pytest
from django.db import connection

from scheduler.errors import StaleRevision
from scheduler.explain import explain
from scheduler.models import Occurrence, Schedule
from scheduler.operations import edit_schedule, pause_schedule, resume_schedule
from scheduler.orm import raw_connection
from scheduler.queries import preview_draft, preview_edit
from tenants.models import Tenant
from tests import factories
from tests.core import cases
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.processes import REPOSITORY
from tests.support.timetravel import Clock, due_instants, texts

pytestmark = pytest.mark.django_db

GROUPS = {
    "schedule_edits",
    "missed_after_downtime",
    "interval_drift",
    "timezone_change_existing",
    "last_run_at_bugs",
    "next_prev_calculation",
}


def cron(expression: str, zone: str = "UTC") -> dict[str, Any]:
    return {"cron": {"expressions": [expression], "timezone": zone}}


def edit(schedule: Schedule, **changes: Any) -> Schedule:
    return edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


def test_every_sequence_of_these_groups_has_a_test_here() -> None:
    reports = [report for report in cases.lines("reports.jsonl") if report["group"] in GROUPS]
    sequences = {report["id"] for report in reports if report["input"]["op"] == "sequence"}
    played = {int(name.split("_")[1]) for name in globals() if name.startswith("test_") and name[5].isdigit()}
    assert sequences <= played


def test_90_a_change_by_plain_sql_is_picked_up_by_the_next_tick(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 6 * * *"))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE schedule_revision"
            " SET trigger = jsonb_set(trigger, '{cron,expressions}', '[\"*/5 * * * *\"]')"
        )
        cursor.execute("UPDATE schedule SET next_due_at = '2026-12-01T00:05:00Z'")
    clock.tick_until("2026-12-01T00:11:00Z")
    assert texts(due_instants(schedule)) == ["2026-12-01T00:05:00Z", "2026-12-01T00:10:00Z"]


def test_91_saving_something_else_all_the_time_delays_nothing(tenant: Tenant, clock: Clock) -> None:
    due = [factories.schedule(tenant, name=f"due-{n}", trigger=cron("0 12 * * *")) for n in range(20)]
    other = factories.schedule(tenant, name="other")
    clock.at("2026-12-01T11:59:59.500Z")
    for number in range(30):
        edit(other, description=str(number))
        clock.tick()
        clock.forward(seconds=0.2)
    noon = instant("2026-12-01T12:00:00Z")
    rows = Occurrence.objects.filter(schedule__in=due)
    assert sorted(rows.values_list("due_at", flat=True)) == [noon] * 20
    assert len(set(rows.values_list("schedule_id", flat=True))) == 20
    assert max(rows.values_list("created_at", flat=True)) <= instant("2026-12-01T12:00:05Z")


def test_94_an_edit_makes_nothing_of_the_past(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 6 * * *"))
    clock.tick_until("2026-12-01T12:00:00Z", every_s=600)
    edited = edit(schedule, trigger=cron("0 6,18 * * *"))
    assert texts(due_instants(schedule)) == ["2026-12-01T06:00:00Z"]
    assert edited.next_due_at == instant("2026-12-01T18:00:00Z")


def test_95_timing_belongs_to_one_schedule(tenant: Tenant, clock: Clock) -> None:
    madrid = factories.schedule(tenant, name="a", trigger=cron("0 15 * * *", "Europe/Madrid"))
    chicago = factories.schedule(tenant, name="b", trigger=cron("0 15 * * *", "America/Chicago"))
    edit(chicago, trigger=cron("0 16 * * *", "America/Chicago"))
    madrid.refresh_from_db()
    assert (madrid.revision, madrid.next_due_at) == (1, instant("2026-12-01T14:00:00Z"))


def test_96_after_an_edit_counting_begins_at_the_edit(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("30 0 * * *"))
    clock.tick_until("2026-12-01T00:31:00Z")
    clock.at("2026-12-01T20:30:20Z").tick()
    edited = edit(schedule, trigger=cron("* * * * *"))
    assert edited.next_due_at == instant("2026-12-01T20:31:00Z")
    clock.forward(seconds=45).tick()
    assert not Occurrence.objects.filter(schedule=schedule, overdue=True).exists()
    assert clock.accounts() == []


def test_98_of_two_who_saw_the_same_revision_the_second_is_told(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant)
    edit_schedule(tenant, schedule.id, {"description": "A"}, expected_revision=1, actor=ACTOR)
    with pytest.raises(StaleRevision):
        edit_schedule(tenant, schedule.id, {"description": "B"}, expected_revision=1, actor=ACTOR)
    assert schedule.revisions.get(number=2).description == "A"


@pytest.mark.parametrize(("catch_up", "state"), [("skip", "SKIPPED"), ("run_latest_only", "PENDING")])
def test_106_the_late_hourly_run_is_marked_and_the_next_is_on_time(
    tenant: Tenant, clock: Clock, catch_up: str, state: str
) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 * * * *"), catch_up=catch_up)
    clock.at("2026-12-01T01:55:00Z").tick()
    (late,) = Occurrence.objects.filter(schedule=schedule)
    assert (late.due_at, late.state, late.overdue) == (instant("2026-12-01T01:00:00Z"), state, True)
    clock.at("2026-12-01T02:00:00Z").tick()
    (_, on_time) = Occurrence.objects.filter(schedule=schedule).order_by("due_at")
    assert (on_time.due_at, on_time.overdue) == (clock.now, False)


def test_107_a_tick_that_is_a_little_late_is_not_missed_and_one_that_slept_is_on_record(
    tenant: Tenant, clock: Clock
) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 6 * * *"), catch_up="skip")
    clock.at("2026-12-01T06:00:03Z").tick()
    clock.at("2026-12-02T06:40:00Z").tick()
    first, second = Occurrence.objects.filter(schedule=schedule).order_by("due_at")
    assert (first.state, first.overdue) == ("PENDING", False)
    assert (second.state, second.skip_reason, second.coalesced) == ("SKIPPED", "missed", 1)
    assert "missed" in explain(schedule, second.due_at).sentence


def test_110_half_an_hour_down_makes_one_late_run_by_default(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("* * * * *"))
    clock.at("2026-12-01T00:30:05Z").tick()
    (late,) = Occurrence.objects.filter(schedule=schedule, due_at__lte=clock.now)
    assert (late.due_at, late.coalesced) == (instant("2026-12-01T00:30:00Z"), 30)


def test_112_busy_workers_keep_nothing_off_the_record(tenant: Tenant, clock: Clock) -> None:
    """Nobody claims or ends anything here: the tick does not ask."""
    schedule = factories.schedule(tenant, trigger=cron("* * * * *"), overlap="allow")
    clock.tick_until("2026-12-01T00:30:00Z", every_s=5)
    runs = Occurrence.objects.filter(schedule=schedule, overdue=False)
    assert len(runs) == 30
    assert all(run.created_at <= run.due_at for run in runs)


def test_114_a_resumed_schedule_runs_nothing_of_the_past(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 6 * * *"))
    pause_schedule(tenant, schedule.id, actor=ACTOR)
    clock.at("2026-12-01T12:00:00Z").tick()
    resumed = resume_schedule(tenant, schedule.id, actor=ACTOR)
    clock.tick()
    assert due_instants(schedule) == []
    assert resumed.next_due_at == instant("2026-12-02T06:00:00Z")
    assert explain(schedule, instant("2026-12-01T06:00:00Z")).reason == "paused"


def test_115_ticks_that_restart_all_the_time_still_meet_a_long_interval(tenant: Tenant, clock: Clock) -> None:
    """`Clock.tick` makes a new tick process for each round."""
    schedule = factories.schedule(tenant, trigger=every(6 * 3600))
    clock.tick_until("2026-12-02T00:00:00Z", every_s=1800)
    expected = ["01T06", "01T12", "01T18", "02T00"]
    assert texts(due_instants(schedule)) == [f"2026-12-{text}:00:00Z" for text in expected]


def test_117_late_ticks_do_not_make_an_interval_drift(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=every(10))
    clock.forward(seconds=0.3)
    clock.tick_until("2026-12-01T01:00:00Z", every_s=10)
    grid = [instant("2026-12-01T00:00:00Z").timestamp() + 10 * k for k in range(1, 361)]
    assert [due.timestamp() for due in due_instants(schedule, due_at__lte=clock.now)] == grid


def test_121_a_new_zone_gives_a_new_instant_and_says_so_before(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 9 * * *", "Europe/Berlin"))
    clock.at("2026-12-01T08:00:00Z").tick()
    clock.at("2026-12-01T10:00:00Z").tick()
    new_york = {"trigger": cron("0 9 * * *", "America/New_York")}
    shown = preview_edit(tenant, schedule, new_york, 2)
    edited = edit(schedule, **new_york)
    assert edited.next_due_at == shown.new[0].utc == shown.added[0] == instant("2026-12-01T14:00:00Z")
    clock.tick_until("2026-12-01T23:00:00Z", every_s=600)
    assert texts(due_instants(schedule)) == ["2026-12-01T08:00:00Z", "2026-12-01T14:00:00Z"]
    assert clock.accounts() == []


def test_122_a_daily_job_in_a_zone_behind_fires_once_a_day(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 9 * * *", "America/New_York"))
    clock.tick_until("2026-12-02T00:00:00Z", every_s=300)
    assert texts(due_instants(schedule)) == ["2026-12-01T14:00:00Z"]


def test_123_the_zone_is_asked_for_and_the_preview_shows_both_times(tenant: Tenant, clock: Clock) -> None:
    (first,) = preview_draft(tenant, {"trigger": cron("30 9 * * *", "Europe/Moscow")}, 1)
    assert first.utc == instant("2026-12-01T06:30:00Z")
    assert first.local.isoformat() == "2026-12-01T09:30:00+03:00"


def test_127_a_start_in_the_past_makes_nothing_due(tenant: Tenant, clock: Clock) -> None:
    clock.at("2026-12-01T14:00:00Z")
    schedule = factories.schedule(tenant, trigger=cron("0 15 * * *"), start_at="2026-12-01T13:58:00Z")
    assert schedule.next_due_at == instant("2026-12-01T15:00:00Z")
    clock.tick()
    assert due_instants(schedule) == []


def test_128_progress_is_committed_with_the_run(tenant: Tenant, clock: Clock) -> None:
    """One statement moves the schedule and makes its row: there is no moment between for a kill."""
    schedule = factories.schedule(tenant, trigger=cron("0 12 * * *"))
    clock.at("2026-12-01T12:00:00Z").tick()
    clock.forward(seconds=1).tick()
    assert texts(due_instants(schedule)) == ["2026-12-01T12:00:00Z"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox")
        assert cursor.fetchone() == (1,)


def test_129_all_times_are_instants_and_nothing_fires_after_the_end(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=every(10), end_at="2026-12-01T00:00:30Z")
    clock.tick_until("2026-12-01T00:05:00Z", every_s=10)
    assert texts(due_instants(schedule))[-1] == "2026-12-01T00:00:30Z"
    schedule.refresh_from_db()
    assert schedule.state == "completed"
    times = raw_connection().execute(
        "SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = 'public'"
        " AND table_name IN ('occurrence', 'schedule', 'schedule_revision', 'attempt', 'outbox')"
        " AND column_name ~ '_at$'"
    )
    assert times.fetchall() == [("timestamp with time zone",)]


def test_103_an_edit_elsewhere_sends_no_one_off_again(tenant: Tenant, clock: Clock) -> None:
    clock.at("2026-11-30T11:59:00Z")
    once = factories.schedule(tenant, trigger={"once": {"at": "2026-11-30T12:00:00Z"}}, name="once")
    other = factories.schedule(tenant, trigger=every(60), name="other")
    clock.tick_until("2026-11-30T12:00:05Z")
    edit(other, description="changed while the one-off runs")
    clock.tick_until("2026-11-30T12:02:00Z")
    assert texts(due_instants(once)) == ["2026-11-30T12:00:00Z"]
    once.refresh_from_db()
    assert (once.state, once.next_due_at) == ("completed", None)


def test_104_two_ticks_in_one_minute_make_one_run(tenant: Tenant, clock: Clock) -> None:
    clock.at("2026-11-30T11:59:30Z")
    schedule = factories.schedule(tenant, trigger=cron("* * * * *"))
    for moment in ("2026-11-30T12:00:02Z", "2026-11-30T12:00:40Z"):
        clock.at(moment).tick()
    assert texts(due_instants(schedule)) == ["2026-11-30T12:00:00Z"]


def test_105_importing_starts_nothing_and_a_restart_runs_once(tenant: Tenant, clock: Clock) -> None:
    """Importing everything that an application imports leaves no thread and no connection behind."""
    code = (
        "import threading, django; django.setup();"
        "import api.urls, scheduler.jobs, scheduler.project.celery;"
        "from django.db import connections;"
        "assert threading.active_count() == 1, threading.enumerate();"
        "assert connections['default'].connection is None"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    clock.at("2026-11-30T12:00:30Z")
    schedule = factories.schedule(tenant, trigger=cron("* * * * *"))
    clock.at("2026-11-30T12:03:45Z").tick()
    runs = Occurrence.objects.filter(schedule=schedule, due_at__lte=clock.now).exclude(state="SKIPPED")
    assert [(texts([run.due_at]), run.coalesced) for run in runs] == [(["2026-11-30T12:03:00Z"], 3)]
