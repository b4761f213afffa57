"""An installation that a module's tests harm one after the other, under a load that never pauses."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.api import Api
from tests.support.installation import TENANT, Installation, recording
from tests.support.machine import find_free_port
from tests.support.processes import Launcher, Running
from tests.support.wait import wait_until

SCHEDULES = 6
RARELY_S = 30 * 86400  # not due by itself within a test
# A session's length and ten seconds, by the promise for what follows a fault; with threefold slack.
RECOVERY_S = 120.0
AFTERWARDS_S = 2.0


class Stage:
    def __init__(self, launch: Launcher, folder: Path) -> None:
        self.installation = Installation(launch, folder)
        self.ledger = self.installation.ledger
        self.processes: dict[str, Running] = {}
        self.api = Api(url="")

    def start(self, name: str, *arguments: str, **env: str) -> Running:
        self.processes[name] = self.installation.start(name, *arguments, env=env)
        return self.processes[name]

    def open_the_api(self, **env: str) -> None:
        port = find_free_port()
        key = self.installation.command("create_api_key", TENANT, "--role", "admin").split()[-1]
        web = self.start("web", PORT=str(port), **env)
        web.wait_for("ready: web")
        self.api = Api(url=f"http://127.0.0.1:{port}", key=key)

    def load(self, *others: dict[str, Any], **fields: Any) -> None:
        """A run of each schedule every second; none is given up however late it comes to be."""
        every_second = [
            recording(f"second-{number}", seconds=0.2, catch_up="run_all", catch_up_after_s=600, **fields)
            for number in range(SCHEDULES)
        ]
        self.installation.apply(*every_second, recording("asked-for", every_s=RARELY_S), *others)
        wait_until(lambda: self.ledger.states().get("SUCCEEDED", 0) > 2 * SCHEDULES, 60)

    def ask_for(self, schedule: str) -> UUID:
        """As a client does. That it is answered within the client's patience is part of the promise."""
        found = self.ledger.scalar("SELECT id FROM schedule WHERE name = %(name)s", name=schedule)
        answer = self.api.post(f"/api/v1/schedules/{found}/trigger")
        assert answer.status == 202, answer
        return UUID(answer.body["run_id"])

    def hears(self, process: str, pattern: str) -> Callable[[], bool]:
        """Whether the process has said such a thing since this call."""
        running = self.processes[process]
        so_far = len(running.output())
        return lambda: re.search(pattern, running.output()[so_far:]) is not None

    def hushed_up(self, since: datetime) -> int:
        """Runs queued since then whose row is gone from the agenda, although no worker has them: published,
        as the relay believes.
        """
        found: int = self.ledger.scalar(
            "SELECT count(*) FROM occurrence o WHERE state = 'QUEUED' AND queued_at > %(since)s"
            " AND NOT EXISTS (SELECT FROM outbox b WHERE b.run_id = o.id)",
            since=since,
        )
        return found

    def assert_recovered(self) -> None:
        """All that was due until a moment from now has become a run, and has succeeded, without a person and
        without a process that ended: what came before the fault, in it, and after it.
        """
        until = self.ledger.now() + timedelta(seconds=AFTERWARDS_S)
        wait_until(
            lambda: self.ledger.settled(until=until),
            RECOVERY_S,
            message=f"not settled within {RECOVERY_S:g} s",
            interval=0.1,
        )
        self.assert_all_run()
        assert set(self.ledger.states(until=until)) == {"SUCCEEDED"}
        report = self.installation.verify(until=until)
        assert (report.violations, report.totals.behind) == ((), 0)

    def assert_all_run(self) -> None:
        ended = [running for running in self.processes.values() if not running.running()]
        assert not ended, "\n".join(running.output() for running in ended)

    def assert_ran_once(self, run_id: UUID) -> None:
        assert [(number, outcome) for number, _, outcome in self.ledger.attempts(run_id)] == [
            (1, "succeeded")
        ]
        assert self.effects_of(run_id) == ["begin", "end"]

    def effects_of(self, run_id: UUID) -> list[str]:
        both = [*self.installation.effects("begin"), *self.installation.effects("end")]
        return [effect.phase for effect in both if effect.run == run_id]
