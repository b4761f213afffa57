"""Decisions over a batch of due agenda rows."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler.core.overlap import Slot
from scheduler.core.release import Candidate, Decision, Verdict, decide
from scheduler.core.states import SkipReason

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SCHEDULE = uuid4()


def candidate(seconds_ago: float = 0.1, **fields: Any) -> Candidate:
    due_at = NOW - timedelta(seconds=seconds_ago)
    return Candidate(
        **{
            "row_id": 1,
            "row_at": due_at,
            "row_generation": 1,
            "run_id": uuid4(),
            "due_at": due_at,
            "state": "PENDING",
            "generation": 0,
            "dispatch_at": due_at,
            "schedule_id": SCHEDULE,
            "overlap": "allow",
            "buffer_limit": 1000,
            "origin": "schedule",
            "wait_reason": "due",
            "overdue": False,
            "target": "demo.record",
            "kind": "job",
            "catch_up": "run_latest_only",
            "catch_up_limit": 100,
            "catch_up_window_s": None,
            "catch_up_after_s": 60,
            "priority": "normal",
            "asked_anew": False,
            "started": False,
            "schedule_to_start_s": None,
            **fields,
        }
    )


def verdicts(*batch: Candidate, slots: dict[UUID, UUID | None] | None = None) -> list[tuple[str, str | None]]:
    taken = {schedule: Slot(holder=holder, holder_due_at=NOW) for schedule, holder in (slots or {}).items()}
    decided = {one.candidate.run_id: one for one in decide(batch, slots=taken, now=NOW).decisions}
    return [_short(decided.get(one.run_id)) for one in batch]


def _short(decision: Decision | None) -> tuple[str, str | None]:
    return (decision.verdict, decision.reason) if decision else ("later", None)


QUEUE, SKIP = (Verdict.QUEUE, None), (Verdict.SKIP, SkipReason.OVERLAP)
MISSED = (Verdict.SKIP, SkipReason.MISSED)


def test_due_rows_are_released() -> None:
    retry = candidate(state="RETRY_WAIT", wait_reason=None, generation=1, row_generation=2)
    assert verdicts(candidate(), retry) == [QUEUE, QUEUE]


def test_a_row_that_comes_too_early_waits() -> None:
    assert verdicts(candidate(dispatch_at=NOW + timedelta(seconds=1))) == [("later", None)]


def test_a_queued_run_is_published_again_by_its_own_row_alone() -> None:
    queued = candidate(state="QUEUED", wait_reason=None, generation=2, row_generation=2)
    older = candidate(state="QUEUED", wait_reason=None, generation=2, row_generation=1)
    assert verdicts(queued, older) == [(Verdict.PUBLISH, None), (Verdict.DROP, None)]


def test_rows_of_runs_that_went_on_are_dropped() -> None:
    for state in ("RUNNING", "SUCCEEDED", "CANCELLED"):
        assert verdicts(candidate(state=state, wait_reason=None, generation=1)) == [(Verdict.DROP, None)]


def test_the_slot_is_given_once_and_in_order_of_due_time() -> None:
    later, earlier = candidate(1, overlap="skip"), candidate(2, overlap="skip")
    assert verdicts(later, earlier, slots={SCHEDULE: None}) == [SKIP, QUEUE]


def test_a_held_slot_skips_and_a_retry_finds_itself_in_it() -> None:
    retry = candidate(state="RETRY_WAIT", wait_reason=None, generation=1, row_generation=2, overlap="skip")
    assert verdicts(retry, candidate(overlap="skip"), slots={SCHEDULE: retry.run_id}) == [QUEUE, SKIP]
    assert verdicts(candidate(overlap="skip"), slots={SCHEDULE: uuid4()}) == [SKIP]


def test_a_slot_that_somebody_has_locked_is_looked_at_later() -> None:
    assert verdicts(candidate(overlap="skip"), slots={}) == [("later", None)]


def test_what_was_missed_through_an_outage_runs_once_for_the_latest() -> None:
    batch = [candidate(90), candidate(61), candidate(30), candidate(1)]
    assert verdicts(*batch) == [MISSED, MISSED, MISSED, QUEUE]


def test_lateness_within_the_limit_misses_nothing() -> None:
    assert verdicts(candidate(59), candidate(30)) == [QUEUE, QUEUE]


def test_the_policy_skip_skips_the_latest_too() -> None:
    assert verdicts(candidate(90, catch_up="skip"), candidate(1, catch_up="skip")) == [MISSED, MISSED]


def test_runs_that_somebody_asked_for_are_never_missed() -> None:
    asked = candidate(900, origin="trigger")
    retry = candidate(900, state="RETRY_WAIT", wait_reason=None, generation=1, row_generation=2)
    assert verdicts(asked, retry) == [QUEUE, QUEUE]


def test_a_catch_up_run_is_not_missed_once_more() -> None:
    made_by_catch_up = candidate(900, overdue=True)
    assert verdicts(made_by_catch_up, candidate(1)) == [QUEUE, QUEUE]


def test_one_late_schedule_does_not_touch_another() -> None:
    assert verdicts(candidate(90), candidate(1), candidate(2, schedule_id=uuid4())) == [MISSED, QUEUE, QUEUE]


PROMISE = {"catch_up": "run_all", "buffer_limit": 1}


@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all", "cancel_running"])
def test_missed_runs_that_are_all_to_run_wait_in_line_whatever_the_policy_and_its_buffer(policy: str) -> None:
    """The last of them is not late by itself, but belongs to the catch-up."""
    missed = [candidate(seconds, overlap=policy, **PROMISE) for seconds in (90, 75, 61, 1)]
    batch = decide(missed, slots={SCHEDULE: Slot()}, now=NOW)
    assert [one.verdict for one in batch.decisions] == [Verdict.QUEUE, *[Verdict.PARK] * 3]
    assert {(one.overlap, one.overdue) for one in batch.decisions} == {("buffer_all", True)}
    assert not batch.holders_to_cancel


def test_missed_runs_that_may_overlap_all_go_at_once() -> None:
    missed = [candidate(seconds, overlap="allow", **PROMISE) for seconds in (90, 61, 1)]
    batch = decide(missed, slots={}, now=NOW)
    assert {(one.verdict, one.overlap) for one in batch.decisions} == {(Verdict.QUEUE, "allow")}


def test_the_latest_of_a_catch_up_is_overdue_though_not_late_by_itself() -> None:
    batch = decide([candidate(90), candidate(1)], slots={}, now=NOW)
    assert {one.verdict: one.overdue for one in batch.decisions}[Verdict.QUEUE]


@pytest.mark.parametrize("policy", ["allow", "skip", "buffer_one", "buffer_all", "cancel_running"])
def test_a_run_that_may_not_begin_any_more_is_skipped_to_the_microsecond(policy: str) -> None:
    limited = {"overlap": policy, "schedule_to_start_s": 30, "slots": {SCHEDULE: None}}
    slots = limited.pop("slots")
    assert isinstance(slots, dict)
    in_time = candidate(30, **limited)
    late = candidate(30.000001, **limited)
    assert verdicts(in_time, slots=dict(slots)) == [QUEUE]
    assert verdicts(late, slots=dict(slots)) == [(Verdict.SKIP, SkipReason.EXPIRED)]


def test_neither_what_has_begun_nor_what_a_person_asked_for_anew_is_bound_to_begin_in_time() -> None:
    limited = {"schedule_to_start_s": 30, "origin": "trigger"}
    batch = [
        candidate(90, started=True, **limited),
        candidate(90, asked_anew=True, **limited),
        candidate(90, state="RETRY_WAIT", wait_reason=None, generation=1, row_generation=2, **limited),
    ]
    assert verdicts(*batch) == [QUEUE] * 3


def test_whoever_waits_is_looked_at_when_its_time_is_up_and_at_once_where_one_before_it_has_expired() -> None:
    terms: dict[str, Any] = {"overlap": "buffer_all", "wait_reason": "overlap", "schedule_to_start_s": 30}
    expired, waits = candidate(40, **terms), candidate(20, **terms)
    slot = {"parked": 3, "first_parked": expired.run_id}
    batch = decide([expired, waits], slots={SCHEDULE: Slot(**slot)}, now=NOW)
    assert [(one.verdict, one.look_by) for one in batch.decisions] == [("skip", None), ("park", NOW)]
    batch = decide([waits], slots={SCHEDULE: Slot(holder=uuid4(), **slot)}, now=NOW)
    assert [one.look_by for one in batch.decisions] == [NOW + timedelta(seconds=10)]


def test_a_run_woken_for_a_freed_slot_gets_it_before_one_that_comes_with_an_earlier_instant() -> None:
    """A flexible window let an earlier instant come later than a run that somebody asked for."""
    woken = candidate(10, overlap="buffer_one", wait_reason="overlap", origin="trigger")
    comer = candidate(20, overlap="buffer_one", dispatch_at=NOW)
    slot = Slot(parked=1, first_parked=woken.run_id, replaceable=woken.run_id)
    decided = {
        one.candidate.run_id: one.verdict
        for one in decide([comer, woken], slots={SCHEDULE: slot}, now=NOW).decisions
    }
    assert decided == {woken.run_id: Verdict.QUEUE, comer.run_id: Verdict.PARK}
