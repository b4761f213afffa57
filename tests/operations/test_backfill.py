"""A backfill makes what is missing and nothing else, each run by the revision that was in force."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler.backfill import Backfill, backfill_schedule
from scheduler.errors import Conflict, NotFound, ValidationFailed
from scheduler.models import Occurrence, Schedule
from scheduler.operations import delete_schedule, edit_schedule, pause_schedule
from tenants.models import Tenant
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.timetravel import Clock

pytestmark = pytest.mark.django_db

MIDNIGHT = instant("2026-12-01T00:00:00Z")


def backfill(schedule: Schedule, begin_minute: int, end_minute: int, **options: Any) -> Backfill:
    return backfill_schedule(
        schedule.tenant,
        schedule.id,
        begin=MIDNIGHT + timedelta(minutes=begin_minute),
        end=MIDNIGHT + timedelta(minutes=end_minute),
        request_key=options.pop("request_key", None) or uuid4(),
        actor=ACTOR,
        **options,
    )


def made(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """(minute, revision) of the runs of backfills."""
    for run in Occurrence.objects.filter(schedule=schedule, origin="backfill").order_by("due_at", "id"):
        yield (run.due_at - MIDNIGHT) // timedelta(minutes=1), run.revision


@pytest.fixture
def schedule(tenant: Tenant, clock: Clock) -> Schedule:
    """Every minute since midnight; down from 00:10 to 00:20; edited at 00:25; now it is 00:30."""
    found = factories.schedule(tenant, trigger=every(60), overlap="allow")
    clock.tick_until("2026-12-01T00:09:30Z")
    clock.at("2026-12-01T00:20:30Z").tick()
    clock.tick_until("2026-12-01T00:25:00Z")
    edit_schedule(tenant, found.id, {"trigger": every(120)}, expected_revision=None, actor=ACTOR)
    clock.tick_until("2026-12-01T00:30:00Z")
    return found


def test_only_what_has_no_run_is_made(schedule: Schedule) -> None:
    done = backfill(schedule, 1, 25)
    assert list(made(schedule)) == [(minute, 1) for minute in range(10, 20)]  # 00:20 stands for them
    assert (done.instants, done.existing, done.missing, done.runs) == (24, 14, 10, 10)


def test_a_second_backfill_finds_nothing_missing(schedule: Schedule) -> None:
    backfill(schedule, 1, 25)
    assert backfill(schedule, 1, 25) == Backfill(instants=24, existing=24, runs=0)


def test_rerun_makes_all(schedule: Schedule) -> None:
    done = backfill(schedule, 1, 25, rerun=True)
    assert (done.existing, done.missing, done.runs) == (14, 10, 24)
    assert [minute for minute, _ in made(schedule)] == list(range(1, 25))


def test_each_instant_has_the_revision_then_in_force(schedule: Schedule) -> None:
    backfill(schedule, 20, 30, rerun=True)
    assert list(made(schedule)) == [*((minute, 1) for minute in range(20, 26)), (26, 2), (28, 2)]


def test_before_the_first_revision_there_is_the_first_one(schedule: Schedule, tenant: Tenant) -> None:
    daily = factories.schedule(
        tenant, name="daily", trigger={"cron": {"expressions": ["0 0 * * *"], "timezone": "UTC"}}
    )
    done = backfill(daily, -3 * 1440, 1)
    assert [minute for minute, _ in made(daily)] == [-3 * 1440, -2 * 1440, -1440, 0]
    assert done.runs == 4


def test_a_dry_run_counts_and_makes_nothing(schedule: Schedule) -> None:
    assert backfill(schedule, 1, 25, dry_run=True) == Backfill(instants=24, existing=14, runs=10)
    assert list(made(schedule)) == []


def test_a_request_that_is_repeated_makes_no_second_run(schedule: Schedule) -> None:
    key = UUID(int=7)
    backfill(schedule, 1, 25, rerun=True, request_key=key)
    backfill(schedule, 1, 25, rerun=True, request_key=key)
    assert len(list(made(schedule))) == 24


def test_what_is_due_and_not_met_yet_is_the_ticks(schedule: Schedule, clock: Clock) -> None:
    clock.at("2026-12-01T00:40:10Z")
    done = backfill(schedule, 31, 40)
    runs = Occurrence.objects.filter(schedule=schedule, due_at__gt=MIDNIGHT + timedelta(minutes=31))
    nominal = runs.filter(origin="schedule").count()
    assert (done.instants, done.existing, done.runs) == (4, 0, 4)  # coalesced into the tick's run of 00:40
    assert nominal == 1
    assert clock.accounts() == []


def test_paused_instants_are_missing_ones(schedule: Schedule, clock: Clock) -> None:
    pause_schedule(schedule.tenant, schedule.id, actor=ACTOR)
    clock.at("2026-12-01T00:41:00Z").tick()
    assert backfill(schedule, 31, 41).runs == 5


@pytest.mark.parametrize(
    ("policy", "asked", "used"),
    [
        ("skip", None, "buffer_all"),
        ("allow", None, "allow"),
        ("skip", "skip", "skip"),
    ],
)
def test_runs_wait_for_each_other_unless_told_otherwise(
    schedule: Schedule, policy: str, asked: str | None, used: str
) -> None:
    edit_schedule(schedule.tenant, schedule.id, {"overlap": policy}, expected_revision=None, actor=ACTOR)
    Occurrence.objects.filter(schedule=schedule, revision=2).delete()
    schedule.revisions.filter(number=1).update(overlap=policy)
    backfill(schedule, 10, 20, overlap=asked)
    rows = Occurrence.objects.filter(schedule=schedule, origin="backfill")
    assert {(row.overlap, row.overdue, row.state) for row in rows} == {(used, True, "PENDING")}
    assert {row.dispatch_at for row in rows} == {MIDNIGHT + timedelta(minutes=30)}


@pytest.mark.parametrize(
    ("begin", "end", "options", "field", "code"),
    [
        (5, 5, {}, "to", "out_of_range"),
        (5, 31, {}, "to", "in_the_future"),
        (5, 6, {"overlap": "sometimes"}, "overlap", "invalid_choice"),
    ],
)
def test_what_cannot_be_is_refused(
    schedule: Schedule, begin: int, end: int, options: dict[str, Any], field: str, code: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        backfill(schedule, begin, end, **options)
    assert [(error.field, error.code) for error in refused.value.errors] == [(field, code)]


def test_more_than_ten_thousand_instants_are_refused(tenant: Tenant, clock: Clock) -> None:
    schedule = factories.schedule(tenant, trigger=every(1, anchor="2026-11-01T00:00:00Z"))
    clock.tick()
    with pytest.raises(ValidationFailed) as refused:
        backfill(schedule, -1440, 0)
    assert refused.value.errors[0].code == "too_many"


def test_strangers_and_cancelled_schedules(schedule: Schedule, clock: Clock) -> None:
    elsewhere = factories.TenantFactory()
    begin: datetime = MIDNIGHT
    with pytest.raises(NotFound):
        backfill_schedule(
            elsewhere, schedule.id, begin=begin, end=clock.now, request_key=uuid4(), actor=ACTOR
        )
    delete_schedule(schedule.tenant, schedule.id, actor=ACTOR)
    with pytest.raises(Conflict):
        backfill(schedule, 1, 5)
