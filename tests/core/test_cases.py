"""Every line of dst.jsonl and dst_auto.jsonl: read as a list, step by step, and backwards."""

from datetime import timedelta
from typing import Any

import pytest

from scheduler.core.triggers import Trigger, TriggerError, parse_trigger
from tests.core import cases
from tests.support import oracle

MICROSECOND = timedelta(microseconds=1)
LINES = {line["id"]: line for name in ("dst.jsonl", "dst_auto.jsonl") for line in cases.lines(name)}
FIRING = {key: line for key, line in LINES.items() if "never_fires" not in line["tags"]}
CHECKSUMS = {
    "dst.jsonl": "935adfbf991edd678c001a0cad7c20cccdb5da0e2949c0848802a97851a2e7a9",
    "dst_auto.jsonl": "2415cd11eaa17b29f732a27a420f1ed348a7502a5a28a7a715b598a32b9f0fad",
    "reports.jsonl": "37250a63f005c518245706e74d422a0671561c4d9e5dca17f2a2191df16172af",
}


def _read(line: dict[str, Any]) -> tuple[Trigger, Any, Any, list[Any]]:
    start, end = cases.instant(line["start"]), cases.instant(line["end"])
    return parse_trigger(line["trigger"]), start, end, cases.instants(line["expected"])


@pytest.mark.parametrize("line", FIRING.values(), ids=FIRING.keys())
def test_between_lists_exactly_the_expected_instants(line: dict[str, Any]) -> None:
    trigger, start, end, expected = _read(line)
    assert list(trigger.between(start, end)) == expected
    assert trigger.count_between(start, end) == len(expected)


@pytest.mark.parametrize("line", FIRING.values(), ids=FIRING.keys())
def test_next_after_walks_through_the_expected_instants(line: dict[str, Any]) -> None:
    trigger, start, end, expected = _read(line)
    walked = []
    instant = trigger.next_after(start - MICROSECOND)
    while instant is not None and instant < end:
        walked.append(instant)
        instant = trigger.next_after(instant)
    assert walked == expected


@pytest.mark.parametrize("line", FIRING.values(), ids=FIRING.keys())
def test_previous_at_or_before_walks_back_through_them(line: dict[str, Any]) -> None:
    trigger, start, end, expected = _read(line)
    walked = []
    instant = trigger.previous_at_or_before(end - MICROSECOND)
    while instant is not None and instant >= start:
        walked.append(instant)
        instant = trigger.previous_at_or_before(instant - MICROSECOND)
    assert walked[::-1] == expected


@pytest.mark.parametrize("key", sorted(LINES.keys() - FIRING.keys()))
def test_what_never_fires_is_refused(key: str) -> None:
    assert LINES[key]["expected"] == []
    with pytest.raises(TriggerError, match="never fires") as refused:
        parse_trigger(LINES[key]["trigger"])
    assert (refused.value.code, refused.value.field) == ("never_fires", "trigger.cron.expressions.0")


@pytest.mark.parametrize("key", sorted(FIRING)[::40])
def test_the_oracle_agrees_with_the_cases(key: str) -> None:
    line = FIRING[key]
    cron = line["trigger"]["cron"]
    start, end = cases.instant(line["start"]), cases.instant(line["end"])
    end = min(end, start + timedelta(days=20))  # the oracle asks every minute
    found = oracle.instants(
        cron["expressions"], cron["timezone"], start, end, day_match=cron["day_match"], **cron["dst"]
    )
    assert found == [instant for instant in cases.instants(line["expected"]) if instant < end]


@pytest.mark.parametrize("name", sorted(CHECKSUMS))
def test_the_copy_of_the_cases_is_the_published_one(name: str) -> None:
    assert cases.checksum(cases.FOLDER / name) == CHECKSUMS[name]
    published = cases.UPSTREAM / name
    assert not published.exists() or cases.checksum(published) == CHECKSUMS[name]


def test_no_line_is_left_out() -> None:
    counts = [len(cases.lines(name)) for name in ("dst.jsonl", "dst_auto.jsonl", "reports.jsonl")]
    assert counts == [340, 300, 98]
    assert len(LINES) == 640
