"""A whole installation under test: real processes on real servers, its ledger and its effect ledger."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from scheduler.testing import effects
from scheduler.testing.effects import Effect
from scheduler.testing.verify import Report, verify
from tests.support.ledger import LedgerReader
from tests.support.processes import Launcher, Running

TENANT = "acceptance"

# Short enough for a test to wait for, long enough for a machine that is busy with other things.
BRISK = {"FENCEPOST_SESSION_S": "3", "FENCEPOST_SHARD_LEASE_S": "2", "FENCEPOST_DISPATCH_GRACE_S": "2"}


_RUN_NOW = """
from uuid import uuid4
from scheduler.models import Schedule
from scheduler.operations import trigger_schedule
from tenants.operations import Actor
for name, times in {wanted!r}.items():
    schedule = Schedule.objects.get(tenant__slug={tenant!r}, name=name)
    for _ in range(times):
        trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=Actor(name="acceptance"))
"""

_CANCEL = """
from uuid import UUID
from scheduler.operations import cancel_run
from tenants.models import Tenant
from tenants.operations import Actor
for run in {runs!r}:
    cancel_run(Tenant.objects.get(slug={tenant!r}), UUID(run), actor=Actor(name="acceptance"))
"""

_RECONCILE = """
from uuid import UUID
from scheduler.operations import reconcile_run
from tenants.models import Tenant
from tenants.operations import Actor
reconcile_run(Tenant.objects.get(slug={tenant!r}), UUID({run!r}), {outcome!r}, actor=Actor(name="acceptance"))
"""


def recording(name: str, *, every_s: int = 1, seconds: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A schedule of `demo.record`."""
    return {
        "name": name,
        "target": "demo.record",
        "payload": {"seconds": seconds},
        "trigger": {"interval": {"every_s": every_s}},
        "overlap": "allow",
        "retry": {"max_attempts": 10, "initial_interval_s": 0.5, "max_interval_s": 1},
        **fields,
    }


class Installation:
    """Nothing runs until it is started. `environ` is that of every process started from here on."""

    def __init__(self, launch: Launcher, folder: Path) -> None:
        self.launch = launch
        self.folder = folder
        self.database_url = launch.environ["DATABASE_URL"]
        self.effects_file = folder / "effects.jsonl"
        self.fault_log = folder / "faults.log"
        self.environ = {
            "FENCEPOST_EFFECTS": str(self.effects_file),
            "FENCEPOST_ALLOW_FAULTS": "1",
            "FENCEPOST_FAULT_LOG": str(self.fault_log),
        }
        self.ledger = LedgerReader(self.database_url)

    def be_brisk(self) -> None:
        """Notice losses soon, where a test waits for that."""
        self.environ |= BRISK

    def start(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        return self.launch(name, *arguments, env={**self.environ, **(env or {})})

    def start_all(self, *, ticks: int = 2, relays: int = 1, concurrency: int = 16) -> list[Running]:
        names = ["tick"] * ticks + ["relay"] * relays + ["sweep"]
        loops = [self.start(name) for name in names]
        return [*loops, self.start("worker", "--concurrency", str(concurrency))]

    def make_tenant(self) -> None:
        self.command("create_tenant", TENANT)

    def apply(self, *schedules: Mapping[str, Any], tenant: str = TENANT) -> None:
        file = self.folder / "schedules.yaml"
        file.write_text(yaml.safe_dump({"schedules": [dict(schedule) for schedule in schedules]}))
        self.command("apply", str(file), "--tenant", tenant)

    def run_now(self, *schedules: str, **times: int) -> None:
        """Ask for runs, as a person would by the dashboard's button: one each, or so many."""
        wanted = dict.fromkeys(schedules, 1) | times
        self.command("shell", "-c", _RUN_NOW.format(tenant=TENANT, wanted=wanted))

    def cancel_run(self, *run_ids: UUID) -> None:
        runs = [str(run_id) for run_id in run_ids]
        self.command("shell", "-c", _CANCEL.format(tenant=TENANT, runs=runs))

    def reconcile_run(self, run_id: UUID, outcome: str) -> None:
        self.command("shell", "-c", _RECONCILE.format(tenant=TENANT, run=str(run_id), outcome=outcome))

    def command(self, name: str, *arguments: str) -> str:
        """Run a command to its end; what it wrote."""
        done = self.start(name, *arguments)
        assert done.process.wait(60) == 0, done.output()
        return done.output()

    def effects(self, phase: str) -> list[Effect]:
        if not self.effects_file.exists():
            return []
        return [effect for effect in effects.read(self.effects_file) if effect.phase == phase]

    def reconnect(self) -> LedgerReader:
        """To the database that is now at the same address."""
        self.ledger.connection.close()
        self.ledger = LedgerReader(self.database_url)
        return self.ledger

    def verify(
        self, *, since: datetime | None = None, until: datetime | None = None, effects: bool = True
    ) -> Report:
        file = self.effects_file if effects else None
        return verify(self.database_url, since=since, until=until, effects_file=file)
