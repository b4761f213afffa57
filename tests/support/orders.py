"""Which orders of the actors' steps are played: all that differ, or those that Hypothesis draws.

All: a stateless search, depth first, that replays a prefix and then chooses otherwise. Of orders that
differ only in neighbours which touch nothing in common one is played (sleep sets: Godefroid, 1996). A failure
is told with its order, after that was brought down to as few changes of actor as still fail.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Protocol, TypeAlias

from hypothesis import strategies as st

from tests.support.footprints import Step
from tests.support.interleaving import Actor, Stage

TRIED: Counter[str] = Counter()  # orders by test: the summary of a run tells them

# Who can move, whoever moved last first, and what each would do; the answer is a place in the list.
Moves: TypeAlias = Mapping[str, Step]
Pick: TypeAlias = Callable[[Moves], int | None]


class Scene(Protocol):
    """`set_up` makes the same ledger each time; `check` raises where a promise is broken."""

    def set_up(self) -> Sequence[Actor]: ...
    def check(self, actors: Sequence[Actor]) -> None: ...


class WrongOrder(AssertionError):
    """A promise was broken. `choices`: what `replay` needs to see it again."""

    def __init__(self, problem: object, order: "_Order") -> None:
        self.choices = _without_last_zeros(order.choices)
        told = [str(problem), f"in this order, replay(stage, scene, {self.choices}):", *order.steps]
        super().__init__("\n".join(told))


def every_order(stage: Stage, scene: Scene, *, reduced: bool = True) -> int:
    """Play all orders that differ; how many there are. Not `reduced`: also those that differ in nothing."""
    search, complete = _Search(reduced=reduced), 0
    while search.goes_on:
        try:
            complete += _perform(stage, scene, search.pick)
        except WrongOrder as wrong:
            raise _simplest(stage, scene, wrong) from None
        search.turn_back()
    return complete


def drawn_order(stage: Stage, scene: Scene, data: st.DataObject) -> None:
    """Hypothesis chooses, and shrinks towards letting everybody finish what was begun."""
    _perform(stage, scene, lambda moves: data.draw(st.integers(0, len(moves) - 1)) if len(moves) > 1 else 0)


def replay(stage: Stage, scene: Scene, choices: Sequence[int]) -> None:
    """The order that a failure has named; what is no choice any more, or not chosen, is 0."""
    rest = iter(choices)
    _perform(stage, scene, lambda moves: min(next(rest, 0), len(moves) - 1) if len(moves) > 1 else 0)


@dataclass(kw_only=True)
class _Order:
    """As far as it has come. A choice is noted where there was one: 0, that whoever moved last goes on."""

    pick: Pick
    steps: list[str] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    last: str = ""

    def choose(self, movable: Sequence[Actor], waiting: Sequence[Actor]) -> Actor | None:
        ranked = sorted(movable, key=lambda actor: actor.name != self.last)
        # Whoever waits for a lock goes on with whatever frees it.
        behind = [actor.pending for actor in waiting if actor.pending is not None]
        moves = {one.name: reduce(or_, behind, one.pending) for one in ranked if one.pending is not None}
        place = self.pick(moves)
        if place is None:
            return None
        if len(ranked) > 1:
            self.choices.append(place)
        chosen = ranked[place]
        self.last = chosen.name
        self.steps.append(f"{chosen.name:>16}  {moves[chosen.name].label}")
        return chosen


def _perform(stage: Stage, scene: Scene, pick: Pick) -> bool:
    """False: `pick` broke the order off, and nothing was checked. Raises WrongOrder."""
    order, actors = _Order(pick=pick), scene.set_up()
    try:
        if not stage.play(actors, order.choose):
            return False
        errors = {actor.name: actor.error for actor in actors if actor.error is not None}
        assert not errors, errors
        scene.check(actors)
    except AssertionError as problem:
        raise WrongOrder(problem, order) from problem
    TRIED[os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]] += 1
    return True


@dataclass(kw_only=True)
class _Fork:
    """A place in the order. Those in `asleep` need not move here: all that would follow has been played."""

    moves: Moves
    asleep: dict[str, Step]
    chosen: str = ""

    def awake(self) -> list[str]:
        return [name for name in self.moves if name not in self.asleep]

    def asleep_after(self) -> dict[str, Step]:
        """Whoever has nothing to do with the step that was chosen sleeps on."""
        step = self.moves[self.chosen]
        return {name: other for name, other in self.asleep.items() if step.is_independent_of(other)}


class _Search:
    def __init__(self, *, reduced: bool) -> None:
        self._reduced = reduced
        self._forks: list[_Fork] = []
        self._depth = 0
        self.goes_on = True

    def pick(self, moves: Moves) -> int | None:
        if self._depth == len(self._forks):
            asleep = self._forks[-1].asleep_after() if self._forks and self._reduced else {}
            self._forks.append(_Fork(moves=moves, asleep=asleep))
        fork = self._forks[self._depth]
        assert list(fork.moves) == list(moves), f"no longer what it was: {list(fork.moves)}, {list(moves)}"
        if not fork.chosen:
            fork.chosen = next(iter(fork.awake()), "")
        self._depth += 1
        return list(moves).index(fork.chosen) if fork.chosen else None

    def turn_back(self) -> None:
        """To the last place where somebody else can move; what moved there so far is asleep from now on."""
        self._depth = 0
        while self._forks:
            fork = self._forks[-1]
            if fork.chosen:
                fork.asleep[fork.chosen] = fork.moves[fork.chosen]
            fork.chosen = next(iter(fork.awake()), "")
            if fork.chosen:
                return
            self._forks.pop()
        self.goes_on = False


def _simplest(stage: Stage, scene: Scene, wrong: WrongOrder) -> WrongOrder:
    """With choices left out, or made 0, as long as it stays wrong: larger pieces first."""
    simpler = True
    while simpler:
        simpler = False
        for choices in _simplifications(wrong.choices):
            try:
                replay(stage, scene, choices)
            except WrongOrder as found:
                if _cost(found.choices) < _cost(wrong.choices):
                    wrong, simpler = found, True
                    break
    return wrong


def _simplifications(choices: Sequence[int]) -> Iterator[list[int]]:
    size = len(choices)
    while size > 0:
        for begin in range(0, len(choices), size):
            before, piece, after = choices[:begin], choices[begin : begin + size], choices[begin + size :]
            yield [*before, *after]
            if any(piece):
                yield [*before, *(0 for _ in piece), *after]
        size //= 2


def _without_last_zeros(choices: Sequence[int]) -> list[int]:
    length = max((place for place, choice in enumerate(choices, start=1) if choice), default=0)
    return list(choices[:length])


def _cost(choices: Sequence[int]) -> tuple[int, int]:
    return sum(1 for choice in choices if choice), len(choices)
