import math
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.retry import (
    LONGEST_DELAY_S,
    UNSAFE,
    Decision,
    RetryPolicy,
    after_failure,
    ceiling_s,
    deadline,
    delay_s,
    in_time,
    may_begin,
)
from scheduler.core.states import State

POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1000),
    initial_interval_s=st.floats(0, 3600),
    backoff=st.floats(1, 100),
    max_interval_s=st.floats(0, 86400),
)


@given(POLICIES, st.uuids(), st.integers(1, 10**6))
def test_jitter_stays_under_the_ceiling_and_is_the_same_everywhere(
    policy: RetryPolicy, run_id: UUID, attempt: int
) -> None:
    delay = delay_s(policy, run_id=run_id, attempt=attempt)
    assert 0 <= delay <= policy.max_interval_s
    assert delay == delay_s(policy, run_id=run_id, attempt=attempt)


@given(POLICIES, st.uuids(), st.integers(1, 2000))
def test_attempts_never_exceed_the_maximum(policy: RetryPolicy, run_id: UUID, attempt: int) -> None:
    decision = after_failure(policy, run_id=run_id, attempt=attempt, side_effects="idempotent")
    assert (decision.state is State.RETRY_WAIT) == (attempt < policy.max_attempts)
    assert (decision.state is State.DEAD_LETTERED) == (attempt >= policy.max_attempts)


def test_jitter_spreads() -> None:
    delays = [delay_s(RetryPolicy(), run_id=uuid4(), attempt=5) for _ in range(400)]
    assert min(delays) < 4
    assert max(delays) > 12  # uniform in [0, 16]


@pytest.mark.parametrize("side_effects", ["idempotent", UNSAFE])
def test_a_permanent_error_fails_at_once(side_effects: str) -> None:
    decision = after_failure(
        RetryPolicy(), run_id=uuid4(), attempt=1, side_effects=side_effects, permanent=True
    )
    assert decision.state is State.FAILED


@given(attempt=st.integers(1, 10))
def test_an_unsafe_effect_is_never_tried_again(attempt: int) -> None:
    decision = after_failure(RetryPolicy(), run_id=uuid4(), attempt=attempt, side_effects=UNSAFE)
    assert (decision.state, decision.delay_s) == (State.UNKNOWN, None)


def test_the_job_may_choose_the_delay_and_not_a_negative_one() -> None:
    for asked, given_s in ((90.0, 90.0), (-5.0, 0.0), (math.inf, LONGEST_DELAY_S)):
        decision = after_failure(
            RetryPolicy(), run_id=uuid4(), attempt=1, side_effects="fenced", asked_delay_s=asked
        )
        assert (decision.state, decision.delay_s) == (State.RETRY_WAIT, given_s)


def test_absent_fields_of_a_stored_policy_have_their_defaults() -> None:
    assert RetryPolicy.of({"max_attempts": 2, "deadline_s": None}) == RetryPolicy(max_attempts=2)


def test_a_delay_that_is_no_number_is_left_to_the_policy() -> None:
    run_id = uuid4()
    decision = after_failure(
        RetryPolicy(), run_id=run_id, attempt=1, side_effects="fenced", asked_delay_s=math.nan
    )
    assert decision.delay_s == delay_s(RetryPolicy(), run_id=run_id, attempt=1)


@given(POLICIES, st.uuids(), st.integers(1, 200))
def test_the_ceiling_never_falls_from_one_attempt_to_the_next_and_holds_every_delay(
    policy: RetryPolicy, run_id: UUID, attempt: int
) -> None:
    ceiling = ceiling_s(policy, attempt=attempt)
    assert delay_s(policy, run_id=run_id, attempt=attempt) <= ceiling <= policy.max_interval_s
    assert ceiling <= ceiling_s(policy, attempt=attempt + 1)


DUE = datetime(2026, 11, 30, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_retry_is_in_time_to_the_microsecond(deadline_s: int, after_us: int, delay_us: int) -> None:
    last = deadline(RetryPolicy(deadline_s=deadline_s), counts_from=DUE)
    assert last is not None
    decision = Decision(state=State.RETRY_WAIT, delay_s=delay_us / 10**6)
    now = DUE + timedelta(microseconds=after_us)
    begins = now + timedelta(microseconds=delay_us)
    found = in_time(decision, now=now, deadline_at=last)
    assert found.state is (State.RETRY_WAIT if begins <= last else State.DEAD_LETTERED)
    assert in_time(decision, now=last - (begins - now), deadline_at=last) == decision
    assert in_time(decision, now=last - (begins - now) + MICROSECOND, deadline_at=last).state is (
        State.DEAD_LETTERED
    )


def test_without_a_deadline_everything_is_in_time_and_no_other_decision_is_touched() -> None:
    assert deadline(RetryPolicy(), counts_from=DUE) is None
    assert may_begin(at=DUE + timedelta(days=3650), deadline_at=None)
    for state in (State.FAILED, State.UNKNOWN, State.DEAD_LETTERED):
        decision = Decision(state=state)
        assert in_time(decision, now=DUE + timedelta(days=1), deadline_at=DUE) is decision
