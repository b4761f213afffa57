"""Code emits facts; this module alone decides their level, text and metric."""

import os
import socket
from collections.abc import Mapping

import structlog
from prometheus_client import Counter, Gauge, Histogram

_log = structlog.get_logger("fencepost")

RUNS = Counter("fencepost_runs", "Runs that came into a state", ["state", "reason"])
CLAIMS_REFUSED = Counter("fencepost_claims_refused", "Claims that did not win", ["reason"])
STALE_COMPLETIONS = Counter("fencepost_stale_completions", "Ends written under a void fence: refused")
LEASES_GRANTED = Counter("fencepost_leases_granted", "Claims that won")
LEASES_EXPIRED = Counter("fencepost_leases_expired", "Leases ended by the sweep")
BREAKER_OPEN = Gauge("fencepost_breaker_open", "1 while only a trickle of orphans goes back")
SHARDS_OWNED = Gauge("fencepost_shards_owned", "Shards that this process works", ["kind"])
CLOCK_SKEW = Gauge("fencepost_clock_skew_seconds", "This host's clock less the database's")
TROUBLES = Counter("fencepost_troubles", "What went wrong and was dealt with", ["event"])
ALERTS = Counter("fencepost_alerts", "What somebody has to look at", ["event"])
ROUND_SECONDS = Histogram("fencepost_round_seconds", "Length of a round", ["process"])
DUE_TO_START = Histogram(
    "fencepost_due_to_start_seconds",
    "From the due instant to the claim",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)


def who() -> str:
    """`host:pid`, for people; nothing is decided by it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def fact(event: str, **details: object) -> None:
    """Something happened that a person may want to read, and nothing is wrong."""
    _log.info(event, **details)


def trouble(event: str, **details: object) -> None:
    """Something is wrong that the system deals with by itself."""
    TROUBLES.labels(event).inc()
    _log.warning(event, **details)


def alert(event: str, **details: object) -> None:
    """Somebody has to look: a bug, or a loss that was made good."""
    ALERTS.labels(event).inc()
    _log.error(event, **details)


def round_ended(process: str, counts: Mapping[str, int], seconds: float) -> None:
    ROUND_SECONDS.labels(process).observe(seconds)
    seen = {name: count for name, count in counts.items() if count}
    if seen:
        _log.debug("round", process=process, seconds=round(seconds, 4), **seen)


def claim_refused(reason: str, count: int = 1) -> None:
    CLAIMS_REFUSED.labels(reason).inc(count)


def outcome_unknown(run: object, fence: int) -> None:
    """An effect that must not happen twice may have happened: a person has to find out."""
    alert("outcome_unknown", run=str(run), fence=fence)


def stale(run: object, fence: int) -> None:
    STALE_COMPLETIONS.inc()
    _log.warning("stale", run=str(run), fence=fence)
