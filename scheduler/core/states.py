"""States, events and the one table of transitions: the only drawing of the machine.

`docs/state-machine.md` and the database trigger `occurrence_transition` are generated from
`TRANSITIONS`; tests compare both with it.
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    RETRY_WAIT = "RETRY_WAIT"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DEAD_LETTERED = "DEAD_LETTERED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"


class WaitReason(StrEnum):
    """What a PENDING run waits for."""

    DUE = "due"
    OVERLAP = "overlap"
    TENANT_CONCURRENCY = "tenant_concurrency"
    TENANT_RATE = "tenant_rate"
    CATCH_UP_BUDGET = "catch_up_budget"
    ENDPOINT_BUSY = "endpoint_busy"


class SkipReason(StrEnum):
    OVERLAP = "overlap"
    MISSED = "missed"
    EXPIRED = "expired"
    QUOTA = "quota"


class DeadLetterReason(StrEnum):
    EXHAUSTED = "exhausted"  # all attempts are used up
    EXPIRED = "expired"  # no attempt may begin any more: `retry.deadline_s`


class AttemptOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


class Refusal(StrEnum):
    """Why a claim, or a write under a fence, changed nothing."""

    TOO_EARLY = "too_early"
    NOT_FOUND = "not_found"
    ALREADY_HELD = "already_held"
    CANCELLED = "cancelled"
    SUPERSEDED_FENCE = "superseded_fence"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"
    SESSION_LOST = "session_lost"
    PARKED = "parked"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.DEAD_LETTERED, State.SKIPPED, State.CANCELLED})

# UNKNOWN is not terminal, yet nothing in the system moves it on: a person or a hook does.
LIVE = frozenset(State) - TERMINAL - {State.UNKNOWN}

# A run in one of these occupies its schedule's overlap slot.
HOLDS_SLOT = frozenset({State.QUEUED, State.RUNNING, State.RETRY_WAIT, State.SUSPENDED, State.UNKNOWN})

WAKERS = {
    State.PENDING: "outbox row at dispatch_at, or the end of what it waits for",
    State.QUEUED: "claim; sweep when unclaimed too long",
    State.RUNNING: "complete; sweep",
    State.RETRY_WAIT: "outbox row at the retry time",
    State.SUSPENDED: "outbox row at the wake-up time; signal",
    State.UNKNOWN: "reconcile",
}


@dataclass(frozen=True, kw_only=True)
class Transition:
    event: str
    source: State | None  # None: the row does not exist yet
    target: State
    guard: str


# (event, from which states, to which, under which guard); None: the row does not exist yet.
_EVENTS: list[tuple[str, tuple[State | None, ...], tuple[State, ...], str]] = [
    (
        "materialise",
        (None,),
        (State.PENDING,),
        "schedule row moved by compare-and-swap on next_due_at, revision",
    ),
    ("request", (None,), (State.PENDING,), "origin_key is the id of the request"),
    ("miss", (None,), (State.SKIPPED,), "catch-up policy skip, or outside its window"),
    (
        "release",
        (State.PENDING, State.RETRY_WAIT, State.SUSPENDED),
        (State.QUEUED,),
        "dispatch_at passed; slot and limits",
    ),
    ("skip", (State.PENDING,), (State.SKIPPED,), "overlap, missed or expired at release"),
    ("claim", (State.QUEUED,), (State.RUNNING,), "due; session live; attempts < max"),
    (
        "refuse",
        (State.QUEUED,),
        (State.SKIPPED, State.DEAD_LETTERED, State.CANCELLED, State.PENDING),
        "the claim finds it expired, exhausted, cancelled or over a limit",
    ),
    (
        "complete",
        (State.RUNNING,),
        (
            State.SUCCEEDED,
            State.FAILED,
            State.CANCELLED,
            State.RETRY_WAIT,
            State.DEAD_LETTERED,
            State.UNKNOWN,
        ),
        "lease with this fence",
    ),
    ("suspend", (State.RUNNING,), (State.SUSPENDED,), "lease with this fence"),
    ("drain", (State.RUNNING,), (State.QUEUED,), "lease with this fence"),
    (
        "lose",
        (State.RUNNING,),
        (State.RETRY_WAIT, State.UNKNOWN, State.DEAD_LETTERED, State.CANCELLED),
        "session dead, lease missing, or time limit passed",
    ),
    (
        "cancel",
        (State.PENDING, State.QUEUED, State.RETRY_WAIT, State.SUSPENDED),
        (State.CANCELLED,),
        "asked for by a person or a policy",
    ),
    (
        "reconcile",
        (State.UNKNOWN,),
        (State.SUCCEEDED, State.FAILED, State.PENDING),
        "person, hook or late completion",
    ),
    ("redrive", (State.DEAD_LETTERED, State.FAILED), (State.PENDING,), "person with the role"),
]

TRANSITIONS = tuple(
    Transition(event=event, source=source, target=target, guard=guard)
    for event, sources, targets, guard in _EVENTS
    for source in sources
    for target in targets
)

# What the database lets an UPDATE do. QUEUED -> QUEUED and other self-moves change no state.
ALLOWED_MOVES = frozenset((move.source, move.target) for move in TRANSITIONS if move.source is not None)
ALLOWED_BIRTHS = frozenset(move.target for move in TRANSITIONS if move.source is None)


def is_allowed(source: State | None, target: State) -> bool:
    """True if some event takes a row from `source` (None: unborn) to `target`."""
    return target in ALLOWED_BIRTHS if source is None else (source, target) in ALLOWED_MOVES
