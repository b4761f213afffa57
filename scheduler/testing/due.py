"""Ticks, releases, claims and ends in one thread, on Django's connection: the engine as a test needs it.

The statements are the engine's own. Only the broker is missing: what the relay would publish is claimed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection as django_connection
from django.db import transaction as django_transaction

from scheduler import declarations
from scheduler.clock import database_now
from scheduler.core.states import Refusal, State
from scheduler.operations import sync_targets
from scheduler.orm import raw_connection
from scheduler.processes.ownership import Ownership
from scheduler.processes.relay import Relay
from scheduler.processes.tick import Tick
from scheduler.store import claims, sessions
from scheduler.store.claims import Claim, Claimed
from scheduler.store.statements import Connection, transaction
from scheduler.worker import registry
from scheduler.worker.execution import Held, attempt
from scheduler.worker.registry import JobSpec
from tenants.models import Tenant
from tenants.operations import Actor

SHARDS = 256
SESSION_S = 365 * 86_400.0  # a test may move its clock by years; nobody else holds its runs
MOST_RUNS = 1000

# A function by the name that every statement calls, found before Postgres's because the path says so.
_CLOCK = """
CREATE SCHEMA IF NOT EXISTS fencepost_clock;
CREATE OR REPLACE FUNCTION fencepost_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$SELECT pg_catalog.clock_timestamp() + current_setting('fencepost.ahead')::interval$$;
SELECT set_config('search_path', 'fencepost_clock, pg_catalog, ' || current_setting('search_path'), false);
"""
_LEDGER = "occurrence, attempt, outbox, lease, overlap_slot, session"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One attempt that `run_due` made. `result` and `error` as the ledger has them."""

    run_id: UUID
    due_at: datetime
    target: str
    payload: dict[str, Any]
    attempt: int
    state: State
    result: Any
    error: dict[str, Any] | None


