"""What the core costs: next_after against croniter, a tick's batch, a long listing, the worst expressions.

    python -m bench.time [--json]

Prints, for each expression, the median time per call of next_after and of croniter's get_next on the same
instants, interleaved in the same run, and the ratio of the two; below 0.2 is the aim.
"Walk" goes from instant to instant as a schedule does, "jump" asks from scattered instants as a page does.
Processor time of the thread, so that a busy machine shows the same ratios; the first round only warms caches.

Then rounds of a tick over 1,000 due schedules with 50 expressions, on a Postgres of its own: the processor
time that it takes to plan them, against the time that the same rounds wait for the database; medians, below 1
is the aim. Beside it all that the round computes, which is mostly rows out of and into the driver.

Then ten years of `*/5 * * * *`, listed and counted, with the most memory that ten and twenty years held; and
for rare expressions the months that a search looks at.
"""

import argparse
import json
import statistics
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from time import perf_counter, thread_time
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import psycopg
from croniter import croniter
from psycopg.types.json import Jsonb

from bench.ground import database_ground, make_schedules
from scheduler.clock import database_now
from scheduler.core.cron import CronExpression
from scheduler.core.triggers import Trigger, parse_trigger
from scheduler.core.walltime import WallClock
from scheduler.processes import tick
from scheduler.processes.ownership import Ownership
from scheduler.processes.tick import Tick
from scheduler.store.statements import Connection

ZONE = "Europe/Berlin"
START = datetime(2026, 1, 1, tzinfo=UTC)
EXPRESSIONS = (
    "* * * * *",
    "*/15 * * * *",
    "0 */2 * * *",
    "30 2 * * *",
    "0 9 * * 1-5",
    "15 10 L * *",
    "0 0 1 1 *",
    "0 12 1,15 * WED",
)
ROUNDS, CALLS = 9, 40
SCHEDULES, DISTINCT = 1000, 50
AIM = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Microseconds per call (medians over the rounds), and ours divided by croniter's."""

    expression: str
    way: str
    ours_us: float
    croniter_us: float
    ratio: float


def measure(expressions: Sequence[str] = EXPRESSIONS) -> Iterator[Figure]:
    for expression in expressions:
        trigger = cron(expression)
        yield _figure(expression, "walk", partial(_walk, trigger), partial(_walk_croniter, expression))
        yield _figure(expression, "jump", partial(_jump, trigger), partial(_jump_croniter, expression))


def cron(expression: str) -> Trigger:
    return parse_trigger({"cron": {"expressions": [expression], "timezone": ZONE}})


def _figure(expression: str, way: str, ours: Callable[[], float], theirs: Callable[[], float]) -> Figure:
    pairs = [(ours(), theirs()) for _ in range(1 + ROUNDS)][1:]
    ours_us, croniter_us = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    return Figure(
        expression=expression, way=way, ours_us=ours_us, croniter_us=croniter_us, ratio=ours_us / croniter_us
    )


def _per_call(call: Callable[[int], object]) -> float:
    begin = thread_time()
    for index in range(CALLS):
        call(index)
    return (thread_time() - begin) / CALLS


def _walk(trigger: Trigger) -> float:
    at = START

    def step(_: int) -> None:
        nonlocal at
        at = trigger.next_after(at) or START

    return _per_call(step)


def _walk_croniter(expression: str) -> float:
    schedule = croniter(expression, START.astimezone(ZoneInfo(ZONE)))
    return _per_call(lambda _: schedule.get_next(datetime))


def _scattered(index: int) -> datetime:
    return START + timedelta(minutes=index * 7919 % 525600)


def _jump(trigger: Trigger) -> float:
    return _per_call(lambda index: trigger.next_after(_scattered(index)))


def _jump_croniter(expression: str) -> float:
    zone = ZoneInfo(ZONE)
    schedule = croniter(expression, START.astimezone(zone))
    return _per_call(lambda index: schedule.get_next(datetime, start_time=_scattered(index).astimezone(zone)))


# A tick's round ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Milliseconds of a round, medians: this process's processor time, and its wait for the database."""

    schedules: int
    planning_ms: float
    computing_ms: float
    database_ms: float

    @property
    def planning_ratio(self) -> float:
        return self.planning_ms / self.database_ms

    @property
    def computing_ratio(self) -> float:
        return self.computing_ms / self.database_ms


class BatchBench:
    """Schedules that are made due at once, again and again; each fires daily, half a day from now."""

    def __init__(self, connection: Connection, *, schedules: int = SCHEDULES) -> None:
        self.connection = connection
        self.now = database_now(connection).replace(microsecond=0)
        self.moments = (self.now - timedelta(seconds=number) for number in count(1))
        self.schedules = make_schedules(connection, schedules, every_s=86400, anchor=self.now)
        self._give_expressions()
        everything = range(256)
        ownership = Ownership("tick", shard_count=256, wanted=everything, lease_s=6, ignore=True)
        self.tick = Tick(ownership, look_ahead_s=10, batch=schedules)

    def measure(self, *, rounds: int = ROUNDS) -> Batch:
        taken = [self.round() for _ in range(1 + rounds)][1:]
        planning, computing, database = (
            statistics.median(column) * 1e3 for column in zip(*taken, strict=True)
        )
        return Batch(
            schedules=len(self.schedules),
            planning_ms=planning,
            computing_ms=computing,
            database_ms=database,
        )

    def round(self) -> tuple[float, float, float]:
        """Seconds of planning, of computing (planning included) and of waiting for the database."""
        moment = next(self.moments)
        self.connection.execute(b"UPDATE schedule SET next_due_at = %s", [moment])
        with _stopwatch(tick, "plan_move") as planning, _stopwatch(psycopg.Connection, "wait") as database:
            begin = thread_time()
            report = self.tick.run_once(self.connection, self.now)
            computing_s = thread_time() - begin
        assert report.counts["occurrences"] == len(self.schedules)
        self.connection.execute(b"TRUNCATE outbox, occurrence")
        return planning.computing_s, computing_s, database.waiting_s

    def _give_expressions(self) -> None:
        half_a_day_on = self.now.astimezone(ZoneInfo(ZONE)) + timedelta(hours=12)
        times = [half_a_day_on + timedelta(minutes=number) for number in range(DISTINCT)]
        expressions = [f"{local.minute} {local.hour} * * *" for local in times]
        triggers = [{"cron": {"expressions": [expression], "timezone": ZONE}} for expression in expressions]
        chosen = [Jsonb(triggers[number % DISTINCT]) for number in range(len(self.schedules))]
        self.connection.execute(_GIVE, [self.schedules, chosen])


