"""The catch-up plan: every instant accounted for exactly once, whatever the outage and the policy."""

import time
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.catchup import Plan, PlannedOccurrence, plan
from scheduler.core.triggers import Trigger, parse_trigger

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def every(seconds: int) -> Trigger:
    return parse_trigger({"interval": {"every_s": seconds, "anchor": "2026-01-01T00:00:00Z"}})


def planned(trigger: Trigger, due: datetime, now: datetime, **policy: Any) -> Plan:
    defaults = {
        "look_ahead_s": 10,
        "catch_up": "run_latest_only",
        "catch_up_limit": 100,
        "catch_up_window_s": None,
        "catch_up_after_s": 60,
        "batch_limit": 1000,
    }
    return plan(trigger, next_due_at=due, now=now, **(defaults | policy))


def test_nothing_is_planned_beyond_the_look_ahead() -> None:
    assert planned(every(60), NOON, NOON - 11 * SECOND) == Plan(occurrences=(), next_due_at=NOON)


def test_instants_inside_the_look_ahead_are_ordinary_rows() -> None:
    result = planned(every(5), NOON, NOON - 10 * SECOND)
    assert result == Plan(occurrences=(PlannedOccurrence(due_at=NOON),), next_due_at=NOON + 5 * SECOND)


def test_an_instant_is_not_missed_until_more_than_the_grace_has_passed() -> None:
    on_the_edge = planned(every(3600), NOON, NOON + 60 * SECOND)
    assert on_the_edge.occurrences == (PlannedOccurrence(due_at=NOON),)
    beyond = planned(every(3600), NOON, NOON + 61 * SECOND)
    assert [row.overdue for row in beyond.occurrences] == [True]


def test_one_missed_instant_takes_all_up_to_now_with_it() -> None:
    result = planned(every(60), NOON, NOON + 30 * MINUTE + SECOND)
    (row,) = result.occurrences
    assert row == PlannedOccurrence(
        due_at=NOON + 30 * MINUTE, overdue=True, coalesced=31, coalesced_from=NOON
    )
    assert result.next_due_at == NOON + 31 * MINUTE


def test_what_is_newly_due_after_a_catch_up_is_ordinary() -> None:
    result = planned(every(60), NOON, NOON + 30 * MINUTE - 5 * SECOND)
    late, ordinary = result.occurrences
    assert (late.due_at, late.coalesced) == (NOON + 29 * MINUTE, 30)
    assert ordinary == PlannedOccurrence(due_at=NOON + 30 * MINUTE)


def test_skip_leaves_one_row_that_carries_the_count() -> None:
    (row,) = planned(every(60), NOON, NOON + 30 * MINUTE, catch_up="skip").occurrences
    assert (row.skip_reason, row.coalesced, row.coalesced_from) == ("missed", 31, NOON)


def test_run_all_runs_each_in_order() -> None:
    rows = planned(every(60), NOON, NOON + 5 * MINUTE, catch_up="run_all").occurrences
    assert [row.due_at for row in rows] == [NOON + MINUTE * index for index in range(6)]
    assert all(row.overdue and row.coalesced == 0 for row in rows)


def test_run_all_collapses_what_is_beyond_the_limit_into_the_oldest_kept() -> None:
    rows = planned(every(60), NOON, NOON + 9 * MINUTE, catch_up="run_all", catch_up_limit=3).occurrences
    assert [row.due_at for row in rows] == [NOON + MINUTE * index for index in (7, 8, 9)]
    assert [(row.coalesced, row.coalesced_from) for row in rows] == [(8, NOON), (0, None), (0, None)]


@pytest.mark.parametrize("catch_up", ["run_latest_only", "run_all"])
def test_instants_older_than_the_window_are_skipped(catch_up: str) -> None:
    policy = {"catch_up": catch_up, "catch_up_window_s": 120}
    skipped, *rows = planned(every(60), NOON, NOON + 9 * MINUTE, **policy).occurrences
    assert (skipped.skip_reason, skipped.coalesced) == ("missed", 7)
    assert (skipped.due_at, skipped.coalesced_from) == (NOON + 6 * MINUTE, NOON)
    assert sum(max(1, row.coalesced) for row in rows) == 3
    assert rows[-1].due_at == NOON + 9 * MINUTE


