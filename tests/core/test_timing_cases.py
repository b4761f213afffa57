"""Every line of timing.jsonl (by tests/support/timing_oracle.py): as a list, step by step, and backwards."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler.core.triggers import Trigger, parse_trigger
from tests.core import cases

MICROSECOND = timedelta(microseconds=1)
LINES = cases.lines("timing.jsonl")


def _read(line: dict[str, Any]) -> tuple[Trigger, datetime, datetime, list[datetime]]:
    bounds = {key: line[key] for key in ("start_at", "end_at", "exclusions", "on_excluded") if key in line}
    start, end = cases.instant(line["start"]), cases.instant(line["end"])
    return parse_trigger(line["trigger"], **bounds), start, end, cases.instants(line["expected"])


@pytest.mark.parametrize("kind", ["once", "cron", "interval", "rrule"])
def test_every_kind_has_cases(kind: str) -> None:
    assert sum(kind in line["trigger"] for line in LINES) >= 20


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_all_three_ways_give_the_expected_instants(line: dict[str, Any]) -> None:
    trigger, start, end, expected = _read(line)
    assert list(trigger.between(start, end)) == expected
    assert trigger.count_between(start, end) == len(expected)
    assert _walked(trigger, start, end) == expected
    assert _walked_back(trigger, start, end) == expected[::-1]


def _walked(trigger: Trigger, start: datetime, end: datetime) -> list[datetime]:
    found = []
    at = trigger.next_after(start - MICROSECOND)
    while at is not None and at < end:
        found.append(at)
        at = trigger.next_after(at)
    return found


def _walked_back(trigger: Trigger, start: datetime, end: datetime) -> list[datetime]:
    found = []
    at = trigger.previous_at_or_before(end - MICROSECOND)
    while at is not None and at >= start:
        found.append(at)
        at = trigger.previous_at_or_before(at - MICROSECOND)
    return found
