"""Exclusions, limits, flexible windows, fixed delays: from the body to the rows, by the test's clock."""

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from scheduler.calendars import put_calendar
from scheduler.core.spread import dispatch_offset
from scheduler.errors import ValidationFailed
from scheduler.explain import explain
from scheduler.models import Calendar, Occurrence, Schedule
from scheduler.operations import edit_schedule, pause_schedule, resume_schedule
from scheduler.processes import tick
from tenants.models import Tenant
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.timetravel import Clock, due_instants, texts

pytestmark = pytest.mark.django_db

DAILY = {"cron": {"expressions": ["0 9 * * *"], "timezone": "UTC"}}
ICS = """BEGIN:VCALENDAR
VERSION:2.0
BEGIN:VEVENT
SUMMARY:Christmas\\, both
  days of it
DTSTART;VALUE=DATE:20261225
DTEND;VALUE=DATE:20261227
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20200101
RRULE:FREQ=YEARLY
EXDATE;VALUE=DATE:20280101
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20261203
STATUS:CANCELLED
END:VEVENT
END:VCALENDAR
"""


def edit(schedule: Schedule, **changes: Any) -> Schedule:
    return edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


class TestExclusions:
    def test_excluded_dates_make_no_row_and_say_why(self, tenant: Tenant, clock: Clock) -> None:
        exclusions = [{"date": "2026-12-02"}, {"from": "2026-12-04", "to": "2026-12-05"}]
        schedule = factories.schedule(tenant, trigger=DAILY, exclusions=exclusions)
        clock.tick_until("2026-12-06T12:00:00Z", every_s=3600)
        assert texts(due_instants(schedule)) == [f"2026-12-0{day}T09:00:00Z" for day in (1, 3, 6)]
        assert explain(schedule, instant("2026-12-02T09:00:00Z")).reason == "excluded"
        assert clock.accounts() == []

    def test_an_interval_rests_on_utc_dates(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(6 * 3600), exclusions=[{"date": "2026-12-02"}])
        clock.tick_until("2026-12-03T01:00:00Z", every_s=3600)
        assert texts(due_instants(schedule)) == [
            *[f"2026-12-01T{hour}:00:00Z" for hour in ("06", "12", "18")],
            "2026-12-03T00:00:00Z",
        ]
        assert clock.accounts() == []

    def test_what_is_moved_fires_on_the_next_business_day_once(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(
            tenant,
            trigger=DAILY,
            exclusions=[{"from": "2026-12-04", "to": "2026-12-05"}],
            on_excluded="next_business_day",
        )
        clock.tick_until("2026-12-08T00:00:00Z", every_s=3600)
        assert texts(due_instants(schedule))[-2:] == ["2026-12-06T09:00:00Z", "2026-12-07T09:00:00Z"]
        assert len(due_instants(schedule)) == 5
        moved = explain(schedule, instant("2026-12-04T09:00:00Z"))
        assert "moved to 2026-12-07" in moved.sentence

    def test_a_calendar_of_the_tenant_is_kept_as_it_was(self, tenant: Tenant, clock: Clock) -> None:
        put_calendar(tenant, "rest", days=["2026-12-02"], actor=ACTOR)
        schedule = factories.schedule(tenant, trigger=DAILY, exclusions=[{"calendar": "rest"}])
        clock.tick_until("2026-12-03T12:00:00Z", every_s=3600)
        (change,) = put_calendar(tenant, "rest", days=["2026-12-04"], actor=ACTOR).schedules
        assert (change.name, change.action) == (schedule.name, "edited")
        clock.tick_until("2026-12-05T12:00:00Z", every_s=3600)
        assert texts(due_instants(schedule)) == [f"2026-12-0{day}T09:00:00Z" for day in (1, 3, 5)]
        assert explain(schedule, instant("2026-12-02T09:00:00Z")).reason == "excluded"
        assert clock.accounts() == []

    def test_another_tenants_calendar_is_unknown(self, tenant: Tenant, clock: Clock) -> None:
        put_calendar(factories.TenantFactory(), "rest", days=["2026-12-02"], actor=ACTOR)
        with pytest.raises(ValidationFailed) as refused:
            factories.schedule(tenant, trigger=DAILY, exclusions=[{"calendar": "rest"}])
        (error,) = refused.value.errors
        assert (error.field, error.code) == ("exclusions.0.calendar", "unknown_calendar")

    def test_a_calendar_is_imported_from_an_ics_file(
        self, tenant: Tenant, clock: Clock, tmp_path: Path
    ) -> None:
        path = tmp_path / "rest.ics"
        path.write_text(ICS.replace("\n", "\r\n"))
        call_command("import_calendar", "rest", str(path), tenant=tenant.slug, stdout=StringIO())
        days = Calendar.objects.get(tenant=tenant, name="rest").days
        assert {"from": "2026-12-25", "to": "2026-12-26"} in days
        assert {"2026-01-01", "2027-01-01", "2029-01-01"} <= {day for day in days if isinstance(day, str)}
        assert "2028-01-01" not in days
        assert "2026-12-03" not in days

    def test_a_file_that_is_none_is_refused(self, tenant: Tenant, tmp_path: Path) -> None:
        path = tmp_path / "rest.ics"
        path.write_text("<html>")
        with pytest.raises(CommandError, match="BEGIN:VCALENDAR"):
            call_command("import_calendar", "rest", str(path), tenant=tenant.slug)


class TestMaxOccurrences:
    def test_counts_runs_and_then_completes(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), max_occurrences=3)
        clock.tick_until("2026-12-01T00:10:00Z")
        assert len(due_instants(schedule)) == 3
        clock.end_runs(schedule)
        schedule.refresh_from_db()
        assert (schedule.state, schedule.next_due_at) == ("completed", None)
        assert explain(schedule, instant("2026-12-01T00:04:00Z")).reason == "limit"
        assert clock.accounts() == []

    def test_what_was_skipped_does_not_count(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), max_occurrences=2)
        clock.at("2026-12-01T00:02:30Z").tick()
        clock.end_runs(schedule, "SKIPPED")
        clock.tick_until("2026-12-01T00:08:00Z")
        clock.end_runs(schedule)
        schedule.refresh_from_db()
        assert schedule.state == "completed"
        assert len(due_instants(schedule)) == 3 + len(due_instants(schedule, state="SKIPPED")) - 1
        assert len(due_instants(schedule, state="SUCCEEDED")) == 2
        assert clock.accounts() == []

    def test_counts_over_all_revisions_and_more_may_be_allowed_later(
        self, tenant: Tenant, clock: Clock
    ) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), max_occurrences=2)
        clock.tick_until("2026-12-01T00:05:00Z")
        clock.end_runs(schedule)
        edit(schedule, description="the same limit")
        schedule.refresh_from_db()
        assert schedule.state == "completed"
        edit(schedule, max_occurrences=3)
        clock.tick_until("2026-12-01T00:09:00Z")
        assert texts(due_instants(schedule)) == [f"2026-12-01T00:0{n}:00Z" for n in (1, 2, 6)]
        assert clock.accounts() == []

    def test_what_has_been_counted_for_good_is_not_counted_again(
        self, tenant: Tenant, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its rows may be gone. What may still be skipped is not among it."""
        monkeypatch.setattr(tick, "RECOUNTED", 2)
        schedule = factories.schedule(tenant, trigger=every(60), max_occurrences=6, overlap="allow")
        clock.tick_until("2026-12-01T00:02:30Z")
        clock.end_runs(schedule)
        clock.tick_until("2026-12-01T00:05:30Z")  # the third to the fifth wait
        schedule.refresh_from_db()
        assert (schedule.counted_runs, schedule.counted_until) == (2, instant("2026-12-01T00:02:00Z"))
        Occurrence.objects.filter(due_at__lte=schedule.counted_until).delete()
        clock.end_runs(schedule, "SKIPPED")
        clock.tick_until("2026-12-01T00:12:00Z")
        clock.end_runs(schedule)
        schedule.refresh_from_db()
        assert schedule.state == "completed"
        assert texts(due_instants(schedule, state="SUCCEEDED")) == [
            f"2026-12-01T00:0{minute}:00Z" for minute in (6, 7, 8, 9)
        ]

    def test_a_pause_while_all_are_handed_out_balances(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), max_occurrences=2)
        clock.tick_until("2026-12-01T00:05:00Z")
        pause_schedule(tenant, schedule.id, actor=ACTOR)
        clock.forward(minutes=5)
        resume_schedule(tenant, schedule.id, actor=ACTOR)
        clock.tick_until("2026-12-01T00:15:00Z")
        assert len(due_instants(schedule)) == 2
        assert clock.accounts() == []


class TestFlexibleWindow:
    def test_dispatch_moves_to_the_same_place_each_time(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(3600), flexible_window_s=600)
        clock.tick_until("2026-12-01T03:00:00Z", every_s=600)
        offsets = {run.dispatch_at - run.due_at for run in Occurrence.objects.filter(schedule=schedule)}
        assert offsets == {dispatch_offset(schedule.id, 600)}
        assert timedelta(0) <= offsets.pop() < timedelta(seconds=600)
        assert clock.accounts() == []


class TestFixedDelay:
    @pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "DEAD_LETTERED", "CANCELLED", "SKIPPED"])
    def test_every_end_arms_the_next_instant(self, tenant: Tenant, clock: Clock, state: str) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), mode="fixed_delay")
        clock.tick_until("2026-12-01T00:05:00Z")
        assert texts(due_instants(schedule)) == ["2026-12-01T00:01:00Z"]
        clock.forward(seconds=7)
        clock.end_runs(schedule, state)
        schedule.refresh_from_db()
        assert schedule.next_due_at == clock.now + timedelta(seconds=60)
        assert explain(schedule, schedule.next_due_at).reason == "planned"
        clock.tick_until("2026-12-01T00:10:00Z")
        assert len(due_instants(schedule)) == 2
        assert clock.accounts() == []

    def test_a_cron_goes_on_with_its_first_instant_after_the_end(self, tenant: Tenant, clock: Clock) -> None:
        trigger = {"cron": {"expressions": ["*/10 * * * *"], "timezone": "UTC"}}
        schedule = factories.schedule(tenant, trigger=trigger, mode="fixed_delay")
        clock.tick_until("2026-12-01T00:25:00Z")
        clock.end_runs(schedule)
        schedule.refresh_from_db()
        assert schedule.next_due_at == instant("2026-12-01T00:30:00Z")

    def test_an_edit_of_other_things_keeps_the_instant_that_is_armed(
        self, tenant: Tenant, clock: Clock
    ) -> None:
        schedule = factories.schedule(tenant, trigger=every(3600), mode="fixed_delay")
        clock.at("2026-12-01T01:00:00Z").tick()
        clock.forward(minutes=7)
        clock.end_runs(schedule)
        clock.forward(minutes=9)
        armed = instant("2026-12-01T02:07:00Z")
        assert edit(schedule, description="other").next_due_at == armed
        clock.at("2026-12-01T02:06:55Z").tick()  # handed to the look-ahead, and taken back by the edit
        assert edit(schedule, description="again").next_due_at == armed

    def test_an_edit_while_the_run_is_under_way_waits_for_it(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), mode="fixed_delay")
        clock.at("2026-12-01T00:01:00Z").tick()
        edited = edit(schedule, trigger=every(120))
        assert (edited.state, edited.next_due_at) == ("active", None)
        clock.at("2026-12-01T00:05:00Z").end_runs(schedule)
        schedule.refresh_from_db()
        assert schedule.next_due_at == instant("2026-12-01T00:07:00Z")

    @pytest.mark.parametrize(
        ("on_excluded", "armed"),
        [("skip", "2026-12-03T05:00:01Z"), ("next_business_day", "2026-12-03T02:00:01Z")],
    )
    def test_a_delay_that_ends_on_an_excluded_date_rests(
        self, tenant: Tenant, clock: Clock, on_excluded: str, armed: str
    ) -> None:
        schedule = factories.schedule(
            tenant,
            trigger=every(9 * 3600),
            mode="fixed_delay",
            exclusions=[{"date": "2026-12-02"}],
            on_excluded=on_excluded,
        )
        clock.at("2026-12-01T09:00:00Z").tick()
        clock.at("2026-12-01T17:00:01Z").end_runs(schedule)
        schedule.refresh_from_db()
        assert schedule.next_due_at == instant(armed)
        clock.tick_until("2026-12-03T06:00:00Z", every_s=3600)
        assert texts(due_instants(schedule)) == ["2026-12-01T09:00:00Z", armed]
        assert clock.accounts() == []

    def test_a_skipped_catch_up_goes_on_from_now(self, tenant: Tenant, clock: Clock) -> None:
        schedule = factories.schedule(tenant, trigger=every(60), mode="fixed_delay", catch_up="skip")
        clock.at("2026-12-01T01:00:00Z").tick()
        schedule.refresh_from_db()
        assert schedule.next_due_at == instant("2026-12-01T01:01:00Z")

    def test_once_has_no_delay(self, tenant: Tenant, clock: Clock) -> None:
        with pytest.raises(ValidationFailed) as refused:
            factories.schedule(tenant, trigger={"once": {"at": "2026-12-02T00:00:00Z"}}, mode="fixed_delay")
        assert [(error.field, error.code) for error in refused.value.errors] == [("mode", "not_applicable")]
