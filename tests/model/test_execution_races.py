"""Claim, completion, renewal, cancellation, sweep and release meet, statement by statement, in all orders.

Whatever the order: a run has one end and at most one accepted completion, fences rise, the slot is free
exactly when its run has ended, and whoever waits will be woken. That nobody is stranded is tried: from each
ledger that an order has left, the product alone brings every run to its end, although all sessions are lost
and all messages too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations, combinations_with_replacement
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.states import State
from scheduler.orm import raw_connection
from tests import factories
from tests.model.execution_actors import (
    cancels,
    claims_and_completes,
    claims_it,
    drains,
    fails,
    loses_session,
    redrives,
    releases,
    renews,
    renews_unknowing,
    retries,
    says_again,
    says_failed,
    succeeds,
    sweeps,
    takes_over,
)
from tests.model.execution_world import Act, World, build
from tests.support.footprints import Catalogue
from tests.support.interleaving import Stage, stop_at_statements
from tests.support.ledger import HandMadeLedger
from tests.support.orders import drawn_order, every_order
from tests.support.snapshot import Snapshot

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def database_url(transactional_db: None) -> Iterator[str]:
    yield raw_connection().info.dsn
    factories.empty_ledger()


@pytest.fixture
def stage(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with psycopg.connect(database_url) as connection:
        stop_at_statements(monkeypatch, Catalogue(connection, single={"schedule", "overlap_slot"}))
    with Stage.open(database_url) as opened:
        yield opened


@pytest.fixture
def world(database_url: str) -> Iterator[Callable[..., World]]:
    """`world("RUNNING", parked=False)` and so on: each is a snapshot of its own."""
    with ExitStack() as opened:
        nothing = Snapshot(opened.enter_context(psycopg.connect(database_url, autocommit=True)))

        def make(state: str, **options: Any) -> World:
            nothing.restore()
            ledger = HandMadeLedger.on(database_url)
            opened.enter_context(ledger.connection)
            return build(ledger, State(state), **options)

        yield make


def every_order_of(stage: Stage, world: World, *casts: Sequence[Act]) -> None:
    for world.acts in casts:
        every_order(stage, world)


HOLDERS = [succeeds, fails, retries, drains]


def test_a_held_run_ends_once(stage: Stage, world: Any) -> None:
    acts = [succeeds, retries, drains, cancels, sweeps, loses_session, renews_unknowing]
    every_order_of(stage, world("RUNNING"), *combinations(acts, 2), (succeeds, succeeds), (succeeds, fails))


def test_a_held_run_without_a_slot_ends_once(stage: Stage, world: Any) -> None:
    """Here nothing but the run's own lock stands between them."""
    casts = [*combinations([succeeds, retries, drains, cancels], 2), (retries, sweeps)]
    every_order_of(stage, world("RUNNING", overlap="allow", parked=False), *casts)


def test_three_about_a_held_run(stage: Stage, world: Any) -> None:
    every_order_of(
        stage,
        world("RUNNING"),
        (succeeds, succeeds, fails),
        (succeeds, fails, loses_session),
        (succeeds, loses_session, sweeps),
    )


def test_who_was_taken_for_dead_can_write_nothing(stage: Stage, world: Any) -> None:
    every_order_of(stage, world("RUNNING"), (takes_over, succeeds))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_who_was_taken_for_dead_can_write_nothing_of_any_kind(stage: Stage, world: Any) -> None:
    lates = [fails, retries, drains, renews, renews_unknowing]
    every_order_of(stage, world("RUNNING"), *((takes_over, late) for late in lates))


def test_a_queued_run_has_one_holder(stage: Stage, world: Any) -> None:
    acts = [claims_it, claims_and_completes, cancels, sweeps, releases]
    every_order_of(stage, world("QUEUED"), *combinations(acts, 2), (claims_it, claims_it), (cancels, cancels))


def test_a_claim_that_finds_no_attempts_left_gives_the_slot_on(stage: Stage, world: Any) -> None:
    spent = {"max_attempts": 1, "attempts": 1}
    every_order_of(stage, world("QUEUED", **spent), (claims_it, claims_it), (claims_it, cancels))
    every_order_of(stage, world("QUEUED", **spent, parked=False), (claims_it, releases))


def test_a_queued_run_without_a_slot_has_one_holder(stage: Stage, world: Any) -> None:
    casts = [(claims_it, claims_it), (claims_it, cancels), (claims_and_completes, cancels), (cancels, sweeps)]
    every_order_of(stage, world("QUEUED", overlap="allow", parked=False), *casts)


