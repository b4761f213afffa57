"""What the core costs: next_after against croniter, a tick's batch, a long listing, the worst expressions.

    python -m bench.time [--json]

Prints, for each expression, the median time per call of next_after and of croniter's get_next on the same
instants, interleaved in the same run, and the ratio of the two; below 0.2 is the aim.
"Walk" goes from instant to instant as a schedule does, "jump" asks from scattered instants as a page does.
Processor time of the thread, so that a busy machine shows the same ratios; the first round only warms caches.

Then: planning 1,000 due schedules over 50 expressions, as a tick does before its one statement; ten years of
`*/5 * * * *`, listed and counted, with the most memory that it held; and for rare expressions the months that
a search looks at.
"""

import argparse
import json
import statistics
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import thread_time
from unittest.mock import patch
from uuid import uuid4
from zoneinfo import ZoneInfo

from croniter import croniter

from scheduler.core.cron import CronExpression
from scheduler.core.materialise import DueSchedule, plan_move
from scheduler.core.triggers import Trigger, parse_trigger

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
AIM = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Microseconds per call (medians over the rounds), and ours divided by croniter's."""

    expression: str
    way: str
    ours_us: float
    croniter_us: float
    ratio: float


def measure() -> Iterator[Figure]:
    for expression in EXPRESSIONS:
        trigger = parse_trigger({"cron": {"expressions": [expression], "timezone": ZONE}})
        yield _figure(expression, "walk", partial(_walk, trigger), partial(_walk_croniter, expression))
        yield _figure(expression, "jump", partial(_jump, trigger), partial(_jump_croniter, expression))


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """`unit` of `what`, once."""

    what: str
    value: float
    unit: str


def loads() -> Iterator[Load]:
    yield Load(what="plan 1,000 schedules over 50 expressions", value=_batch_ms(), unit="ms")
    listed_s, grown_kib = _ten_years()
    yield Load(what="list 10 years of */5 * * * *", value=listed_s * 1e3, unit="ms")
    yield Load(what="memory that the listing held at most", value=grown_kib, unit="KiB")
    yield Load(what="count 10 years of */5 * * * *", value=_count_ms(), unit="ms")
    for expression in RARE:
        yield Load(what=f"months looked at for {expression}", value=_probes(expression), unit="")


RARE = ("0 0 29 2 *", "0 0 29 2 MON#5", "0 0 31W * *", "59 23 L-30 * *", "0 0 29 2 5L")


def _batch_ms() -> float:
    now = START + timedelta(days=40)
    expressions = [f"{minute} {minute % 24} * * *" for minute in range(50)]
    batch = [_due(expressions[number % 50], now) for number in range(1000)]
    begin = thread_time()
    for schedule in batch:
        plan_move(schedule, now=now, look_ahead_s=10, limit=100, new_id=lambda due_at: _ANY_ID)
    return (thread_time() - begin) * 1e3


def _due(expression: str, now: datetime) -> DueSchedule:
    trigger = {"cron": {"expressions": [expression], "timezone": ZONE}}
    return DueSchedule(
        id=uuid4(),
        tenant_id=uuid4(),
        shard=0,
        revision=1,
        next_due_at=now,
        trigger=trigger,
        start_at=None,
        end_at=None,
        exclusions=[],
        on_excluded="skip",
        calendars={},
        mode="fixed_rate",
        max_occurrences=None,
        counted_runs=None,
        flexible_window_s=0,
        catch_up="run_latest_only",
        catch_up_limit=100,
        catch_up_window_s=None,
        catch_up_after_s=60,
        overlap="skip",
    )


def _every_five_minutes() -> Trigger:
    return parse_trigger({"cron": {"expressions": ["*/5 * * * *"], "timezone": ZONE}})


def _ten_years() -> tuple[float, float]:
    """Seconds to run through them, and KiB at the peak of a second run that is traced."""
    trigger, end = _every_five_minutes(), START.replace(year=START.year + 10)
    begin = thread_time()
    deque(trigger.between(START, end), maxlen=0)
    seconds = thread_time() - begin
    tracemalloc.start()
    deque(trigger.between(START, end), maxlen=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak / 1024


def _count_ms() -> float:
    trigger, end = _every_five_minutes(), START.replace(year=START.year + 10)
    begin = thread_time()
    trigger.count_between(START, end)
    return (thread_time() - begin) * 1e3


def _probes(expression: str) -> int:
    """From one instant to the next: the most of ten steps."""
    trigger = parse_trigger({"cron": {"expressions": [expression], "timezone": ZONE}})
    most, at = 0, START
    for _ in range(10):
        with patch.object(CronExpression, "_days", autospec=True, side_effect=_DAYS) as counted:
            at = trigger.next_after(at) or START
        most = max(most, counted.call_count)
    return most


_DAYS = CronExpression._days
_ANY_ID = uuid4()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="next_after against croniter")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    as_json = parser.parse_args(arguments).json
    figures, once = list(measure()), list(loads())
    if as_json:
        document = {"bench": "time", "aim": AIM, "figures": [asdict(figure) for figure in figures]}
        print(json.dumps({**document, "loads": [asdict(load) for load in once]}))
    else:
        for figure in figures:
            print(
                f"{figure.expression:18} {figure.way}  {figure.ours_us:7.1f} us"
                f"  croniter {figure.croniter_us:7.1f} us  ratio {figure.ratio:.3f}"
            )
        print(f"worst ratio {max(figure.ratio for figure in figures):.3f}, aim {AIM}")
        for load in once:
            print(f"{load.what:45} {load.value:10.1f} {load.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