def test_a_stored_instant_off_the_grid_is_due_all_the_same() -> None:
    result = planned(every(60), NOON + 7 * SECOND, NOON + 7 * SECOND)
    assert [row.due_at for row in result.occurrences] == [NOON + 7 * SECOND]
    assert result.next_due_at == NOON + MINUTE


def test_the_last_instant_leaves_nothing_due() -> None:
    once = parse_trigger({"once": {"at": "2026-12-01T12:00:00Z"}})
    assert planned(once, NOON, NOON).next_due_at is None
    assert planned(once, NOON, NOON + timedelta(days=3)).next_due_at is None


def test_a_full_batch_stands_at_the_first_instant_not_yet_planned() -> None:
    result = planned(every(60), NOON, NOON + 9 * MINUTE, catch_up="run_all", batch_limit=4)
    assert len(result.occurrences) == 4
    assert result.next_due_at == NOON + 4 * MINUTE


@pytest.mark.parametrize("catch_up", ["run_latest_only", "run_all", "skip"])
@pytest.mark.parametrize("seconds", [1, 5])
def test_a_long_outage_of_a_short_interval_is_bounded_work(catch_up: str, seconds: int) -> None:
    begin = time.thread_time()
    result = planned(every(seconds), NOON, NOON + timedelta(days=365), catch_up=catch_up)
    assert time.thread_time() - begin < 0.1
    counted = sum(max(1, row.coalesced) for row in result.occurrences if row.overdue)
    assert counted == 365 * 86400 // seconds + 1


TRIGGERS: list[dict[str, Any]] = [
    {"interval": {"every_s": 37, "anchor": "2026-01-01T00:00:00Z"}},
    {"interval": {"every_s": 3600, "anchor": "2026-01-01T00:00:00Z"}},
    {"cron": {"expressions": ["*/7 * * * *", "0 12 * * *"], "timezone": "Europe/Berlin"}},
    {"cron": {"expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"}},
    {"once": {"at": "2026-10-25T00:30:00Z"}},
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TRIGGERS),
    st.lists(st.integers(1, 5 * 3600), min_size=1, max_size=6),
    st.sampled_from(["run_latest_only", "run_all", "skip"]),
    st.integers(1, 8),
    st.none() | st.integers(60, 7200),
    st.integers(1, 30),
)
def test_round_by_round_no_instant_is_lost_or_doubled(
    trigger_object: dict[str, Any],
    pauses_s: list[int],
    catch_up: str,
    catch_up_limit: int,
    catch_up_window_s: int | None,
    batch_limit: int,
) -> None:
    """Rows cover consecutive, disjoint stretches of instants, up to where the plan says it stands."""
    trigger = parse_trigger(trigger_object)
    now = datetime(2026, 10, 24, 22, tzinfo=UTC)  # three hours before Berlin's clock goes back
    due = trigger.next_after(now)
    rows: list[PlannedOccurrence] = []
    first = due
    for pause_s in pauses_s:
        now += timedelta(seconds=pause_s)
        if due is None:
            break
        result = planned(
            trigger,
            due,
            now,
            catch_up=catch_up,
            catch_up_limit=catch_up_limit,
            catch_up_window_s=catch_up_window_s,
            batch_limit=batch_limit,
        )
        assert len(result.occurrences) <= batch_limit
        rows.extend(result.occurrences)
        due = result.next_due_at
    assert first is not None
    end = due or now + timedelta(days=1)
    nominal = list(takewhile(lambda instant: instant < end, trigger.between(first, end)))
    covered = [instant for row in rows for instant in _covered(row, trigger)]
    assert covered == nominal


def _covered(row: PlannedOccurrence, trigger: Trigger) -> list[datetime]:
    found = list(trigger.between(row.first_instant, row.due_at + timedelta(microseconds=1)))
    assert len(found) == max(1, row.coalesced)
    return found