class Fencepost:
    """The ledger under test. Every job that is declared is a target in it."""

    def __init__(self) -> None:
        declarations.load()
        sync_targets(registry.jobs(), actor=Actor(name="a test"))
        self._ahead = timedelta()
        self._path: str | None = None
        self._session_id: UUID | None = None
        self._publisher = _Notebook()

    @property
    def now(self) -> datetime:
        """What the ledger takes for the time."""
        return database_now(raw_connection())

    def advance(self, **duration: float) -> datetime:
        """Move the ledger's clock ahead, by the arguments of a timedelta; what it says then. It goes on from
        there, and no other clock is moved.
        """
        self._ahead += timedelta(**duration)
        connection = raw_connection()
        ahead = f"{self._ahead.total_seconds()} s"
        connection.execute("SELECT set_config('fencepost.ahead', %s, false)", [ahead])
        if self._path is None:
            (self._path,) = connection.execute("SHOW search_path").fetchone() or ("",)
            for statement in _CLOCK.strip().split(";\n"):
                connection.execute(statement.encode())
        return self.now

    def tenant(self, slug: str = "test") -> Tenant:
        """A tenant of this name, made when it is missing."""
        return Tenant.objects.get_or_create(
            slug=slug, defaults={"name": slug.title(), "created_at": self.now}
        )[0]

    def run_due(self) -> list[Ran]:
        """Run what is due by now, in the order of release, retries that have become due among them, until
        nothing is. Jobs run in this thread: in a test that is one transaction, each within a savepoint of it.

        Raises AssertionError after a thousand runs, and for a target whose job is not imported.
        """
        ran: list[Ran] = []
        while envelopes := self._release():
            for run_id, due_at in envelopes:
                done = self._run(run_id, due_at)
                if done is not None:
                    ran.append(done)
            if len(ran) > MOST_RUNS:
                raise AssertionError(f"more than {MOST_RUNS} runs were due by {self.now}")
        return ran

    def leave(self) -> None:
        """Give the clock back, and in a test that commits empty the ledger, which Django does not know."""
        with django_connection.cursor() as cursor:
            if self._path is not None:
                cursor.execute("SELECT set_config('search_path', %s, false)", [self._path])
                cursor.execute("DROP SCHEMA IF EXISTS fencepost_clock CASCADE")
            if not django_connection.in_atomic_block:
                cursor.execute(f"TRUNCATE {_LEDGER}")

    def _release(self) -> list[tuple[UUID, datetime]]:
        connection, now = raw_connection(), self.now
        tick = Tick(_everything("tick"), look_ahead_s=0, batch=1000)
        while tick.run_once(connection, now).more:
            pass
        relay = Relay(_everything("relay"), self._publisher)
        while relay.run_once(connection, self.now).more:
            pass
        return self._publisher.take()

    def _run(self, run_id: UUID, due_at: datetime) -> Ran | None:
        connection = raw_connection()
        claimed = self._claim(connection, run_id, due_at)
        if claimed is None:
            return None
        spec = registry.jobs().get(claimed.target)
        if spec is None:
            raise AssertionError(f"{claimed.target!r} is due, and is no job: is its module imported?")
        held = Held(claimed=claimed, session_id=self._session(connection), good_until=_for_ever)
        progress = _Progress()
        ending, _ = attempt(held, _undone_if_it_fails(spec), progress)
        with transaction(connection):
            if progress.last is not None:
                claims.report_progress(connection, claimed, progress.last)
            claims.lock(connection, endings=[ending])
            ended = claims.end_attempts(connection, [ending], guard="holder")
        return Ran(
            run_id=run_id,
            due_at=claimed.due_at,
            target=claimed.target,
            payload=claimed.payload,
            attempt=claimed.attempt,
            state=ended[ending.fence].state,
            result=ending.result,
            error=ending.error,
        )

    def _claim(self, connection: Connection, run_id: UUID, due_at: datetime) -> Claimed | None:
        """None: the run was refused, and the refusal has moved it."""
        wish = Claim(run_id=run_id, due_at=due_at, claim_id=uuid4())
        with transaction(connection):
            claims.lock(connection, claims=[wish])
            refusals = claims.claim(connection, [wish], session_id=self._session(connection))
        if refusals[wish.claim_id] in (Refusal.SESSION_LOST, Refusal.TOO_EARLY):
            raise AssertionError(f"run {run_id} was refused: {refusals[wish.claim_id]}")
        return claims.claimed(connection, [wish.claim_id]).get(wish.claim_id)

    def _session(self, connection: Connection) -> UUID:
        if self._session_id is None:
            self._session_id = uuid4()
            sessions.open_session(
                connection,
                self._session_id,
                kind="worker",
                worker="a test",
                capacity=1,
                length_s=SESSION_S,
            )
        return self._session_id


class _Notebook:
    """In a broker's place."""

    def __init__(self) -> None:
        self._noted: list[tuple[UUID, datetime]] = []

    def connect(self) -> None: ...

    def publish(self, envelopes: Sequence[Any]) -> list[Any]:
        self._noted += [(envelope.run_id, envelope.due_at) for envelope in envelopes]
        return list(envelopes)

    def close(self) -> None: ...

    def take(self) -> list[tuple[UUID, datetime]]:
        noted, self._noted = self._noted, []
        return noted


class _Everything(Ownership):
    """All shards, without asking: a clock that a test has moved would be refused."""

    def hold(self, connection: Connection, now: datetime) -> list[int]:
        return list(range(SHARDS))


class _Progress:
    """Kept until the job has ended: a worker reports on another connection, which no rollback of the job's
    reaches.
    """

    def __init__(self) -> None:
        self.last: dict[str, Any] | None = None

    def report_progress(self, held: Held, progress: dict[str, Any]) -> bool:
        self.last = progress
        return True


def _everything(kind: str) -> Ownership:
    return _Everything(kind, shard_count=SHARDS, wanted=range(SHARDS), lease_s=6, ignore=True)


def _for_ever() -> float:
    return float("inf")


def _undone_if_it_fails(spec: JobSpec) -> JobSpec:
    """In a test that is one transaction: an error of the database in the job would else end the test's."""
    function: Callable[..., Any] = spec.function

    def call(*args: Any, **payload: Any) -> Any:
        if not django_connection.in_atomic_block:
            return function(*args, **payload)
        with django_transaction.atomic():
            return function(*args, **payload)

    return replace(spec, function=call)
