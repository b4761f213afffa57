"""The way from a due instant to a finished run, stage by stage, against what the machine does without us.

    python -m bench.spine [--json] [--pool threads|prefork|gevent]

Each stage is measured in rounds that alternate with those of its ceiling; medians, and their ratio. Absolute
figures say as much about the machine as about the product; the ratios are what to compare.

tick        due instants into occurrence and outbox    against   the same rows by plain multi-row INSERT
dispatch    released, published, confirmed, deleted    against   raw publishing with pipelined confirms
end to end  released to finished, through a worker     against   plain Celery with a task that does nothing
lateness    from the due instant to the start of the job, at 200 runs a second, all processes running
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from bench import plain
from bench.ground import QUORUM, Ground, RawPublisher, circumstances, ground, make_schedules
from scheduler.broker import ConfirmingPublisher
from scheduler.clock import database_now
from scheduler.core.identity import shard_of
from scheduler.processes.ownership import Ownership
from scheduler.processes.relay import Relay
from scheduler.processes.tick import Tick, new_run_id
from scheduler.topology import queue_name
from tests.support.wait import wait_until

ROUNDS = 5
ROWS = 2000  # of a round of tick or dispatch
RUNS = 1000  # of a round through a worker
INSERT_BATCH = 1000  # as the tick's
CONCURRENCY = {"threads": "32", "prefork": "4", "gevent": "32"}  # of both workers
SHARDS = range(256)
RAW_QUEUE = "bench.raw"
RATE_PER_S = 200
WARM_UP_S, WATCHED_S = 5, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Per second, medians over the rounds, and ours divided by the ceiling's."""

    stage: str
    ours: float
    ceiling: float
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """Milliseconds from due to started, over `runs` runs at `asked_per_s`."""

    asked_per_s: int
    runs: int
    p50_ms: float
    p99_ms: float


