"""Every instant has one explanation; and what a preview said is what the ledger says later."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.explain import Explanation, explain
from scheduler.models import Occurrence, Schedule
from scheduler.operations import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
)
from scheduler.queries import preview, preview_edit
from tenants.models import Tenant
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.timetravel import Clock, due_instants

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def cron(*expressions: str, zone: str = "UTC", **more: Any) -> dict[str, Any]:
    return {"cron": {"expressions": list(expressions), "timezone": zone, **more}}


def edit(schedule: Schedule, **changes: Any) -> Schedule:
    return edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


def at(schedule: Schedule, text: str) -> Explanation:
    return explain(schedule, instant(text))


def reason(schedule: Schedule, text: str) -> str:
    schedule.refresh_from_db()
    return at(schedule, text).reason


def test_past_and_future_of_one_schedule(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=every(60), overlap="allow")
    clock.tick_until("2026-12-01T00:05:00Z")
    clock.at("2026-12-01T00:20:30Z").tick()
    pause_schedule(tenant, schedule.id, note="deploying", actor=ACTOR)
    clock.at("2026-12-01T00:30:30Z")
    resume_schedule(tenant, schedule.id, actor=ACTOR)
    edit(schedule, trigger=every(120))
    clock.at("2026-12-01T00:40:10Z")
    assert reason(schedule, "2026-11-30T23:59:00Z") == "before_creation"
    assert reason(schedule, "2026-12-01T00:04:00Z") == "run"
    assert reason(schedule, "2026-12-01T00:04:30Z") == "not_due"
    assert reason(schedule, "2026-12-01T00:10:00Z") == "coalesced"
    assert at(schedule, "2026-12-01T00:10:00Z").run_id == at(schedule, "2026-12-01T00:20:00Z").run_id
    assert reason(schedule, "2026-12-01T00:25:00Z") == "paused"
    assert "deploying" in at(schedule, "2026-12-01T00:25:00Z").sentence
    assert reason(schedule, "2026-12-01T00:31:00Z") == "replaced"
    assert reason(schedule, "2026-12-01T00:38:00Z") == "behind"
    assert reason(schedule, "2026-12-01T01:00:00Z") == "planned"
    assert reason(schedule, "2026-12-01T01:01:00Z") == "replaced"


def test_an_end_and_a_cancellation(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=every(60), end_at="2026-12-01T12:00:00Z")
    assert reason(schedule, "2026-12-01T12:01:00Z") == "out_of_bounds"
    clock.tick_until("2026-12-01T00:03:00Z")
    delete_schedule(tenant, schedule.id, actor=ACTOR)
    assert reason(schedule, "2026-12-01T00:10:00Z") == "cancelled"


@pytest.mark.parametrize(
    ("dst", "text", "words"),
    [
        ({}, "2026-10-25T01:30:00Z", "second pass"),
        ({"repeated": "second"}, "2026-10-25T00:30:00Z", "first pass"),
        ({"nonexistent": "skip"}, "2026-03-29T01:00:00Z", "does not exist"),
    ],
)
def test_what_the_clock_did(tenant: Tenant, clock: Clock, dst: dict[str, str], text: str, words: str) -> None:
    clock.at("2026-01-01T00:00:00Z")
    schedule = factories.schedule(tenant, trigger=cron("30 2 * * *", zone="Europe/Berlin", dst=dst))
    found = at(schedule, text)
    assert found.reason == "dst"
    assert words in found.sentence


def test_what_the_clock_did_to_an_instant_that_is_due_is_noted(tenant: Tenant, clock: Clock) -> None:
    clock.at("2026-01-01T00:00:00Z")
    schedule = factories.schedule(tenant, trigger=cron("30 2 * * *", zone="Europe/Berlin"))
    (note,) = at(schedule, "2026-03-29T01:00:00Z").notes
    assert "does not exist" in note


def test_an_edit_is_shown_old_against_new(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 9 * * *"))
    shown = preview_edit(tenant, schedule, {"trigger": cron("0 9,18 * * MON-FRI")}, 4)
    assert [f"{one.utc:%d %H}" for one in shown.old] == ["01 09", "02 09", "03 09", "04 09"]
    assert [f"{one.utc:%d %H}" for one in shown.new] == ["01 09", "01 18", "02 09", "02 18"]
    assert [f"{moment:%d %H}" for moment in shown.added] == ["01 18", "02 18"]
    assert shown.dropped == []
    assert "Monday through Friday" in shown.words
    schedule.refresh_from_db()
    assert schedule.revision == 1


def test_both_day_fields_are_warned_about(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=cron("0 9 1 * *"))
    shown = preview_edit(tenant, schedule, {"trigger": cron("0 9 1 * FRI")}, 1)
    assert "restricts day-of-month and day-of-week" in shown.new[0].notes[0]


TRIGGERS = st.one_of(
    st.lists(
        st.sampled_from(["*/7 * * * *", "0 */3 * * *", "30 2 * * *", "15 9 * * MON-FRI", "0 12 L * *"]),
        min_size=1,
        max_size=3,
    ).flatmap(
        lambda chosen: st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]).map(
            lambda zone: cron(*chosen, zone=zone)
        )
    ),
    st.integers(300, 30_000).map(every),
)
BEGINS = st.sampled_from(["2026-03-28T20:11:12Z", "2026-10-24T20:11:12Z", "2026-04-04T03:00:00Z"])
EXCLUSIONS = st.sampled_from([[], [{"date": "2026-03-29"}, {"date": "2026-10-26"}]])


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trigger=TRIGGERS, begin=BEGINS, exclusions=EXCLUSIONS)
def test_the_preview_of_a_quiet_schedule_is_the_ledger_afterwards(
    tenant: Tenant, clock: Clock, trigger: dict[str, Any], begin: str, exclusions: list[dict[str, str]]
) -> None:
    clock.at(begin)
    name = f"quiet-{Schedule.objects.count()}"
    schedule = factories.schedule(tenant, name=name, trigger=trigger, exclusions=exclusions, overlap="allow")
    soon = clock.now + timedelta(milliseconds=1)  # the anchor of an interval is itself not due
    foretold = [shown.utc for shown in preview(schedule, 8, start=soon)]
    while clock.now < foretold[-1]:
        schedule.refresh_from_db()
        assert schedule.next_due_at is not None
        clock.now = max(clock.now, schedule.next_due_at)
        clock.tick()
    assert due_instants(schedule, due_at__lte=foretold[-1]) == foretold
    assert not Occurrence.objects.filter(schedule=schedule, overdue=True).exists()
    assert clock.accounts() == []


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["tick", "tick", "sleep", "edit", "pause", "resume", "catch_up"]),
            st.integers(20, 400),
        ),
        min_size=3,
        max_size=10,
    ),
    catch_up=st.sampled_from(["run_latest_only", "run_all", "skip"]),
    limit=st.sampled_from([None, 6]),
)
def test_every_instant_of_a_restless_schedule_is_accounted_for_once(
    tenant: Tenant, clock: Clock, steps: list[tuple[str, int]], catch_up: str, limit: int | None
) -> None:
    clock.at("2026-12-01T00:00:00Z")
    schedule = factories.schedule(
        tenant,
        name=f"restless-{Schedule.objects.count()}",
        trigger=every(60),
        catch_up=catch_up,
        catch_up_limit=3,
        max_occurrences=limit,
    )
    for number, (step, seconds) in enumerate(steps):
        clock.forward(seconds=seconds)
        _take(step, schedule, clock, number)
    clock.tick()
    assert clock.accounts() == []
    schedule.refresh_from_db()
    moment: datetime = instant("2026-12-01T00:01:00Z")
    while moment <= clock.now.astimezone(UTC):
        assert explain(schedule, moment).reason != "unaccounted"
        moment += MINUTE


def _take(step: str, schedule: Schedule, clock: Clock, number: int) -> None:
    schedule.refresh_from_db()
    if step == "tick":
        clock.tick()
    elif step == "edit":
        edit(schedule, description=str(number), trigger=every(60 + 60 * (number % 2)))
    elif step == "pause" and schedule.state == "active":
        pause_schedule(schedule.tenant, schedule.id, actor=ACTOR)
    elif step in ("resume", "catch_up") and schedule.state == "paused":
        mode = "catch_up" if step == "catch_up" else "from_now"
        resume_schedule(schedule.tenant, schedule.id, resume=mode, actor=ACTOR)
