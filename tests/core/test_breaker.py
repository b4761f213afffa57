"""When only a trickle of orphans may go back."""

import pytest

from scheduler.core.breaker import Decision, Strain, decide


@pytest.mark.parametrize(
    ("capacity", "busy", "live", "lost", "reason"),
    [
        (100, 0, 4, 0, None),
        (100, 85, 4, 0, None),
        (100, 86, 4, 0, "utilisation"),
        (0, 0, 0, 1, "utilisation"),  # nobody is left
        (100, 10, 1, 3, None),  # so few may be lost on any day
        (100, 10, 8, 4, "sessions_lost"),  # a third
        (100, 10, 9, 4, None),
    ],
)
def test_the_breaker_goes_by_the_living_and_by_how_many_were_lost(
    capacity: int, busy: int, live: int, lost: int, reason: str | None
) -> None:
    strain = Strain(capacity=capacity, busy=busy, live=live, lost=lost)
    limit = 200 if reason is None else 10
    assert decide(strain, limit=200, threshold=0.85) == Decision(limit=limit, reason=reason)


def test_a_trickle_never_runs_dry() -> None:
    assert decide(Strain(capacity=1, busy=1, live=1, lost=0), limit=1, threshold=0.85).limit == 1
