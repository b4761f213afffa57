"""Operations of people against the machine at work, on connections that really race."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from scheduler.calendars import put_calendar
from scheduler.core import identity
from scheduler.core.materialise import DueSchedule, plan_move
from scheduler.errors import Conflict, NotFound, StaleRevision
from scheduler.models import Occurrence, Schedule
from scheduler.operations import (
    cancel_run,
    create_schedule,
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from scheduler.orm import database_time, raw_connection
from scheduler.store import due
from scheduler.testing.verify import verify
from tenants.models import Tenant
from tests import factories
from tests.factories import ACTOR, every
from tests.support.wait import wait_until

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _empty_ledger(transactional_db: None) -> Iterator[None]:
    yield
    factories.empty_ledger()


@pytest.fixture
def schedule() -> Schedule:
    return factories.schedule(factories.TenantFactory(), trigger=every(2))


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Run something in another thread, on a connection of its own."""
    with ThreadPoolExecutor(8) as pool:

        def run(action: Callable[[], Any]) -> Future[Any]:
            def call() -> Any:
                try:
                    return action()
                finally:
                    connection.close()

            return pool.submit(call)

        yield run


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # within a transaction the view stands still
        cursor.execute(
            "SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE wait_event_type = 'Lock'"
            " AND datid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return bool(cursor.fetchone()[0])


def read_position(schedule: Schedule) -> DueSchedule:
    position = due.due_schedule(raw_connection(), schedule.id)
    assert position is not None
    return position


def materialise(position: DueSchedule) -> due.Materialised:
    now = database_time()
    move = plan_move(
        position,
        now=now,
        look_ahead_s=10,
        limit=100,
        new_id=lambda due_at: identity.run_id(due_at, os.urandom(10)),
    )
    return due.materialise(raw_connection(), [move], now=now)


def states(schedule: Schedule) -> list[str]:
    return list(Occurrence.objects.filter(schedule=schedule).values_list("state", flat=True))


def pause(schedule: Schedule) -> Schedule:
    return pause_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def delete(schedule: Schedule) -> None:
    delete_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def edit(schedule: Schedule) -> Schedule:
    changes = {"description": str(uuid4())}
    return edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=1, actor=ACTOR)


@pytest.mark.parametrize("operation", [pause, delete, edit])
def test_rows_that_a_tick_is_writing_are_awaited_and_withdrawn(
    schedule: Schedule, elsewhere: Any, operation: Callable[[Schedule], Any]
) -> None:
    """The tick has written its rows and not committed. Who does not lock first would miss them."""
    with transaction.atomic():
        materialise(read_position(schedule))
        waiting = elsewhere(lambda: operation(schedule))
        wait_until(somebody_waits)
    waiting.result(10)
    assert states(schedule) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox")
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize("operation", [pause, delete, edit])
def test_a_tick_that_read_before_writes_nothing_after(
    schedule: Schedule, elsewhere: Any, operation: Callable[[Schedule], Any]
) -> None:
    """The tick has read its batch; the operation answers; only then does the tick write."""
    position = read_position(schedule)
    elsewhere(lambda: operation(schedule)).result(10)
    assert materialise(position).moved == frozenset()
    assert states(schedule) == []


def test_a_tick_that_waits_for_a_pause_moves_nothing(schedule: Schedule, elsewhere: Any) -> None:
    position = read_position(schedule)
    with transaction.atomic():
        pause(schedule)
        ticking = elsewhere(lambda: materialise(position))
        wait_until(somebody_waits)
    assert ticking.result(10).moved == frozenset()
    assert states(schedule) == []


def test_a_run_that_a_release_is_queueing_is_awaited_and_kept(schedule: Schedule, elsewhere: Any) -> None:
    materialise(read_position(schedule))
    first = Occurrence.objects.order_by("due_at")[0]
    with transaction.atomic():
        Occurrence.objects.filter(id=first.id).update(
            state="QUEUED", wait_reason=None, queued_at=database_time(), generation=1
        )
        editing = elsewhere(lambda: edit(schedule))
        wait_until(somebody_waits)
    edited = editing.result(10)
    assert list(Occurrence.objects.values_list("id", "state")) == [(first.id, "QUEUED")]
    assert edited.next_due_at > first.due_at


def test_of_two_edits_of_one_revision_one_is_stale(schedule: Schedule, elsewhere: Any) -> None:
    answers = _together(elsewhere, [lambda: edit(schedule)] * 2)
    assert sorted(type(answer).__name__ for answer in answers) == ["Schedule", "StaleRevision"]
    assert isinstance(next(a for a in answers if isinstance(a, Exception)), StaleRevision)
    schedule.refresh_from_db()
    assert schedule.revision == 2


