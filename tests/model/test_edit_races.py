"""People against ticks, statement by statement: in whatever order, the ledger's checker finds nothing.

Hypothesis chooses who does what and who moves next, and shrinks an order that goes wrong to the shortest one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler.errors import Conflict
from scheduler.models import Occurrence, Schedule
from scheduler.operations import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from scheduler.orm import database_time, raw_connection
from scheduler.processes import tick as tick_module
from scheduler.processes.ownership import Ownership
from scheduler.processes.tick import Tick
from scheduler.testing.verify import verify
from tests import factories
from tests.factories import ACTOR, every
from tests.support.interleaving import Actor, Stage, step, stop_at_statements

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _stepping(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stop_at_statements(monkeypatch)
    monkeypatch.setattr(tick_module, "fault_point", lambda name: step())  # before a tick's commit, too
    yield
    factories.empty_ledger()


@pytest.fixture
def watcher() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(raw_connection().info.dsn, autocommit=True) as watching:
        yield watching


def edit(schedule: Schedule) -> None:
    changes = {"description": str(uuid4()), "trigger": every(2)}
    edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


def pause(schedule: Schedule) -> None:
    pause_schedule(schedule.tenant, schedule.id, actor=ACTOR)
    answered_at = database_time()
    later = Occurrence.objects.filter(schedule=schedule, origin="schedule", due_at__gt=answered_at)
    schedule.refresh_from_db()
    if schedule.state == "paused":
        assert not later.exists(), "a run is due after a pause that has answered"


def resume(schedule: Schedule) -> None:
    resume_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def resume_and_catch_up(schedule: Schedule) -> None:
    resume_schedule(schedule.tenant, schedule.id, resume="catch_up", actor=ACTOR)


def delete(schedule: Schedule) -> None:
    delete_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def trigger(schedule: Schedule) -> None:
    trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=ACTOR)


PEOPLE = [edit, pause, resume, resume_and_catch_up, delete, trigger]


def person(schedule: Schedule, deeds: Sequence[Callable[[Schedule], None]]) -> Actor:
    """Does one thing after another; what is refused is refused."""

    def act() -> None:
        try:
            for deed in deeds:
                with suppress(Conflict):
                    deed(schedule)
        finally:
            connection.close()

    return Actor(name="+".join(deed.__name__ for deed in deeds), action=act)


def ticking(dsn: str, number: int) -> Actor:
    def act() -> None:
        everything = Ownership("tick", shard_count=256, wanted=range(256), lease_s=6, ignore=True)
        with psycopg.connect(dsn, autocommit=True) as own:
            Tick(everything, look_ahead_s=3, batch=10).run_once(own, database_time_of(own))

    return Actor(name=f"tick {number}", action=act)


def database_time_of(own: psycopg.Connection[Any]) -> Any:
    (now,) = own.execute("SELECT clock_timestamp()").fetchone() or (None,)
    return now


def afresh() -> Schedule:
    """A schedule of every second that is some seconds behind, with a look-ahead that is partly there."""
    factories.empty_ledger()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE schedule, schedule_revision, schedule_pause, tenant CASCADE")
    return factories.schedule(factories.TenantFactory(), trigger=every(1))


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.target],  # an order is replayed by its seed, not shrunk:
    suppress_health_check=list(HealthCheck),  # the clock goes on meanwhile
)
@given(data=st.data())
def test_whatever_the_order_every_instant_has_one_revision(
    watcher: psycopg.Connection[Any], data: st.DataObject
) -> None:
    schedule, dsn = afresh(), raw_connection().info.dsn
    deeds = st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=2)
    people = [person(schedule, data.draw(deeds)) for _ in range(2)]
    actors = [*people, ticking(dsn, 1), ticking(dsn, 2)]
    order: list[str] = []

    def choose(movable: Sequence[Actor]) -> Actor:
        chosen = movable[data.draw(st.integers(0, len(movable) - 1))]
        order.append(chosen.name)
        return chosen

    Stage(watcher, actors).play(choose)
    assert [actor.error for actor in actors] == [None] * 4, order
    report = verify(dsn)
    assert report.ok, (report.violations, order)
