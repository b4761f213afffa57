"""Claim, completion, renewal, cancellation, sweep and release meet, statement by statement, in all orders.

Whatever the order: a run has one end and at most one accepted completion, fences rise, the slot is free
exactly when its run has ended, and whoever waits will be woken. That nobody is stranded is tried: from each
ledger that an order has left, the product alone brings every run to its end, although all sessions are lost
and all messages too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from scheduler.clock import database_now
from scheduler.core.states import HOLDS_SLOT, AttemptOutcome, State
from scheduler.errors import Conflict
from scheduler.operations import cancel_run, reconcile_run, redrive_run
from scheduler.orm import raw_connection
from scheduler.processes.relay import Relay
from scheduler.processes.sweep import Sweep
from scheduler.store import sessions
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.store.sessions import Load
from scheduler.testing.verify import verify
from scheduler.worker.flusher import ClaimAnswer, ClaimWish, EndWish, Flusher, Wish
from tenants.models import Tenant
from tests import factories
from tests.factories import ACTOR
from tests.processes.test_rounds import Notebook
from tests.support.footprints import Catalogue
from tests.support.interleaving import Actor, Stage, stop_at_statements
from tests.support.ledger import TENANT, HandMadeLedger
from tests.support.orders import drawn_order, every_order
from tests.support.snapshot import Snapshot
from tests.support.timetravel import Everything

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]

Connection: TypeAlias = psycopg.Connection[Any]

# Two ledgers that agree in this need no second look.
WHAT_COUNTS = """
SELECT jsonb_build_array(
    (SELECT jsonb_agg(jsonb_build_array(
        o.due_at, o.state, o.wait_reason, o.generation, o.attempt_count, o.attempts_forgiven,
        o.late_writes_refused, o.cancel_requested_at IS NULL, o.finished_at IS NULL,
        o.dispatch_at <= clock_timestamp(),
        o.fence IS NOT DISTINCT FROM (SELECT max(a.fence) FROM attempt a WHERE a.run_id = o.id)
     ) ORDER BY o.due_at) FROM occurrence o),
    (SELECT jsonb_agg(jsonb_build_array(
        a.number, a.outcome, (SELECT count(*) FROM attempt b WHERE b.fence < a.fence)
     ) ORDER BY a.number, a.fence) FROM attempt a),
    (SELECT jsonb_agg(jsonb_build_array(l.due_at, (SELECT count(*) FROM attempt b WHERE b.fence < l.fence)))
     FROM lease l),
    (SELECT jsonb_agg(t.due_at) FROM overlap_slot t),
    (SELECT jsonb_agg(jsonb_build_array(b.due_at, b.generation, b.dispatch_at <= clock_timestamp())
                      ORDER BY b.due_at, b.generation) FROM outbox b)
)::text
"""

MISPLACED_SLOTS = """
SELECT o.id, o.state, 'is active without its slot'
FROM occurrence o JOIN overlap_slot t USING (schedule_id)
WHERE o.state IN ('QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED', 'UNKNOWN')
  AND t.run_id IS DISTINCT FROM o.id
UNION ALL
SELECT o.id, o.state, 'has ended with its slot' FROM occurrence o JOIN overlap_slot t ON t.run_id = o.id
WHERE o.state NOT IN ('QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED', 'UNKNOWN')
  AND NOT (o.state = 'PENDING' AND o.attempts_forgiven > 0)  -- to be tried again: it is not over
UNION ALL
SELECT o.id, o.state, 'waits at a free slot, and was not woken'
FROM overlap_slot t CROSS JOIN LATERAL (
    SELECT * FROM occurrence o
    WHERE o.schedule_id = t.schedule_id AND o.wait_reason = 'overlap' ORDER BY o.due_at LIMIT 1) AS o
WHERE t.run_id IS NULL
  AND NOT EXISTS (SELECT FROM outbox b WHERE b.run_id = o.id AND b.dispatch_at <= clock_timestamp())
"""


SKIPPED_THOUGH_REDRIVEN = """
SELECT count(*) FROM occurrence WHERE state = 'SKIPPED' AND counts_from IS NOT NULL
"""


class Hands(Flusher):
    """The worker's group commit on its caller's connection, in its caller's thread. It repairs nothing: an
    error is the actor's, a deadlock too."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(lambda name: connection)

    def write(self, wish: Wish) -> None:
        self._flush([wish])

    def _recover(self, error: psycopg.Error) -> None:
        raise error

    def _set_aside(self, wish: Wish, error: psycopg.Error) -> None:
        raise error