def test_cancelling_and_queueing_leave_one_outcome(schedule: Schedule, elsewhere: Any) -> None:
    """The release locks slot and run; the cancel waits for both, and then cancels what is queued."""
    run_id = trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM overlap_slot FOR UPDATE")
            cursor.execute("SELECT FROM occurrence FOR UPDATE")
            cursor.execute(
                "UPDATE occurrence"
                " SET state = 'QUEUED', wait_reason = NULL, generation = 1, queued_at = now()"
            )
            cursor.execute("UPDATE overlap_slot SET run_id = %s, due_at = now()", [run_id])
        cancelling = elsewhere(lambda: cancel_run(schedule.tenant, run_id, actor=ACTOR))
        wait_until(somebody_waits)
    assert cancelling.result(10).state == "CANCELLED"
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id FROM overlap_slot")
        assert cursor.fetchone() == (None,)


def test_cancelling_what_an_edit_withdraws_finds_nothing(schedule: Schedule, elsewhere: Any) -> None:
    materialise(read_position(schedule))
    run = Occurrence.objects.order_by("due_at").last()
    assert run is not None
    with transaction.atomic():
        edit(schedule)
        cancelling = elsewhere(lambda: cancel_run(schedule.tenant, run.id, actor=ACTOR))
        wait_until(somebody_waits)
    with pytest.raises(NotFound):
        cancelling.result(10)


def test_triggers_of_one_request_are_one_run(schedule: Schedule, elsewhere: Any) -> None:
    key = uuid4()

    def ask() -> Any:
        return trigger_schedule(schedule.tenant, schedule.id, request_key=key, actor=ACTOR)

    answers = _together(elsewhere, [ask] * 6)
    assert len(set(answers)) == 1
    assert Occurrence.objects.count() == 1


def test_a_trigger_never_slips_past_a_deletion(schedule: Schedule, elsewhere: Any) -> None:
    def ask() -> Any:
        return trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=ACTOR)

    answers = _together(elsewhere, [ask, lambda: delete(schedule), ask, ask])
    refused = [answer for answer in answers if isinstance(answer, Conflict)]
    made = [answer for answer in answers if not isinstance(answer, Conflict) and answer is not None]
    assert len(refused) + len(made) == 3
    assert states(schedule) == ["CANCELLED"] * len(made)


def test_the_quota_holds_for_those_who_arrive_at_once(elsewhere: Any) -> None:
    tenant = factories.TenantFactory(max_schedules=3)
    factories.TargetFactory()

    def create(number: int) -> Callable[[], Schedule]:
        return lambda: create_schedule(tenant, factories.body(name=f"s{number}"), actor=ACTOR)

    answers = _together(elsewhere, [create(number) for number in range(8)])
    assert sum(isinstance(answer, Schedule) for answer in answers) == 3
    assert Schedule.objects.count() == 3


def test_ticks_and_people_together_lose_and_repeat_nothing(schedule: Schedule, elsewhere: Any) -> None:
    """Whatever the order, the checker of the ledger accounts for every instant of every revision."""
    stop = threading.Event()

    def ticking() -> None:
        while not stop.is_set():
            position = due.due_schedule(raw_connection(), schedule.id)
            if position is not None:
                materialise(position)

    tickers = [elsewhere(ticking) for _ in range(2)]
    tenant: Tenant = schedule.tenant
    for number in range(15):
        changes = {"description": str(number), "trigger": every(1 + number % 3)}
        edit_schedule(tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)
        pause(schedule)
        assert not Occurrence.objects.filter(state="PENDING", due_at__gt=database_time()).exists()
        resume_schedule(tenant, schedule.id, actor=ACTOR)
    wait_until(lambda: Occurrence.objects.filter(due_at__lte=database_time()).count() >= 3)
    stop.set()
    for ticker in tickers:
        ticker.result(10)
    report = verify(raw_connection().info.dsn)
    assert report.ok, report


def _together(elsewhere: Any, actions: list[Callable[[], Any]]) -> list[Any]:
    """Answers, errors included, of actions that start at the same moment."""
    barrier = threading.Barrier(len(actions))

    def begin(action: Callable[[], Any]) -> Any:
        barrier.wait()
        return action()

    futures = [elsewhere(lambda action=action: begin(action)) for action in actions]
    return [future.exception(20) or future.result() for future in futures]


@pytest.mark.parametrize("first", ["edit", "calendar"])
def test_a_calendar_replaced_while_a_schedule_begins_to_name_it_leaves_no_old_days(
    first: str, schedule: Schedule, elsewhere: Callable[..., Future[Any]]
) -> None:
    """The one would copy days that are going, the other would not see that there is somebody to follow."""
    tenant = schedule.tenant
    put_calendar(tenant, "rest", days=["2027-01-01"], actor=ACTOR)
    exclusions = {"exclusions": [{"calendar": "rest"}]}
    ways = {
        "edit": lambda: edit_schedule(tenant, schedule.id, exclusions, expected_revision=1, actor=ACTOR),
        "calendar": lambda: put_calendar(tenant, "rest", days=["2027-02-02"], actor=ACTOR),
    }
    (second,) = ways.keys() - {first}
    with transaction.atomic():
        ways[first]()
        waiting = elsewhere(ways[second])
        wait_until(somebody_waits)
    waiting.result(10)
    revision = schedule.revisions.order_by("-number").first()
    assert revision is not None
    assert revision.calendars == {"rest": ["2027-02-02"]}