_GIVE = b"""
UPDATE schedule_revision r SET trigger = given.trigger
FROM unnest(%s::uuid[], %s::jsonb[]) AS given(id, trigger)
WHERE r.schedule_id = given.id
"""


@dataclass(kw_only=True, slots=True)
class Stopwatch:
    computing_s: float = 0.0
    waiting_s: float = 0.0


@contextmanager
def _stopwatch(owner: Any, name: str) -> Iterator[Stopwatch]:
    """What the calls of `owner.name` take: processor time of this thread, and the rest, which is waiting."""
    taken, timed = Stopwatch(), getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        begin, computed = perf_counter(), thread_time()
        try:
            return timed(*arguments, **options)
        finally:
            computing_s = thread_time() - computed
            taken.computing_s += computing_s
            taken.waiting_s += perf_counter() - begin - computing_s

    with patch.object(owner, name, call):
        yield taken


def batch() -> Batch:
    with database_ground() as database_url, psycopg.connect(database_url, autocommit=True) as connection:
        return BatchBench(connection).measure()


# Long listings, rare expressions ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """`unit` of `what`, once."""

    what: str
    value: float
    unit: str


def loads() -> Iterator[Load]:
    every_five_minutes = cron("*/5 * * * *")
    listing, counting = (partial(work, every_five_minutes, _years(10)) for work in (_list, _count))
    yield Load(what="list 10 years of */5 * * * *", value=_per_run_ms(listing), unit="ms")
    yield Load(what="count 10 years of */5 * * * *", value=_per_run_ms(counting), unit="ms")
    for years in (10, 20):
        what = f"memory that a listing of {years} years held at most"
        yield Load(what=what, value=held_kib(every_five_minutes, years), unit="KiB")
    for expression in RARE:
        yield Load(what=f"months looked at for {expression}", value=months_looked_at(expression), unit="")


RARE = ("0 0 29 2 *", "0 0 29 2 MON#5", "0 0 31W * *", "59 23 L-30 * *", "0 0 29 2 5L")


def _years(count: int) -> datetime:
    return START.replace(year=START.year + count)


def _list(trigger: Trigger, end: datetime) -> None:
    deque(trigger.between(START, end), maxlen=0)


def _count(trigger: Trigger, end: datetime) -> None:
    trigger.count_between(START, end)


def _per_run_ms(work: Callable[[], None]) -> float:
    begin = thread_time()
    work()
    return (thread_time() - begin) * 1e3


def held_kib(trigger: Trigger, years: int) -> float:
    """At the peak of a run by a fresh clock, after one that has filled the shared memos of dates."""
    _list(trigger, _years(years))
    assert isinstance(trigger.rule, WallClock)
    fresh = replace(trigger, rule=replace(trigger.rule))
    tracemalloc.start()
    _list(fresh, _years(years))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1024


def months_looked_at(expression: str) -> int:
    """From one instant to the next: the most of ten steps."""
    trigger = cron(expression)
    most, at = 0, START
    for _ in range(10):
        with patch.object(CronExpression, "_days", autospec=True, side_effect=_DAYS) as counted:
            at = trigger.next_after(at) or START
        most = max(most, counted.call_count)
    return most


_DAYS = CronExpression._days


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.time", description="What the core costs, as ratios.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    as_json = parser.parse_args(arguments).json
    figures, round_, once = list(measure()), batch(), list(loads())
    if as_json:
        document = {"bench": "time", "aim": AIM, "figures": [asdict(figure) for figure in figures]}
        print(json.dumps({**document, "batch": asdict(round_), "loads": [asdict(load) for load in once]}))
        return 0
    for figure in figures:
        print(
            f"{figure.expression:18} {figure.way}  {figure.ours_us:7.1f} us"
            f"  croniter {figure.croniter_us:7.1f} us  ratio {figure.ratio:.3f}"
        )
    print(f"worst ratio {max(figure.ratio for figure in figures):.3f}, aim {AIM}")
    print(
        f"a tick's round over {round_.schedules} schedules: database {round_.database_ms:.1f} ms;"
        f" planning {round_.planning_ms:.1f} ms, ratio {round_.planning_ratio:.2f};"
        f" all computing {round_.computing_ms:.1f} ms, ratio {round_.computing_ratio:.2f}"
    )
    for load in once:
        print(f"{load.what:45} {load.value:10.1f} {load.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