@dataclass(frozen=True, kw_only=True)
class Completion:
    ending: Ending
    accepted: bool


@dataclass(frozen=True)
class Cancelling:
    """The state in which the answer saw the run; None: it was refused."""

    state: str | None


Act: TypeAlias = Callable[["World"], Actor]


@dataclass(kw_only=True)
class World:
    """One schedule and two runs: the one that is fought over, and one that comes behind it.

    With `held` the first is RUNNING in the session `holder`; `other` is another worker's.
    """

    snapshot: Snapshot
    run: Claim
    holder: UUID
    other: UUID
    tenant: Tenant
    sweep: Sweep
    relay: Relay
    broker: Notebook
    held: Claimed | None
    acts: Sequence[Act] = ()  # who plays
    known: set[str] = field(default_factory=set)

    def set_up(self) -> Sequence[Actor]:
        self.snapshot.restore()
        self.broker.given.clear()
        self.relay = make_relay(self.broker)  # it remembers releases of which it has not heard
        actors = [act(self) for act in self.acts]
        for number, actor in enumerate(actors):
            actor.name = f"{number} {actor.name}"
        return actors

    def check(self, actors: Sequence[Actor]) -> None:
        connection = self.snapshot.connection
        self._check_answers(connection, [actor.answer for actor in actors])
        (ledger,) = connection.execute(WHAT_COUNTS).fetchone() or ("",)
        if ledger not in self.known:
            self._check_ledger(connection)
            self._bring_home(connection)
            self._check_ledger(connection)
            self.known.add(ledger)

    def _check_answers(self, connection: Connection, answers: Sequence[Any]) -> None:
        """What somebody was told is on record and stays so."""
        run = "SELECT state, fence FROM occurrence WHERE due_at = %s AND id = %s"
        state, _ = connection.execute(run, [self.run.due_at, self.run.run_id]).fetchone() or ("", 0)
        outcomes = dict(connection.execute("SELECT fence, outcome FROM attempt").fetchall())
        accepted = [one.ending for one in answers if isinstance(one, Completion) and one.accepted]
        assert all(outcomes[one.fence] in (one.outcome, "cancelled") for one in accepted), (
            accepted,
            outcomes,
        )
        assert len({(one.fence, one.outcome) for one in accepted}) == len({one.fence for one in accepted})
        if any(one.state is State.SUCCEEDED for one in accepted):
            assert state == "SUCCEEDED"
        for answer in answers:
            if isinstance(answer, Cancelling):
                asked = {"RUNNING", "CANCELLED", "SUCCEEDED", "UNKNOWN"}
                ends = {"CANCELLED": {"CANCELLED"}, "RUNNING": asked}
                assert answer.state is None or state in ends[answer.state], (answer, state)
        won = [answer.fence for answer in answers if isinstance(answer, Claimed)]
        assert len(won) == len(set(won) & set(outcomes)), (won, outcomes)

    def _check_ledger(self, connection: Connection) -> None:
        (forgotten,) = connection.execute(SKIPPED_THOUGH_REDRIVEN).fetchone() or (0,)
        assert not forgotten
        misplaced = connection.execute(MISPLACED_SLOTS).fetchall()
        assert not misplaced, misplaced
        report = verify(connection.info.dsn)
        assert report.ok, report.violations

    def _bring_home(self, connection: Connection) -> None:
        """All workers are gone and all messages lost: sweep, relay and one new worker end every run, and a
        person what nobody knows the outcome of.
        """
        expire_sessions(connection)
        session_id = open_session(connection)
        sweep = make_sweep(dispatch_grace_s=0)
        for _ in range(12):
            connection.execute("UPDATE sweep_turn SET taken_at = '-infinity'")
            self.broker.given.clear()
            sweep.run_once(connection, database_now(connection))
            self.relay.run_once(connection, database_now(connection))
            for envelope in self.broker.given:
                message = Claim(run_id=envelope.run_id, due_at=envelope.due_at, claim_id=uuid4())
                held = claim(connection, message, session_id)
                if isinstance(held, Claimed):
                    end(connection, ending(held, State.SUCCEEDED, AttemptOutcome.SUCCEEDED))
            for (unknown,) in connection.execute(
                "SELECT id FROM occurrence WHERE state = 'UNKNOWN'"
            ).fetchall():
                reconcile_run(self.tenant, unknown, "failed", actor=ACTOR)
            left = connection.execute("SELECT id, state FROM occurrence WHERE finished_at IS NULL").fetchall()
            if not left:
                return
        raise AssertionError(f"nobody brings these to an end: {left}")


