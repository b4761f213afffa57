"""What users of other schedulers reported about time (reports.jsonl), asked of this one.

The reports about processes, brokers and pages are tested where those live; a report with several sides is
tested on each.
"""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler.core.catchup import Plan, plan
from scheduler.core.triggers import Trigger, TriggerError, parse_trigger
from tests.core import cases
from tests.core.cases import instant, instants

REPORTS = {report["id"]: report for report in cases.lines("reports.jsonl")}
CALCULATIONS = {key: report for key, report in REPORTS.items() if "expected_utc" in report["right_answer"]}
VALIDATIONS = [
    (key, expression)
    for key, report in REPORTS.items()
    if report["input"]["op"] == "validate"
    for expression in report["input"]["crons"]
]
POLICIES = [
    (key, name, expected)
    for key, report in CALCULATIONS.items()
    for name, expected in report["right_answer"].get("other_policies", {}).items()
]
LONG_NAMES = {"shift": "shift_forward", "skip": "skip"}


def cron(expression: str, zone: str = "UTC", **more: Any) -> dict[str, Any]:
    return {"cron": {"expressions": [expression], "timezone": zone, **more}}


def _trigger(question: dict[str, Any], policy: dict[str, str]) -> Trigger:
    return parse_trigger(
        cron(question["cron"], question["tz"], dst=policy, day_match=question.get("day_match", "either"))
    )


def _answer(trigger: Trigger, question: dict[str, Any], count: int) -> list[datetime | None]:
    base = instant(question["base_utc"])
    if question["op"] == "window":
        return list(trigger.between(base, instant(question["end_utc"])))
    found: list[datetime | None] = []
    at: datetime | None = base if question["op"] == "next" else base - timedelta(microseconds=1)
    while len(found) < count and at is not None:
        if question["op"] == "next":
            at = trigger.next_after(at)
            found.append(at)
        else:
            found.append(trigger.previous_at_or_before(at))
            at = found[-1] - timedelta(microseconds=1) if found[-1] else None
    return found


@pytest.mark.parametrize("key", sorted(CALCULATIONS))
def test_reported_calculation(key: int) -> None:
    question, right = REPORTS[key]["input"], instants(REPORTS[key]["right_answer"]["expected_utc"])
    assert _answer(_trigger(question, question["policy"]), question, len(right)) == right


@pytest.mark.parametrize(("key", "name", "expected"), POLICIES, ids=[f"{k}-{n}" for k, n, _ in POLICIES])
def test_reported_calculation_under_another_policy(key: int, name: str, expected: list[str]) -> None:
    nonexistent, repeated = name.split("/")
    policy = {"nonexistent": LONG_NAMES[nonexistent], "repeated": repeated}
    question, right = REPORTS[key]["input"], instants(expected)
    assert _answer(_trigger(question, policy), question, len(right)) == right


@pytest.mark.parametrize(("key", "expression"), VALIDATIONS)
def test_reported_text_is_refused_with_field_and_position(key: int, expression: str) -> None:
    with pytest.raises(TriggerError) as refused:
        parse_trigger(cron(expression))
    assert refused.value.field == "trigger.cron.expressions.0"
    says_where = "position" in refused.value.detail
    says_which_form = "five fields" in refused.value.detail
    assert says_where or says_which_form


def test_every_report_that_is_a_calculation_is_asked() -> None:
    calculations = {key for key, report in REPORTS.items() if report["input"]["op"] != "sequence"}
    assert calculations == CALCULATIONS.keys() | {key for key, _ in VALIDATIONS} | {60}


def test_60_the_zone_of_the_process_does_not_matter() -> None:
    question = REPORTS[60]["input"]
    script = (
        "from datetime import datetime; from scheduler.core.triggers import parse_trigger\n"
        f"t = parse_trigger({cron(question['cron'], question['tz'])!r})\n"
        f"a = t.next_after(datetime.fromisoformat({question['base_utc']!r}))\n"
        "print(a.isoformat(), t.next_after(a).isoformat())"
    )
    environment = os.environ | question["process_env"]
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["2022-10-30T01:30:00+00:00", "2022-10-31T01:30:00+00:00"]


