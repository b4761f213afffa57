"""What follows an attempt that did not succeed."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

from scheduler.core.states import State

# The class of targets whose effect must not happen twice: without a clear answer it is not tried again.
UNSAFE = "unsafe_external"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """`max_attempts` counts the first one. Intervals in seconds."""

    max_attempts: int = 5
    initial_interval_s: float = 1.0
    backoff: float = 2.0
    max_interval_s: float = 300.0

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
    # The exponent is bounded: 2.0 ** 1100 would overflow, and the maximum is reached long before.
    ceiling = min(policy.max_interval_s, policy.initial_interval_s * policy.backoff ** min(attempt - 1, 64))
    digest = blake2b(run_id.bytes + attempt.to_bytes(8), digest_size=8).digest()
    return ceiling * int.from_bytes(digest) / 2**64


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
    if asked_delay_s is not None:
        return Decision(state=State.RETRY_WAIT, delay_s=max(0.0, asked_delay_s))
    return Decision(state=State.RETRY_WAIT, delay_s=delay_s(policy, run_id=run_id, attempt=attempt))
