"""Who acts in the ledger of a run: each gives the actor who does one thing in a world."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from scheduler.clock import database_now
from scheduler.core.states import AttemptOutcome, State
from scheduler.errors import Conflict
from scheduler.operations import cancel_run, reconcile_run, redrive_run
from scheduler.store import sessions
from scheduler.store.claims import Claim, Claimed
from scheduler.store.sessions import Load
from scheduler.worker.flusher import ClaimAnswer
from tests.factories import ACTOR
from tests.model.execution_world import (
    Act,
    Cancelling,
    Completion,
    Connection,
    World,
    claim,
    end,
    ending,
    expire_sessions,
    open_session,
)
from tests.support.interleaving import Actor


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
