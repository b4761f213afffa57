"""What follows an attempt that did not succeed."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any
from uuid import UUID

from scheduler.core.states import State

# The class of targets whose effect must not happen twice: without a clear answer it is not tried again.
UNSAFE = "unsafe_external"

LONGEST_DELAY_S = 366 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """`max_attempts` counts the first one. Intervals in seconds.

    `deadline_s`: no attempt begins later than this after the due instant, or after a person asked for the
    run anew; None: no such limit.
    """

    max_attempts: int = 5
    initial_interval_s: float = 1.0
    backoff: float = 2.0
    max_interval_s: float = 300.0
    deadline_s: float | None = None

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "RetryPolicy":
        """From a revision's `retry`; what is absent has the default."""
        known = {name: stored[name] for name in cls.__slots__ if stored.get(name) is not None}
        return cls(**known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    state: State
    delay_s: float | None = None  # set for RETRY_WAIT alone


def delay_s(policy: RetryPolicy, *, run_id: UUID, attempt: int) -> float:
    """Full jitter: uniform in [0, ceiling], the same for the same run and attempt on every host."""
    digest = blake2b(run_id.bytes + attempt.to_bytes(8), digest_size=8).digest()
    return ceiling_s(policy, attempt=attempt) * int.from_bytes(digest) / 2**64


def ceiling_s(policy: RetryPolicy, *, attempt: int) -> float:
    """The longest delay after this attempt."""
    # The exponent is bounded: 2.0 ** 1100 would overflow, and the maximum is reached long before.
    return min(policy.max_interval_s, policy.initial_interval_s * policy.backoff ** min(attempt - 1, 64))


def after_failure(
    policy: RetryPolicy,
    *,
    run_id: UUID,
    attempt: int,
    side_effects: str,
    permanent: bool = False,
    asked_delay_s: float | None = None,
) -> Decision:
    """FAILED when permanent, UNKNOWN when an effect may have happened that must not happen twice,
    DEAD_LETTERED when attempts are used up, else RETRY_WAIT with its delay.
    """
    if permanent:
        return Decision(state=State.FAILED)
    if side_effects == UNSAFE:
        return Decision(state=State.UNKNOWN)
    if attempt >= policy.max_attempts:
        return Decision(state=State.DEAD_LETTERED)
    delay = delay_s(policy, run_id=run_id, attempt=attempt)
    if asked_delay_s is not None and not math.isnan(asked_delay_s):
        delay = min(max(0.0, asked_delay_s), LONGEST_DELAY_S)
    return Decision(state=State.RETRY_WAIT, delay_s=delay)


def deadline(policy: RetryPolicy, *, counts_from: datetime) -> datetime | None:
    """The last instant at which an attempt may begin."""
    return None if policy.deadline_s is None else counts_from + timedelta(seconds=policy.deadline_s)


def may_begin(*, at: datetime, deadline_at: datetime | None) -> bool:
    """Whether an attempt may begin then. A claim asks it of its own moment."""
    return deadline_at is None or at <= deadline_at


def in_time(decision: Decision, *, now: datetime, deadline_at: datetime | None) -> Decision:
    """What a decision comes to at `now`: a retry that would begin too late is none. The twin of
    `end_attempts`, where the database's clock decides.
    """
    if decision.state is not State.RETRY_WAIT:
        return decision
    assert decision.delay_s is not None
    at = now + timedelta(seconds=decision.delay_s)
    return decision if may_begin(at=at, deadline_at=deadline_at) else Decision(state=State.DEAD_LETTERED)