def expire_sessions(connection: Connection) -> None:
    """Time passes: longer than a session, and than the breaker looks back."""
    connection.execute("UPDATE session SET expires_at = clock_timestamp() - interval '5 minutes'")


def open_session(connection: Connection) -> UUID:
    session_id = uuid4()
    sessions.open_session(connection, session_id, kind="worker", worker="host:1", capacity=8, length_s=3600)
    return session_id


def make_sweep(*, dispatch_grace_s: float) -> Sweep:
    return Sweep(session_s=3600, dispatch_grace_s=dispatch_grace_s, rate_per_s=200, breaker_at=0.85)


def claim(connection: Connection, wish: Claim, session_id: UUID) -> ClaimAnswer:
    answers: list[ClaimAnswer] = []
    Hands(connection).write(ClaimWish(claim=wish, session_id=session_id, answer=answers.append))
    return answers[0]


def end(connection: Connection, one: Ending) -> Completion:
    answers: list[bool] = []
    Hands(connection).write(EndWish(ending=one, answer=answers.append))
    return Completion(ending=one, accepted=answers[0])


def ending(held: Claimed, state: State, outcome: AttemptOutcome) -> Ending:
    return Ending(
        run_id=held.run_id,
        due_at=held.due_at,
        fence=held.fence,
        schedule_id=held.schedule_id,
        slotted=held.slotted,
        state=state,
        outcome=outcome,
        delay_s=0.0 if state is State.RETRY_WAIT else None,
    )


# Who acts ---------------------------------------------------------------------------------------------


def claims_it(world: World) -> Actor:
    """A message is delivered: it may be one of several for the same run."""
    wish = Claim(run_id=world.run.run_id, due_at=world.run.due_at, claim_id=uuid4())
    return Actor(name="claim", action=lambda own: claim(own, wish, world.other))


def claims_and_completes(world: World) -> Actor:
    wish = Claim(run_id=world.run.run_id, due_at=world.run.due_at, claim_id=uuid4())

    def act(own: Connection) -> Completion | ClaimAnswer:
        held = claim(own, wish, world.other)
        if not isinstance(held, Claimed):
            return held
        return end(own, ending(held, State.SUCCEEDED, AttemptOutcome.SUCCEEDED))

    return Actor(name="claim+complete", action=act)


def _ends(name: str, state: State, outcome: AttemptOutcome) -> Act:
    def act(world: World) -> Actor:
        assert world.held is not None
        one = ending(world.held, state, outcome)
        return Actor(name=name, action=lambda own: end(own, one))

    act.__name__ = name
    return act


succeeds = _ends("succeed", State.SUCCEEDED, AttemptOutcome.SUCCEEDED)
fails = _ends("fail", State.DEAD_LETTERED, AttemptOutcome.FAILED)
retries = _ends("retry", State.RETRY_WAIT, AttemptOutcome.FAILED)
drains = _ends("drain", State.QUEUED, AttemptOutcome.SUPERSEDED)


def cancels(world: World) -> Actor:
    def act(own: Connection) -> Cancelling:
        try:
            return Cancelling(cancel_run(world.tenant, world.run.run_id, actor=ACTOR).state)
        except Conflict:
            return Cancelling(None)

    return Actor(name="cancel", action=act)


def redrives(world: World) -> Actor:
    def act(own: Connection) -> None:
        with suppress(Conflict):
            redrive_run(world.tenant, world.run.run_id, actor=ACTOR)

    return Actor(name="redrive", action=act)


def _says(outcome: str) -> Act:
    def act(world: World) -> Actor:
        def says(own: Connection) -> None:
            with suppress(Conflict):
                reconcile_run(world.tenant, world.run.run_id, outcome, actor=ACTOR)

        return Actor(name=f"reconcile: {outcome}", action=says)

    return act


says_failed, says_again = _says("failed"), _says("retry")


def takes_over(world: World) -> Actor:
    """The holder's session ends, its run goes back on the agenda, and another worker claims it."""

    def act(own: Connection) -> ClaimAnswer:
        expire_sessions(own)
        world.sweep.run_once(own, database_now(own))
        world.relay.run_once(own, database_now(own))
        wish = Claim(run_id=world.run.run_id, due_at=world.run.due_at, claim_id=uuid4())
        return claim(own, wish, open_session(own))

    return Actor(name="take over", action=act)