def test_69_two_materialisations_name_the_same_instants() -> None:
    daily = parse_trigger(cron("0 1 * * *", "Europe/London", dst={"repeated": "first"}))
    end = instant("2022-11-04T00:00:00Z")
    first = set(daily.between(instant("2022-10-28T00:00:00Z"), end))
    again = set(daily.between(instant("2022-10-30T00:30:00Z"), end))
    assert again < first
    of_the_day = [found for found in first if found.date().isoformat() == "2022-10-30"]
    assert of_the_day == [instant("2022-10-30T00:00:00Z")]


def test_94_an_edit_looks_forward_only() -> None:
    edited = parse_trigger(cron("0 6,18 * * *"))
    assert edited.next_after(instant("2026-12-01T12:00:00Z")) == instant("2026-12-01T18:00:00Z")


def test_115_an_interval_longer_than_the_time_between_restarts_still_fires() -> None:
    every_six_hours = {"interval": {"every_s": 6 * 3600, "anchor": "2026-12-01T00:00:00Z"}}
    restarts = [instant("2026-12-01T00:00:00Z") + timedelta(minutes=30) * index for index in range(48)]
    found = {parse_trigger(every_six_hours).next_after(restart) for restart in restarts}
    hours = ["2026-12-01T06:00:00Z", "2026-12-01T12:00:00Z", "2026-12-01T18:00:00Z", "2026-12-02T00:00:00Z"]
    assert found == set(instants(hours))


def test_117_an_interval_does_not_drift_by_its_own_latency() -> None:
    start = instant("2026-12-01T00:00:00Z")
    every_ten_seconds = parse_trigger({"interval": {"every_s": 10, "anchor": "2026-12-01T00:00:00Z"}})
    found, now = [], start
    while (due := every_ten_seconds.next_after(now)) is not None and due <= start + timedelta(hours=1):
        found.append(due)
        now = due + timedelta(seconds=0.3)
    assert found == [start + timedelta(seconds=10) * index for index in range(1, 361)]


def test_121_a_new_zone_counts_from_the_edit_on() -> None:
    moved = parse_trigger(cron("0 9 * * *", "America/New_York"))
    assert moved.next_after(instant("2026-12-01T10:00:00Z")) == instant("2026-12-01T14:00:00Z")


def test_122_a_daily_job_in_a_zone_behind_fires_once_a_day() -> None:
    daily = parse_trigger(cron("0 9 * * *", "America/New_York"))
    day = daily.between(instant("2026-12-01T00:00:00Z"), instant("2026-12-02T00:00:00Z"))
    assert list(day) == [instant("2026-12-01T14:00:00Z")]


def test_127_a_start_in_the_past_makes_nothing_due() -> None:
    trigger = parse_trigger(cron("0 15 * * *"), start_at=instant("2026-12-01T13:58:00Z"))
    assert trigger.next_after(instant("2026-12-01T14:00:00Z")) == instant("2026-12-01T15:00:00Z")


def _after_downtime(trigger: Trigger, due: str, now: str, catch_up: str) -> Plan:
    return plan(
        trigger,
        next_due_at=instant(due),
        now=instant(now),
        look_ahead_s=10,
        catch_up=catch_up,
        catch_up_limit=100,
        catch_up_window_s=None,
        catch_up_after_s=60,
        batch_limit=1000,
    )


@pytest.mark.parametrize(("catch_up", "runs"), [("skip", 0), ("run_latest_only", 1)])
def test_106_a_late_hourly_run_is_marked_and_the_next_is_on_time(catch_up: str, runs: int) -> None:
    hourly = parse_trigger(cron("0 * * * *"))
    planned = _after_downtime(hourly, "2026-12-01T01:00:00Z", "2026-12-01T01:55:00Z", catch_up)
    (row,) = planned.occurrences
    assert (row.due_at, row.overdue) == (instant("2026-12-01T01:00:00Z"), True)
    assert (row.skip_reason is None) == bool(runs)
    assert planned.next_due_at == instant("2026-12-01T02:00:00Z")


def test_110_half_an_hour_down_makes_one_run_by_default() -> None:
    every_minute = parse_trigger(cron("* * * * *"))
    planned = _after_downtime(every_minute, "2026-12-01T00:01:00Z", "2026-12-01T00:30:05Z", "run_latest_only")
    (row,) = planned.occurrences
    assert (row.due_at, row.coalesced) == (instant("2026-12-01T00:30:00Z"), 30)
    assert row.coalesced_from == instant("2026-12-01T00:01:00Z")
    assert planned.next_due_at == instant("2026-12-01T00:31:00Z")
