"""People against ticks, statement by statement: in whatever order, the ledger's checker finds nothing.

The clock goes on whenever somebody looks at it, and only then, so that an order replays to the same ledger.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations_with_replacement
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import orm
from scheduler.errors import Conflict
from scheduler.models import Schedule
from scheduler.operations import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from scheduler.orm import raw_connection
from scheduler.processes.tick import Tick
from scheduler.testing.verify import verify
from tenants.models import AuditEntry
from tests import factories
from tests.core.cases import instant
from tests.factories import ACTOR, every
from tests.support.footprints import Catalogue, Step
from tests.support.interleaving import Actor, Stage, stop_at_statements, stop_before
from tests.support.orders import drawn_order, every_order
from tests.support.snapshot import Snapshot
from tests.support.timetravel import Everything

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]

Connection: TypeAlias = psycopg.Connection[Any]
Deed: TypeAlias = Callable[[Schedule], None]

BEGIN = instant("2026-01-05T09:00:00Z")
EVERY_S = 1
LOOK_AHEAD_S = 3
CLOCK = frozenset({"the clock"})
LOOK = Step(label="looks at the clock", reads=CLOCK, shows=CLOCK)


class Clock:
    """Each look at it is 0.7 s after the one before, so that instants fall due between any two."""

    def __init__(self) -> None:
        self.now = BEGIN

    def look(self) -> datetime:
        stop_before(LOOK)
        self.now += timedelta(seconds=0.7)
        return self.now


def edit(schedule: Schedule) -> None:
    changes = {"trigger": every(2)}
    edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


def pause(schedule: Schedule) -> None:
    pause_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def resume(schedule: Schedule) -> None:
    resume_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def resume_and_catch_up(schedule: Schedule) -> None:
    resume_schedule(schedule.tenant, schedule.id, resume="catch_up", actor=ACTOR)


def delete(schedule: Schedule) -> None:
    delete_schedule(schedule.tenant, schedule.id, actor=ACTOR)


def trigger(schedule: Schedule) -> None:
    trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=ACTOR)


PEOPLE = [edit, pause, resume, resume_and_catch_up, delete, trigger]


# Two ledgers that agree in this need no second look.
WHAT_COUNTS = """
SELECT jsonb_build_array(
    (SELECT jsonb_agg(jsonb_build_array(s.state, s.revision, s.next_due_at, s.last_due_at)) FROM schedule s),
    (SELECT jsonb_agg(jsonb_build_array(r.number, r.effective_from, r.ended_at, r.trigger) ORDER BY r.number)
     FROM schedule_revision r),
    (SELECT jsonb_agg(jsonb_build_array(p.began_at, p.ended_at, p.resumed_from) ORDER BY p.began_at)
     FROM schedule_pause p),
    (SELECT jsonb_agg(jsonb_build_array(o.due_at, o.revision, o.origin, o.state, o.finished_at, o.coalesced)
                      ORDER BY o.due_at, o.revision, o.origin)
     FROM occurrence o),
    (SELECT jsonb_agg(jsonb_build_array(b.due_at, b.generation) ORDER BY b.due_at, b.generation)
     FROM outbox b)
)::text
"""


@dataclass(kw_only=True)
class Played:
    """Each of `people` does one deed after the other, and each of the ticks goes one round."""

    ticks: int
    clock: Clock
    schedule: Schedule
    snapshot: Snapshot
    begins_at: datetime
    begins_paused_at: datetime | None
    audited: int
    people: Sequence[Sequence[Deed]] = ()
    paused_at: datetime | None = None
    known: set[str] = field(default_factory=set)

    def set_up(self) -> Sequence[Actor]:
        self.snapshot.restore()
        self.clock.now, self.paused_at = self.begins_at, self.begins_paused_at
        people = [self._person(number, deeds) for number, deeds in enumerate(self.people)]
        return [*people, *(self._tick(number) for number in range(self.ticks))]

    def _person(self, number: int, deeds: Sequence[Deed]) -> Actor:
        """What is refused is refused; the answer is how many deeds were not."""

        def act(own: Connection) -> int:
            done = 0
            for deed in deeds:
                with suppress(Conflict):
                    deed(self.schedule)
                    done += 1
                if deed is pause:
                    self.paused_at = self.clock.now
            return done

        return Actor(name=f"{number} {'+'.join(deed.__name__ for deed in deeds)}", action=act)

    def _tick(self, number: int) -> Actor:
        tick = make_tick()
        return Actor(name=f"tick {number}", action=lambda own: tick.run_once(own, self.clock.look()))

    def check(self, actors: Sequence[Actor]) -> None:
        """One revision an instant, none lost, none twice; one audit entry for each deed that was done."""
        connection = self.snapshot.connection
        (audited,) = connection.execute("SELECT count(*) FROM audit_entry").fetchone() or (0,)
        assert audited - self.audited <= sum(
            actor.answer for actor in actors if not actor.name.startswith("tick")
        )
        (ledger,) = connection.execute(WHAT_COUNTS).fetchone() or ("",)
        if ledger not in self.known:
            report = verify(connection.info.dsn)
            assert report.ok, report.violations
            self._check_pause(connection)
            self.known.add(ledger)

    def _check_pause(self, connection: Connection) -> None:
        """None of a schedule that is left paused is due after the pause has answered."""
        later = (
            "SELECT count(*) FROM occurrence o JOIN schedule s ON s.id = o.schedule_id"
            " WHERE s.state = 'paused' AND o.origin = 'schedule' AND o.due_at > %s"
        )
        (count,) = connection.execute(later, [self.paused_at]).fetchone() or (0,)
        assert not count, "runs are due after a pause that has answered"


def make_tick() -> Tick:
    everything = Everything("tick", shard_count=256, wanted=range(256), lease_s=6, ignore=True)
    return Tick(everything, look_ahead_s=LOOK_AHEAD_S, batch=10)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(orm, "database_now", lambda connection: made.look())
    return made


@pytest.fixture
def database_url(transactional_db: None) -> Iterator[str]:
    yield raw_connection().info.dsn
    factories.empty_ledger()


@pytest.fixture
def stage(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with psycopg.connect(database_url) as connection:
        stop_at_statements(monkeypatch, Catalogue(connection, single={"schedule"}))
    with Stage.open(database_url) as opened:
        yield opened


@pytest.fixture
def scene(database_url: str, clock: Clock) -> Iterator[Callable[..., Played]]:
    """`scene(ticks=2, paused=True)`: some instants ahead have rows, and some that are due have none yet."""
    schedule = factories.schedule(factories.TenantFactory(), trigger=every(EVERY_S))
    with ExitStack() as opened:

        def make(*, ticks: int = 1, paused: bool = False, behind_s: int = 5) -> Played:
            connection = opened.enter_context(psycopg.connect(database_url, autocommit=True))
            make_tick().run_once(connection, clock.look())
            if paused:
                pause(schedule)
            paused_at = clock.now if paused else None
            clock.now += timedelta(seconds=behind_s)
            return Played(
                ticks=ticks,
                clock=clock,
                schedule=schedule,
                snapshot=Snapshot(connection),
                begins_at=clock.now,
                begins_paused_at=paused_at,
                audited=AuditEntry.objects.count(),
            )

        yield make


@pytest.fixture
def scenes(scene: Callable[..., Played]) -> list[Played]:
    return [scene(ticks=2), scene(ticks=2, paused=True)]


def every_order_of(stage: Stage, played: Played, *casts: Sequence[Sequence[Deed]]) -> None:
    """Each cast is that of a play: for each person, what that person does."""
    for played.people in casts:
        every_order(stage, played)


def test_one_deed_and_a_tick(stage: Stage, scene: Any) -> None:
    every_order_of(stage, scene(), *([[deed]] for deed in PEOPLE))


def test_one_deed_with_nothing_left_to_settle_and_a_tick(stage: Stage, scene: Any) -> None:
    """Nothing is due without a row, so that the deed's own lock is all that keeps the tick away."""
    every_order_of(stage, scene(behind_s=1), *([[deed]] for deed in PEOPLE))


