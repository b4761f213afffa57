"""The explorer itself: it finds the order that goes wrong, tells it at its simplest, and leaves none out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
import pytest

from tests.support.footprints import Catalogue
from tests.support.interleaving import Actor, Stage, stop_at_statements
from tests.support.orders import WrongOrder, every_order, replay

pytestmark = pytest.mark.race

Connection: TypeAlias = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as opened:
        opened.execute("CREATE TABLE tally (id int PRIMARY KEY, number int)")
        yield opened


@pytest.fixture
def stage(connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stop_at_statements(monkeypatch, Catalogue(connection))
    with Stage.open(database) as opened:
        yield opened


@dataclass
class Tallies:
    """Two rows that are 0. What they are at the end is noted, and nothing is wrong."""

    connection: Connection
    actors: dict[str, Any]
    seen: set[tuple[int, ...]] = field(default_factory=set)

    def set_up(self) -> Sequence[Actor]:
        self.connection.execute("DELETE FROM tally; INSERT INTO tally VALUES (1, 0), (2, 0)")
        return [Actor(name=name, action=action) for name, action in self.actors.items()]

    def check(self, actors: Sequence[Actor]) -> None:
        rows = self.connection.execute("SELECT number FROM tally ORDER BY id").fetchall()
        self.seen.add(tuple(number for (number,) in rows))


class NothingIsLost(Tallies):
    def check(self, actors: Sequence[Actor]) -> None:
        self.seen.clear()
        super().check(actors)
        assert self.seen == {(len(actors), 0)}


def reads_then_writes(own: Connection) -> None:
    (number,) = own.execute("SELECT number FROM tally WHERE id = 1").fetchone() or (0,)
    own.execute("UPDATE tally SET number = %s WHERE id = 1", [number + 1])


def locks_first(own: Connection) -> None:
    with own.transaction():
        (number,) = own.execute("SELECT number FROM tally WHERE id = 1 FOR UPDATE").fetchone() or (0,)
        own.execute("UPDATE tally SET number = %s WHERE id = 1", [number + 1])


def adds_in_order(*ids: int) -> Any:
    def act(own: Connection) -> None:
        with own.transaction():
            for number in ids:
                own.execute("UPDATE tally SET number = number + 1 WHERE id = %s", [number])

    return act


def test_a_lost_update_is_found_and_told_at_its_simplest(stage: Stage, connection: Connection) -> None:
    scene = NothingIsLost(connection, {"ann": reads_then_writes, "bob": reads_then_writes})
    with pytest.raises(WrongOrder) as found:
        every_order(stage, scene)
    assert found.value.choices == [0, 1]  # Ann reads; Bob cuts in, and goes on to his end
    with pytest.raises(WrongOrder):
        replay(stage, scene, [0, 1])


def test_with_a_lock_nothing_is_lost_in_any_order(stage: Stage, connection: Connection) -> None:
    every_order(
        stage, NothingIsLost(connection, {"ann": locks_first, "bob": locks_first, "cid": locks_first})
    )


def test_who_waits_for_each_other_is_told(stage: Stage, connection: Connection) -> None:
    scene = Tallies(connection, {"ann": adds_in_order(1, 2), "bob": adds_in_order(2, 1)})
    with pytest.raises(WrongOrder, match="DeadlockDetected"):
        every_order(stage, scene)


def test_orders_that_are_left_out_lead_nowhere_else(stage: Stage, connection: Connection) -> None:
    actors = {"ann": reads_then_writes, "bob": adds_in_order(1), "cid": reads_then_writes}
    reduced, full = Tallies(connection, actors), Tallies(connection, actors)
    assert every_order(stage, reduced) < every_order(stage, full, reduced=False)
    assert reduced.seen == full.seen
    assert len(full.seen) > 1
