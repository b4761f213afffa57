"""next_after against croniter's get_next: the same expressions and instants, in the same run, interleaved.

    python -m bench.time [--json]

Prints, for each expression, the median time per call of both and the ratio of the two; below 0.2 is the aim.
"Walk" goes from instant to instant as a schedule does, "jump" asks from scattered instants as a page does.
Processor time of the thread, so that a busy machine shows the same ratios; the first round only warms caches.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import thread_time
from zoneinfo import ZoneInfo

from croniter import croniter  # type: ignore[import-untyped]

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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="next_after against croniter")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    as_json = parser.parse_args(arguments).json
    figures = list(measure())
    if as_json:
        print(json.dumps({"bench": "time", "aim": AIM, "figures": [asdict(figure) for figure in figures]}))
    else:
        for figure in figures:
            print(
                f"{figure.expression:18} {figure.way}  {figure.ours_us:7.1f} us"
                f"  croniter {figure.croniter_us:7.1f} us  ratio {figure.ratio:.3f}"
            )
        print(f"worst ratio {max(figure.ratio for figure in figures):.3f}, aim {AIM}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
