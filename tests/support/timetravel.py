"""A schedule under a clock that the test moves: the product's own operations and tick, on real Postgres."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.models import Occurrence, Schedule
from scheduler.orm import raw_connection
from scheduler.processes.ownership import Ownership
from scheduler.processes.tick import Tick
from scheduler.store import invariants, rest
from scheduler.store.invariants import Window
from scheduler.store.statements import Connection
from scheduler.testing.accounts import unbalanced
from tests.core.cases import instant

LOOK_AHEAD_S = 10


@dataclass
class Clock:
    """What the database's clock says to operations and ticks. Rows are looked at as far as `now`."""

    now: datetime
    rounds: int = 0

    def at(self, text: str) -> "Clock":
        self.now = instant(text)
        return self

    def forward(self, **duration: float) -> "Clock":
        self.now += timedelta(**duration)
        return self

    def tick(self) -> int:
        """Rounds until there is no more to do; how many rows they made."""
        made, more = 0, True
        while more:
            report = _tick().run_once(raw_connection(), self.now)
            made, more, self.rounds = made + report.counts["occurrences"], report.more, self.rounds + 1
        return made

    def tick_until(self, text: str, *, every_s: float = 30) -> None:
        end = instant(text)
        while self.now < end:
            self.now = min(end, self.now + timedelta(seconds=every_s))
            self.tick()

    def end_runs(self, schedule: Schedule, state: str = "SUCCEEDED") -> None:
        """What is due ends now, however it got there, and wakes what waited for it."""
        runs = Occurrence.objects.filter(schedule=schedule, due_at__lte=self.now, finished_at=None)
        for run in runs:
            for step in _ROADS[state]:
                Occurrence.objects.filter(id=run.id).update(**_columns(step, self.now))
        rest.wake(raw_connection())

    def accounts(self) -> list[str]:
        """What the checker of the ledger has to say against it, up to now."""
        window, connection = Window(since=None, until=self.now), raw_connection()
        reigns, rows = invariants.reigns(connection, window), invariants.nominal_rows(connection, window)
        return [breach.detail for breach in unbalanced(reigns, rows, window)]


_ROADS = {
    "SUCCEEDED": ("QUEUED", "RUNNING", "SUCCEEDED"),
    "FAILED": ("QUEUED", "RUNNING", "FAILED"),
    "DEAD_LETTERED": ("QUEUED", "RUNNING", "DEAD_LETTERED"),
    "CANCELLED": ("CANCELLED",),
    "SKIPPED": ("SKIPPED",),
}


def _columns(state: str, now: datetime) -> dict[str, Any]:
    columns: dict[str, Any] = {"state": state, "wait_reason": None}
    if state == "QUEUED":
        return {**columns, "queued_at": now, "generation": 1}
    if state == "RUNNING":
        return {**columns, "fence": 1, "attempt_count": 1, "started_at": now}
    if state == "SKIPPED":
        columns["skip_reason"] = "overlap"
    return {**columns, "finished_at": now}


class Everything(Ownership):
    """Owns all shards without asking, for a real one would say that the database's clock is far off."""

    def hold(self, connection: Connection, now: datetime) -> list[int]:
        return list(range(256))


def _tick() -> Tick:
    everything = Everything("tick", shard_count=256, wanted=range(256), lease_s=6, ignore=True)
    return Tick(everything, look_ahead_s=LOOK_AHEAD_S, batch=1000)


def due_instants(schedule: Schedule, **filters: Any) -> list[datetime]:
    rows = Occurrence.objects.filter(schedule=schedule, origin="schedule", **filters)
    return list(rows.order_by("due_at").values_list("due_at", flat=True))


def texts(instants: list[datetime]) -> list[str]:
    return [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in instants]