class Bench:
    """Each round has a due instant of its own, in the past, so that everything may go at once."""

    def __init__(self, on: Ground, *, rows: int = ROWS, pool: str = "threads") -> None:
        self.ground = on
        self.pool = pool
        self.rows = rows
        now = database_now(on.connection).replace(microsecond=0)
        self.connection = on.connection
        self.schedules = make_schedules(
            self.connection, rows, every_s=30 * 86400, anchor=now - timedelta(seconds=1)
        )
        self.moments = (now - timedelta(minutes=10, seconds=number) for number in count())
        self.tick = Tick(_ownership("tick"), look_ahead_s=10, batch=INSERT_BATCH)
        self.relay = Relay(_ownership("relay"), ConfirmingPublisher(on.broker_url))
        self.raw = RawPublisher(on.broker_url)
        self.raw.declare(RAW_QUEUE, QUORUM)
        self.raw.declare(plain.QUEUE)
        self.plain_times = on.folder / "plain.times"

    def measure(self) -> tuple[list[Rate], Lateness]:
        rates = [
            *_interleaved(tick=(self.ticked, self.inserted), dispatch=(self.dispatched, self.published)),
            *self.end_to_end(),
        ]
        return rates, self.lateness()

    def close(self) -> None:
        self.tick.retire(self.connection)
        self.relay.retire(self.connection)
        self.raw.close()

    # Tick and plain INSERT ----------------------------------------------------------------------

    def ticked(self) -> float:
        self._make_due(self.rows)
        began = time.perf_counter()
        self._tick()
        return self.rows / (time.perf_counter() - began)

    def inserted(self) -> float:
        moment = next(self.moments)
        batches = [
            self._plain_rows(moment, self.schedules[begin : begin + INSERT_BATCH])
            for begin in range(0, self.rows, INSERT_BATCH)
        ]
        began = time.perf_counter()
        for batch in batches:
            with self.connection.transaction():
                self.connection.execute(_INSERT_OCCURRENCES, batch)
                self.connection.execute(_INSERT_OUTBOX, batch)
        elapsed_s = time.perf_counter() - began
        self._forget(moment)
        return self.rows / elapsed_s

    # Relay and raw publishing -------------------------------------------------------------------

    def dispatched(self) -> float:
        """What `ticked` has left on the agenda."""
        began = time.perf_counter()
        self._relay()
        elapsed_s = time.perf_counter() - began
        self.raw.purge(queue_name("normal"))
        self.connection.execute(_GIVE_UP)
        return self.rows / elapsed_s

    def published(self) -> float:
        began = time.perf_counter()
        self.raw.publish(RAW_QUEUE, plain.TASK, self.rows)
        elapsed_s = time.perf_counter() - began
        self.raw.purge(RAW_QUEUE)
        return self.rows / elapsed_s

    # Worker and plain Celery --------------------------------------------------------------------

    def end_to_end(self) -> list[Rate]:
        pool = ["--pool", self.pool, "--concurrency", CONCURRENCY[self.pool]]
        ours = self.ground.launch("worker", *pool)
        environ = {"BENCH_PLAIN_BATCH": str(RUNS), "BENCH_PLAIN_FILE": str(self.plain_times)}
        options = [*pool, "--loglevel", "WARNING"]
        plain_celery = [sys.executable, "-m", "celery", "-A", "bench.plain", "worker", "-n", "plain@%h"]
        theirs = self.ground.launch.start("plain", [*plain_celery, *options], env=environ)
        self.ran(), self.ran_plainly()  # both are up and warm
        rates = _interleaved(**{"end to end": (self.ran, self.ran_plainly)})
        assert ours.running()
        theirs.end()
        return rates

    def ran(self) -> float:
        self._make_due(RUNS)
        self._tick()
        began = database_now(self.connection)
        self._relay()
        wait_until(lambda: not self._unfinished(began), 120)
        (ended,) = self._row(b"SELECT max(finished_at) FROM occurrence WHERE state = 'SUCCEEDED'")
        return RUNS / float((ended - began).total_seconds())

    def ran_plainly(self) -> float:
        before = self._plain_rounds()
        began = time.time()
        self.raw.publish(plain.QUEUE, plain.TASK, RUNS)
        wait_until(lambda: len(self._plain_rounds()) > len(before), 120)
        return RUNS / (self._plain_rounds()[-1] - began)

    # Lateness -----------------------------------------------------------------------------------

    def lateness(self) -> Lateness:
        """The worker of the stage before goes on; the loops get processes of their own."""
        self.tick.retire(self.connection)
        self.relay.retire(self.connection)
        for name in ("tick", "relay", "sweep"):
            self.ground.launch(name)
        wait_until(lambda: self._row(_OWNED)[0] == 2 * len(SHARDS), 60)
        now = database_now(self.connection).replace(microsecond=0)
        since = now + timedelta(seconds=WARM_UP_S)
        make_schedules(self.connection, RATE_PER_S, every_s=1, anchor=since - timedelta(seconds=1))
        until = since + timedelta(seconds=WATCHED_S)
        window = {"since": since, "until": until}
        wait_until(lambda: self._row(_LATENESS, window)[0] == RATE_PER_S * WATCHED_S, 240, interval=0.5)
        runs, p50_ms, p99_ms = self._row(_LATENESS, window)
        return Lateness(asked_per_s=RATE_PER_S, runs=runs, p50_ms=p50_ms, p99_ms=p99_ms)

    # --------------------------------------------------------------------------------------------

    def _make_due(self, count: int) -> None:
        chosen = {"moment": next(self.moments), "ids": self.schedules[:count]}
        self.connection.execute(
            b"UPDATE schedule SET next_due_at = %(moment)s WHERE id = ANY(%(ids)s)", chosen
        )

    def _tick(self) -> None:
        while self.tick.run_once(self.connection, database_now(self.connection)).more:
            pass

    def _relay(self) -> None:
        while self.relay.run_once(self.connection, database_now(self.connection)).counts.get("released"):
            pass

    def _plain_rows(self, moment: datetime, schedules: list[UUID]) -> dict[str, Any]:
        return {
            "moment": moment,
            "ids": [new_run_id(moment) for _ in schedules],
            "schedules": schedules,
            "shards": [shard_of(schedule) for schedule in schedules],
        }

    def _forget(self, moment: datetime) -> None:
        self.connection.execute(b"DELETE FROM outbox WHERE due_at = %s", [moment])
        self.connection.execute(b"DELETE FROM occurrence WHERE due_at = %s", [moment])

    def _unfinished(self, until: datetime) -> int:
        (left,) = self._row(
            b"SELECT count(*) FROM occurrence WHERE finished_at IS NULL AND due_at <= %(until)s",
            {"until": until},
        )
        return int(left)

    def _plain_rounds(self) -> list[float]:
        return list(map(float, self.plain_times.read_text().split())) if self.plain_times.exists() else []

    def _row(self, statement: bytes, parameters: dict[str, Any] | None = None) -> tuple[Any, ...]:
        found: tuple[Any, ...] | None = self.connection.execute(statement, parameters).fetchone()
        assert found is not None
        return found