def test_one_deed_at_a_paused_schedule_and_a_tick(stage: Stage, scene: Any) -> None:
    every_order_of(stage, scene(paused=True), *([[deed]] for deed in PEOPLE))


def test_one_deed_after_the_other_and_a_tick(stage: Stage, scene: Any) -> None:
    """Not every pair: what is active is not resumed, and what is deleted refuses everything."""
    after_edit = [[edit, deed] for deed in (edit, pause, delete, trigger)]
    after_pause = [[pause, deed] for deed in PEOPLE]
    pairs = [*after_edit, *after_pause, [trigger, edit], [delete, edit]]
    every_order_of(stage, scene(), *([pair] for pair in pairs))


PLAYS = settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


def play_people(stage: Stage, played: Played, data: st.DataObject) -> None:
    played.people = [data.draw(st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=2)) for _ in range(2)]
    drawn_order(stage, played, data)


@settings(PLAYS, max_examples=40)
@given(data=st.data())
def test_two_people_and_two_ticks_in_any_order(
    stage: Stage, scenes: list[Played], data: st.DataObject
) -> None:
    play_people(stage, data.draw(st.sampled_from(scenes)), data)


@pytest.mark.soak
@settings(PLAYS, max_examples=3000)
@given(data=st.data())
def test_two_people_and_two_ticks_in_many_orders(
    stage: Stage, scenes: list[Played], data: st.DataObject
) -> None:
    play_people(stage, data.draw(st.sampled_from(scenes)), data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_people_and_a_tick_in_all_orders(stage: Stage, scene: Any) -> None:
    pairs = combinations_with_replacement(PEOPLE, 2)
    every_order_of(stage, scene(), *([[one], [other]] for one, other in pairs))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_one_deed_and_two_ticks_in_all_orders(stage: Stage, scene: Any) -> None:
    every_order_of(stage, scene(ticks=2), *([[deed]] for deed in PEOPLE))
