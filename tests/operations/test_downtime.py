"""Two weeks without a tick over a schedule of every 5 s: what each policy promises, in bounded work."""

from datetime import timedelta
from typing import Any

import pytest

from scheduler import telemetry
from scheduler.core.materialise import plan_move
from scheduler.models import Occurrence, Schedule
from scheduler.operations import pause_schedule, resume_schedule
from scheduler.orm import raw_connection
from scheduler.processes.tick import ROWS_PER_SCHEDULE
from scheduler.store import due
from tenants.models import Tenant
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.timetravel import Clock

pytestmark = pytest.mark.django_db

MISSED = 14 * 86400 // 5
BACK_AT = "2026-12-15T00:00:02Z"  # between two instants
LAST_MISSED = instant("2026-12-15T00:00:00Z")


def every_five_seconds(tenant: Tenant, **policies: Any) -> Schedule:
    return factories.schedule(tenant, name="five", trigger=every(5), **policies)


def missed_rows(schedule: Schedule) -> list[Occurrence]:
    return list(Occurrence.objects.filter(schedule=schedule, due_at__lte=LAST_MISSED).order_by("due_at"))


def stands_for(rows: list[Occurrence]) -> int:
    return sum(max(1, row.coalesced) for row in rows)


@pytest.mark.parametrize(("catch_up", "state"), [("run_latest_only", "PENDING"), ("skip", "SKIPPED")])
def test_one_row_stands_for_two_weeks(tenant: Tenant, clock: Clock, catch_up: str, state: str) -> None:
    schedule = every_five_seconds(tenant, catch_up=catch_up)
    clock.at(BACK_AT).tick()
    (row,) = missed_rows(schedule)
    assert (row.state, row.due_at, row.coalesced) == (state, LAST_MISSED, MISSED)
    assert row.coalesced_from == instant("2026-12-01T00:00:05Z")
    assert clock.accounts() == []


def test_run_all_keeps_the_latest_and_counts_the_rest(
    tenant: Tenant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(telemetry, "alert", lambda event, **details: alerts.append((event, details)))
    schedule = every_five_seconds(tenant, catch_up="run_all", catch_up_limit=50)
    clock.at(BACK_AT).tick()
    rows = missed_rows(schedule)
    assert [row.due_at for row in rows] == [LAST_MISSED - timedelta(seconds=5 * k) for k in range(49, -1, -1)]
    assert {(row.state, row.overdue, row.overlap) for row in rows} == {("PENDING", True, "buffer_all")}
    assert [row.coalesced for row in rows] == [MISSED - 49] + [0] * 49
    assert clock.accounts() == []
    assert ("catch_up_collapsed", {"schedule": str(schedule.id), "instants": MISSED - 50}) in alerts


def test_run_all_may_overlap_where_the_policy_allows_it(tenant: Tenant, clock: Clock) -> None:
    schedule = every_five_seconds(tenant, catch_up="run_all", catch_up_limit=3, overlap="allow")
    clock.at(BACK_AT).tick()
    assert {row.overlap for row in missed_rows(schedule)} == {"allow"}


def test_what_lies_before_the_window_is_skipped_whatever_the_policy(tenant: Tenant, clock: Clock) -> None:
    schedule = every_five_seconds(
        tenant, catch_up="run_all", catch_up_limit=1000, catch_up_window_s=60, overlap="skip"
    )
    clock.at(BACK_AT).tick()
    too_old, *kept = missed_rows(schedule)
    assert (too_old.state, too_old.skip_reason) == ("SKIPPED", "missed")
    assert too_old.coalesced == MISSED - len(kept)
    assert [row.due_at for row in kept] == [LAST_MISSED - timedelta(seconds=5 * k) for k in range(11, -1, -1)]
    assert clock.accounts() == []


def test_a_long_catch_up_is_made_in_bounded_rounds(tenant: Tenant, clock: Clock) -> None:
    schedule = every_five_seconds(tenant, catch_up="run_all", catch_up_limit=350)
    clock.at(BACK_AT).tick()
    assert clock.rounds >= 350 // ROWS_PER_SCHEDULE
    rows = missed_rows(schedule)
    assert (len(rows), stands_for(rows)) == (350, MISSED)
    assert clock.accounts() == []


@pytest.mark.parametrize("catch_up", ["run_latest_only", "skip", "run_all"])
def test_planning_two_weeks_takes_no_longer_than_its_rows(
    tenant: Tenant, clock: Clock, catch_up: str
) -> None:
    """Instants that become no row of their own are counted, not listed."""
    schedule = every_five_seconds(tenant, catch_up=catch_up, catch_up_limit=10)
    position = due.due_schedule(raw_connection(), schedule.id)
    assert position is not None
    move = plan_move(
        position,
        now=instant(BACK_AT),
        look_ahead_s=10,
        limit=ROWS_PER_SCHEDULE,
        new_id=lambda due_at: schedule.id,
    )
    assert len(move.occurrences) <= 10 + 2


@pytest.mark.parametrize("catch_up", ["run_latest_only", "skip", "run_all"])
def test_newly_due_work_is_on_time_meanwhile(tenant: Tenant, clock: Clock, catch_up: str) -> None:
    schedule = every_five_seconds(tenant, catch_up=catch_up)
    quiet = factories.schedule(tenant, name="quiet", trigger=every(86400, anchor="2026-12-15T00:00:10Z"))
    clock.at(BACK_AT).tick()
    fresh = Occurrence.objects.filter(schedule=schedule, due_at__gt=LAST_MISSED)
    assert {(row.overdue, row.state, row.overlap) for row in fresh} == {(False, "PENDING", "skip")}
    assert [row.due_at - LAST_MISSED for row in fresh.order_by("due_at")] == [
        timedelta(seconds=5),
        timedelta(seconds=10),
    ]
    (on_time,) = Occurrence.objects.filter(schedule=quiet)
    assert on_time.created_at < on_time.due_at


def test_a_pause_is_caught_up_when_the_resume_asks_for_it(tenant: Tenant, clock: Clock) -> None:
    schedule = every_five_seconds(tenant)
    clock.at("2026-12-01T00:00:07Z").tick()
    pause_schedule(tenant, schedule.id, actor=ACTOR)
    clock.at(BACK_AT).tick()
    resume_schedule(tenant, schedule.id, resume="catch_up", actor=ACTOR)
    clock.tick()
    _, caught_up = missed_rows(schedule)
    assert caught_up.coalesced_from == instant("2026-12-01T00:00:10Z")
    assert (caught_up.due_at, caught_up.coalesced) == (LAST_MISSED, MISSED - 1)
    assert clock.accounts() == []