def test_whoever_comes_while_the_slot_is_freed_is_not_stranded(stage: Stage, world: Any) -> None:
    """The second run's release finds the slot taken, free, or locked."""
    every_order_of(
        stage, world("QUEUED", parked=False), (cancels, releases), (claims_and_completes, releases)
    )
    ends = [succeeds, fails, cancels, sweeps]
    every_order_of(stage, world("RUNNING", parked=False), *((one, releases) for one in ends))


def test_a_waiting_run_is_released_or_cancelled(stage: Stage, world: Any) -> None:
    casts = [(cancels, releases), (cancels, sweeps), (releases, releases)]
    every_order_of(stage, world("PENDING", parked=False), *casts)


def test_a_failed_run_is_redriven_once(stage: Stage, world: Any) -> None:
    casts = [(redrives, redrives), (redrives, cancels), (redrives, releases), (redrives, claims_it)]
    every_order_of(stage, world("DEAD_LETTERED", parked=False), *casts)


def test_a_redriven_run_waits_for_its_slot_whatever_its_schedules_policy(stage: Stage, world: Any) -> None:
    for policy in ("skip", "buffer_one"):
        due_behind = world("DEAD_LETTERED", overlap=policy, parked=False)
        every_order_of(stage, due_behind, (redrives, releases))


def test_a_run_that_fails_for_good_is_redriven_after_that_or_not_at_all(stage: Stage, world: Any) -> None:
    last = world("RUNNING", max_attempts=1)
    every_order_of(stage, last, (redrives, fails), (redrives, sweeps), (redrives, succeeds))


def test_an_unsafe_effect_is_settled_once(stage: Stage, world: Any) -> None:
    """The sweep finds it past its time; its holder, a person, or two of them say how it ended."""
    held = world("RUNNING", side_effects="unsafe_external")
    every_order_of(stage, held, (succeeds, sweeps), (cancels, sweeps), (says_failed, sweeps))
    unknown = world("UNKNOWN", side_effects="unsafe_external")
    casts = [
        (says_failed, says_again),
        (says_again, releases),
        (says_again, cancels),
        (says_failed, succeeds),
    ]
    every_order_of(stage, unknown, *casts)


# Crowds -----------------------------------------------------------------------------------------------

EVERYBODY = [
    *HOLDERS,
    cancels,
    claims_it,
    claims_and_completes,
    redrives,
    releases,
    renews,
    renews_unknowing,
    loses_session,
    sweeps,
]
CROWDS = settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


@pytest.fixture
def worlds(world: Any) -> list[World]:
    return [
        world("RUNNING"),
        world("RUNNING", overlap="allow", parked=False),
        world("RUNNING", max_attempts=1),
        world("QUEUED"),
        world("PENDING", parked=False),
        world("DEAD_LETTERED", parked=False),
        world("DEAD_LETTERED", overlap="buffer_one", parked=False),
    ]


def play_a_crowd(stage: Stage, worlds: Sequence[World], data: st.DataObject) -> None:
    """Three to five at once. Only one round of the sweep may put orphans back within a second."""
    chosen = data.draw(st.sampled_from(worlds))
    possible = [act for act in EVERYBODY if chosen.held or act not in HOLDERS]
    once = {sweeps, loses_session}
    crowd = st.lists(st.sampled_from(possible), min_size=3, max_size=5)
    chosen.acts = data.draw(crowd.filter(lambda acts: all(acts.count(one) < 2 for one in once)))
    drawn_order(stage, chosen, data)


@settings(CROWDS, max_examples=60)
@given(data=st.data())
def test_a_crowd_in_any_order(stage: Stage, worlds: list[World], data: st.DataObject) -> None:
    play_a_crowd(stage, worlds, data)


@pytest.mark.soak
@settings(CROWDS, max_examples=5000)
@given(data=st.data())
def test_many_crowds(stage: Stage, worlds: list[World], data: st.DataObject) -> None:
    play_a_crowd(stage, worlds, data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_about_a_redriven_run(stage: Stage, world: Any) -> None:
    """Several thousand orders of each cast."""
    for policy in ("skip", "buffer_one"):
        due_behind = world("DEAD_LETTERED", overlap=policy, parked=False)
        every_order_of(
            stage, due_behind, *((redrives, releases, one) for one in (releases, cancels, claims_it))
        )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_of_everybody_in_all_orders(stage: Stage, world: Any) -> None:
    acts = [*HOLDERS, cancels, sweeps, loses_session, renews_unknowing]
    every_order_of(stage, world("RUNNING"), *combinations(acts, 3))
    acts = [claims_it, claims_and_completes, cancels, sweeps]
    every_order_of(stage, world("QUEUED"), *combinations_with_replacement(acts, 3))
