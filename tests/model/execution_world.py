"""One schedule, the run that is fought over and the one behind it: the ledger, and what must hold in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from scheduler.clock import database_now
from scheduler.core.states import HOLDS_SLOT, AttemptOutcome, State
from scheduler.operations import reconcile_run
from scheduler.processes.relay import Relay
from scheduler.processes.sweep import Sweep
from scheduler.store import sessions
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.testing.verify import verify
from scheduler.worker.flusher import ClaimAnswer, ClaimWish, EndWish, Flusher, Wish
from tenants.models import Tenant
from tests.factories import ACTOR
from tests.processes.test_rounds import Notebook
from tests.support.interleaving import Actor
from tests.support.ledger import TENANT, HandMadeLedger
from tests.support.snapshot import Snapshot
from tests.support.timetravel import Everything

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
    behind_whom = state in HOLDS_SLOT and overlap != "allow"
    assert behind_whom or not parked, "no ledger has a run parked at a free slot that nobody has woken"
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
