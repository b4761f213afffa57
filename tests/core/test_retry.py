from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.retry import UNSAFE, RetryPolicy, after_failure, delay_s
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
    for asked, given_s in ((90.0, 90.0), (-5.0, 0.0)):
        decision = after_failure(
            RetryPolicy(), run_id=uuid4(), attempt=1, side_effects="fenced", asked_delay_s=asked
        )
        assert (decision.state, decision.delay_s) == (State.RETRY_WAIT, given_s)


def test_absent_fields_of_a_stored_policy_have_their_defaults() -> None:
    assert RetryPolicy.of({"max_attempts": 2, "deadline_s": None}) == RetryPolicy(max_attempts=2)
