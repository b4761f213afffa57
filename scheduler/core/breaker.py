"""How many orphans may go back at once: lost workers must not bury those that are left.

Workers that are nearly full would get the work of the lost ones on top of their own, miss their time limits,
and make more orphans.
"""

from dataclasses import dataclass

TRICKLE = 0.05  # of the usual rate: enough to find out that it works again
LOST_SHARE = 1 / 3  # of the sessions of the last minute
FEW = 3  # so many lost sessions are an everyday loss in any installation


@dataclass(frozen=True, kw_only=True, slots=True)
class Strain:
    """Of workers: `capacity` and `busy` in runs, of the `live` sessions; those `lost` a short while ago."""

    capacity: int
    busy: int
    live: int
    lost: int

    @property
    def utilisation(self) -> float:
        """1.0 where nobody is left to take anything."""
        return self.busy / self.capacity if self.capacity else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """`reason` is None while the breaker is closed."""

    limit: int
    reason: str | None = None


def decide(strain: Strain, *, limit: int, threshold: float) -> Decision:
    """How many of `limit` orphans may go back now.

    Nothing is remembered from one decision to the next: as soon as the figures are good, it is closed.
    """
    reason = _reason(strain, threshold)
    return Decision(limit=limit if reason is None else max(1, round(limit * TRICKLE)), reason=reason)


def _reason(strain: Strain, threshold: float) -> str | None:
    if strain.utilisation > threshold:
        return "utilisation"
    if strain.lost > FEW and strain.lost >= LOST_SHARE * (strain.lost + strain.live):
        return "sessions_lost"
    return None