def _ownership(kind: str) -> Ownership:
    return Ownership(kind, shard_count=len(SHARDS), wanted=SHARDS, lease_s=6, ignore=False)


def _interleaved(**stages: tuple[Callable[[], float], Callable[[], float]]) -> list[Rate]:
    """Round by round through all stages, each followed by its ceiling: a busy moment hits both."""
    measured: dict[str, list[tuple[float, float]]] = {stage: [] for stage in stages}
    for _ in range(ROUNDS):
        for stage, (ours, ceiling) in stages.items():
            measured[stage].append((ours(), ceiling()))
    return [_rate(stage, pairs) for stage, pairs in measured.items()]


def _rate(stage: str, pairs: list[tuple[float, float]]) -> Rate:
    ours, ceiling = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Rate(stage=stage, ours=ours, ceiling=ceiling, ratio=ours / ceiling)


_INSERT_OCCURRENCES = b"""
INSERT INTO occurrence (id, due_at, schedule_id, revision, origin, tenant_id, shard, overlap, state,
                        wait_reason, dispatch_at, created_at, tzdata_version)
SELECT id, %(moment)s, schedule_id, 1, 'schedule', schedule_id, shard, 'allow', 'PENDING', 'due', %(moment)s,
       %(moment)s, 'bench'
FROM unnest(%(ids)s::uuid[], %(schedules)s::uuid[], %(shards)s::int[]) AS r(id, schedule_id, shard)
"""
_INSERT_OUTBOX = b"""
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT %(moment)s, id, %(moment)s, shard, 1
FROM unnest(%(ids)s::uuid[], %(shards)s::int[]) AS r(id, shard)
"""
_GIVE_UP = (
    b"UPDATE occurrence SET state = 'CANCELLED', finished_at = clock_timestamp() WHERE state = 'QUEUED'"
)
_OWNED = b"SELECT count(*) FROM shard_lease WHERE expires_at > clock_timestamp()"
_LATENESS = b"""
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY late_ms),
       percentile_cont(0.99) WITHIN GROUP (ORDER BY late_ms)
FROM (
    SELECT 1000 * extract(epoch FROM a.started_at - a.due_at)::float8 AS late_ms FROM attempt a
    WHERE a.number = 1 AND a.due_at > %(since)s AND a.due_at <= %(until)s
) started
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.spine", description="From due to done, as ratios.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    parser.add_argument("--pool", choices=sorted(CONCURRENCY), default="threads", help="of the workers")
    wanted = parser.parse_args(arguments)
    as_json = wanted.json
    with ground() as on:
        facts = {**circumstances(on.connection), "rounds": ROUNDS, "pool": wanted.pool}
        bench = Bench(on, pool=wanted.pool)
        rates, lateness = bench.measure()
        bench.close()
    if as_json:
        figures = {"rates": [asdict(rate) for rate in rates], "due_to_start": asdict(lateness)}
        print(json.dumps({"bench": "spine", **facts, **figures}, indent=2))
        return 0
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    for rate in rates:
        print(f"{rate.stage:12}{rate.ours:9,.0f}/s  of {rate.ceiling:9,.0f}/s   ratio {rate.ratio:.2f}")
    print(
        f"due to start at {lateness.asked_per_s}/s: p50 {lateness.p50_ms:.1f} ms,"
        f" p99 {lateness.p99_ms:.1f} ms over {lateness.runs} runs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
