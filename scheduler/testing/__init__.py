"""For the tests of jobs: run one without a broker, a worker or a database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from scheduler.core import identity
from scheduler.errors import Cancelled

_DUE = datetime(2026, 11, 30, 9, tzinfo=UTC)
_SCHEDULE = UUID("3f0c1f1e-6f3e-4a53-9d0a-6d7f0e1c2b3a")


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    percent: float | None
    note: str
    resume: Any


@dataclass(kw_only=True)
class LocalContext:
    """What a job gets as `ctx`, held by nobody: pass it to the job's function.

    Two contexts with the same `due_at` are two attempts of one run: their keys agree.
    Set `cancelled` to see the job stop; `heartbeats` holds what it reported.
    """

    due_at: datetime = _DUE
    attempt: int = 1
    fence: int = 1
    payload: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = "demo"
    resume: Any = None
    cancelled: bool = False
    heartbeats: list[Heartbeat] = field(default_factory=list)

    @property
    def run_id(self) -> UUID:
        return identity.run_id(self.due_at, bytes(10))

    @property
    def idempotency_key(self) -> str:
        return identity.idempotency_key(self.due_at, _SCHEDULE, 1, identity.NOMINAL)

    def key(self, name: str) -> str:
        return identity.sub_key(self.idempotency_key, name)

    def heartbeat(self, *, percent: float | None = None, note: str = "", resume: Any = None) -> None:
        self.check_cancelled()
        self.heartbeats.append(Heartbeat(percent=percent, note=note, resume=resume))

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled("the run was cancelled")
