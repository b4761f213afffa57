"""A small ledger written by SQL, and questions that tests put to a ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from scheduler.core import identity

TENANT = UUID("7b8f2c34-5a0d-4b9e-8d1c-0a6f3f2e1d00")
TARGET = UUID("7b8f2c34-5a0d-4b9e-8d1c-0a6f3f2e1d01")


@dataclass(kw_only=True)
class HandMadeLedger:
    """Writes rows as they are told, past the state machine, so that they can be wrong as well."""

    connection: psycopg.Connection[Any]
    start: datetime
    every_s: int = 60
    fence: int = 1000
    schedule_id: UUID = field(default_factory=uuid4)
    session_id: UUID = field(default_factory=uuid4)

    @classmethod
    def on(cls, database_url: str) -> "HandMadeLedger":
        connection = psycopg.connect(database_url, autocommit=True)
        connection.execute("SET session_replication_role = replica")  # no triggers: CHECKs still hold
        found = connection.execute("SELECT date_trunc('minute', clock_timestamp())").fetchone()
        assert found is not None
        ledger = cls(connection=connection, start=found[0].astimezone(UTC) - timedelta(hours=1))
        ledger._accounts()
        return ledger

    def instant(self, number: int) -> datetime:
        """The `number`-th due instant, from 1."""
        return self.start + timedelta(seconds=self.every_s * number)

    def schedule(self, *, next_due_at: datetime, max_attempts: int = 5) -> None:
        self._insert(
            "schedule",
            {
                "id": self.schedule_id,
                "tenant_id": TENANT,
                "name": "every-minute",
                "state": "active",
                "shard": identity.shard_of(self.schedule_id),
                "revision": 1,
                "next_due_at": next_due_at,
                "state_note": "",
                "fault": "",
                "created_at": self.start,
                "updated_at": self.start,
            },
        )
        self.revision(1, effective_from=self.start, retry={"max_attempts": max_attempts})

    def revision(self, number: int, *, effective_from: datetime, **columns: Any) -> None:
        self._insert(
            "schedule_revision",
            {
                "schedule_id": self.schedule_id,
                "number": number,
                "target_id": TARGET,
                "target_name": "demo.record",
                "payload": {},
                "trigger": {"interval": {"every_s": self.every_s, "anchor": self.start.isoformat()}},
                "exclusions": [],
                "on_excluded": "skip",
                "calendars": {},
                "flexible_window_s": 0,
                "mode": "fixed_rate",
                "catch_up": "run_latest_only",
                "catch_up_limit": 100,
                "catch_up_after_s": 60,
                "overlap": "allow",
                "buffer_limit": 1000,
                "retry": {"max_attempts": 5},
                "timeout_s": 300,
                "cancel_grace_s": 30,
                "late_after_s": 30,
                "priority": "normal",
                "tags": [],
                "description": "",
                "created_at": effective_from,
                "created_by": "test",
                "effective_from": effective_from,
                **columns,
            },
        )

    def run(self, due_at: datetime, state: str, **columns: Any) -> UUID:
        """A run without attempts, lease or outbox row."""
        run_id = identity.run_id(due_at, uuid4().bytes[:10])
        ended = state in ("SUCCEEDED", "FAILED", "DEAD_LETTERED", "SKIPPED", "CANCELLED")
        self._insert(
            "occurrence",
            {
                "id": run_id,
                "due_at": due_at,
                "schedule_id": self.schedule_id,
                "revision": 1,
                "origin": "schedule",
                "tenant_id": TENANT,
                "shard": identity.shard_of(self.schedule_id),
                "overlap": "allow",
                "state": state,
                "wait_reason": "due" if state == "PENDING" else None,
                "skip_reason": "missed" if state == "SKIPPED" else None,
                "dispatch_at": due_at,
                "generation": 0 if state in ("PENDING", "SKIPPED") else 1,
                "created_at": due_at - timedelta(seconds=10),
                "queued_at": None if state in ("PENDING", "SKIPPED") else due_at,
                "finished_at": due_at if ended else None,
                "tzdata_version": "test",
                **columns,
            },
        )
        return run_id

    def attempted(self, due_at: datetime, state: str, *outcomes: str | None) -> UUID:
        """A run with an attempt per outcome; None: still open."""
        fences = [self.next_fence() for _ in outcomes]
        run_id = self.run(due_at, state, attempt_count=len(outcomes), fence=fences[-1], started_at=due_at)
        for number, (fence, outcome) in enumerate(zip(fences, outcomes, strict=True), start=1):
            self.attempt(run_id, due_at, number=number, fence=fence, outcome=outcome)
        return run_id

    def attempt(self, run_id: UUID, due_at: datetime, **columns: Any) -> None:
        ended = columns["outcome"] is not None
        row = {"run_id": run_id, "due_at": due_at, "session_id": self.session_id, "worker": "host:1"}
        times = {"started_at": due_at, "finished_at": due_at if ended else None}
        self._insert("attempt", {**row, **times, **columns})

    def lease(self, run_id: UUID, due_at: datetime, fence: int) -> None:
        row = {"run_id": run_id, "due_at": due_at, "fence": fence, "session_id": self.session_id}
        ends_by = due_at + timedelta(hours=2)
        self._insert("lease", {**row, "claim_id": uuid4(), "granted_at": due_at, "ends_by": ends_by})

    def outbox(self, run_id: UUID, due_at: datetime, generation: int) -> None:
        row = {"run_id": run_id, "due_at": due_at, "dispatch_at": due_at, "generation": generation}
        self._insert("outbox", {**row, "shard": identity.shard_of(self.schedule_id)})

    def next_fence(self) -> int:
        self.fence += 1
        return self.fence

    def execute(self, statement: str, **parameters: Any) -> None:
        self.connection.execute(statement.encode(), parameters)

    def _accounts(self) -> None:
        names = {"slug": "demo", "name": "Demo", "payload_max_bytes": 65536, "max_schedules": 100}
        self._insert("tenant", {"id": TENANT, "created_at": self.start, **names})
        self._insert(
            "target",
            {
                "id": TARGET,
                "name": "demo.record",
                "kind": "job",
                "side_effects": "idempotent",
                "parameters": {},
                "description": "",
                "everyone": True,
                "enabled": True,
                "created_at": self.start,
            },
        )

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        columns, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        values = [Jsonb(value) if isinstance(value, dict | list) else value for value in row.values()]
        statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        self.connection.execute(statement.encode(), values)


class LedgerReader:
    """Questions to the ledger of a running installation. All times are the database's."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self.connection = psycopg.connect(database_url, autocommit=True)

    def reconnect(self) -> None:
        """After a restart of the server."""
        self.close()
        self.connection = psycopg.connect(self._database_url, autocommit=True)

    def close(self) -> None:
        self.connection.close()

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.encode(), parameters).fetchall()

    def scalar(self, statement: str, **parameters: Any) -> Any:
        (row,) = self.rows(statement, **parameters)
        return row[0]

    def now(self) -> datetime:
        now: datetime = self.scalar("SELECT clock_timestamp()")
        return now

    def states(self, *, since: datetime | None = None, until: datetime | None = None) -> dict[str, int]:
        """How many runs due in (since, until] are in which state."""
        return dict(
            self.rows(
                "SELECT state, count(*) FROM occurrence"
                " WHERE due_at > coalesce(%(since)s::timestamptz, '-infinity')"
                " AND due_at <= coalesce(%(until)s::timestamptz, 'infinity') GROUP BY state",
                since=since,
                until=until,
            )
        )

    def settled(self, *, until: datetime) -> bool:
        """Every instant up to `until` has become a run, and every run due by then has ended."""
        open_runs = "SELECT count(*) FROM occurrence WHERE due_at <= %(until)s AND finished_at IS NULL"
        behind = "SELECT count(*) FROM schedule WHERE state = 'active' AND next_due_at <= %(until)s"
        return self.now() > until and not self.scalar(behind, until=until) + self.scalar(
            open_runs, until=until
        )

    def attempts(self, run_id: UUID) -> list[tuple[int, int, str | None]]:
        """(number, fence, outcome) in order."""
        return self.rows(
            "SELECT number, fence, outcome FROM attempt WHERE run_id = %(run_id)s ORDER BY number",
            run_id=run_id,
        )