def sweeps(world: World) -> Actor:
    return Actor(name="sweep", action=lambda own: world.sweep.run_once(own, database_now(own)))


def releases(world: World) -> Actor:
    return Actor(name="release", action=lambda own: world.relay.run_once(own, database_now(own)))


def loses_session(world: World) -> Actor:
    return Actor(name="session ends", action=expire_sessions)


def renews(world: World) -> Actor:
    """One renewal of the holder, with its run named."""
    return _renewal("renew", world, [world.held.fence] if world.held else [])


def renews_unknowing(world: World) -> Actor:
    """A renewal by a process that never heard that its claim won: the lease is given up."""
    return _renewal("renew unknowing", world, [])


def _renewal(name: str, world: World, fences: Sequence[int]) -> Actor:
    def act(own: Connection) -> None:
        listed_at = sessions.renew_session(own, world.holder, load=Load(capacity=8), length_s=3600)
        if listed_at is not None:
            sessions.held_leases(own, world.holder)
            sessions.disown_leases(own, world.holder, fences=fences, listed_at=listed_at)

    return Actor(name=name, action=act)


# The scenes -------------------------------------------------------------------------------------------


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


def build(
    ledger: HandMadeLedger,
    state: State,
    *,
    overlap: str = "buffer_all",
    parked: bool = True,
    max_attempts: int = 5,
    attempts: int = 0,
    side_effects: str = "idempotent",
) -> World:
    """The first run in `state`, RUNNING past its time limit; the second parked behind it, or due."""
    connection, due_at = ledger.connection, ledger.instant(1)
    connection.execute("SELECT setval('fence_seq', greatest(10, nextval('fence_seq')))")
    ledger.schedule(next_due_at=ledger.instant(3))
    retry = Jsonb({"max_attempts": max_attempts, "initial_interval_s": 0})
    connection.execute("UPDATE schedule_revision SET catch_up_after_s = 100000, retry = %s", [retry])
    connection.execute("UPDATE target SET side_effects = %s", [side_effects])
    sweep, broker = make_sweep(dispatch_grace_s=60), Notebook()
    sweep.run_once(connection, database_now(connection))  # keeps house now, and not in the middle of a play

    begins = State.QUEUED if state in (State.RUNNING, State.UNKNOWN) else state
    run_id = ledger.run(due_at, begins, overlap=overlap, attempt_count=attempts, fence=attempts or None)
    for fence in range(1, attempts + 1):
        ledger.attempt(run_id, due_at, number=fence, fence=fence, outcome="failed")
    run = Claim(run_id=run_id, due_at=due_at, claim_id=uuid4())
    if state is State.PENDING:
        ledger.outbox(run.run_id, due_at, 1)
    _second_run(ledger, overlap=overlap, parked=parked)
    if overlap != "allow":
        slot = (run.run_id, due_at) if state in HOLDS_SLOT else (None, None)
        connection.execute("INSERT INTO overlap_slot VALUES (%s, %s, %s)", [ledger.schedule_id, *slot])
    holder, other = open_session(connection), open_session(connection)
    held = claim(connection, run, holder) if state in (State.RUNNING, State.UNKNOWN) else None
    assert held is None or isinstance(held, Claimed)
    if held is not None and state is State.UNKNOWN:
        end(connection, ending(held, State.UNKNOWN, AttemptOutcome.FAILED))
    connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    return World(
        snapshot=Snapshot(connection),
        run=run,
        holder=holder,
        other=other,
        tenant=Tenant.objects.get(id=TENANT),
        sweep=sweep,
        relay=make_relay(broker),
        broker=broker,
        held=held,
    )


def make_relay(broker: Notebook) -> Relay:
    return Relay(Everything("relay", shard_count=256, wanted=range(256), lease_s=6, ignore=True), broker)


def _second_run(ledger: HandMadeLedger, *, overlap: str, parked: bool) -> None:
    due_at = ledger.instant(2)
    run_id = ledger.run(due_at, "PENDING", overlap=overlap, wait_reason="overlap" if parked else "due")
    ledger.outbox(run_id, due_at, 1)
    if parked:
        ledger.execute(
            "UPDATE outbox SET dispatch_at = clock_timestamp() + interval '1 hour' WHERE run_id = %(id)s",
            id=run_id,
        )


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
