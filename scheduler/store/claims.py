"""Claims and ends of attempts, in sets. The caller owns the transaction and calls `lock` before it acts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from scheduler import telemetry
from scheduler.core.states import TERMINAL, AttemptOutcome, Refusal, State
from scheduler.store import failures, rest
from scheduler.store.slots import give_slots_on
from scheduler.store.statements import Connection, cursor, load

SQL = load("claims")

# Whose right it is to end an attempt: its holder's, or the sweep's over a dead session or a passed limit.
Guard: TypeAlias = Literal["holder", "dead", "overdue"]

_FAILED: Final = (State.FAILED, State.DEAD_LETTERED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A wish to hold a run. `claim_id` is new for each delivery: only it can have won."""

    run_id: UUID
    due_at: datetime
    claim_id: UUID
    trace_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A run that is held, with all that an attempt at it needs. Times in UTC, durations in seconds.

    `attempt` counts over the run's whole life, `tries` since its last redrive: the latter is what is limited.
    """

    claim_id: UUID
    run_id: UUID
    due_at: datetime
    fence: int
    granted_at: datetime
    ends_by: datetime
    attempt: int
    tries: int
    schedule_id: UUID
    revision: int
    origin_key: UUID
    slotted: bool
    fixed_delay: bool
    tenant_id: UUID
    tenant: str
    target: str
    payload: dict[str, Any]
    payload_ref: str | None
    retry: dict[str, Any]
    timeout_s: int
    cancel_grace_s: int
    resume: Any
    side_effects: str
    deadline_at: datetime | None = None  # no attempt begins later
    heartbeat_timeout_s: int | None = None
    pause_after: int | None = None
    url: str = field(default="", repr=False)
    sealed: str = field(default="", repr=False)
    enabled: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How an attempt ended and what that makes of its run. `delay_s` only with RETRY_WAIT.

    With RUNNING the attempt goes on without its worker: an endpoint has accepted the run.

    `fixed_delay`: the schedule waits for this run's end. `deadline_at`: a retry begins by then or not at all.
    `pause_after`: so many failures in a row pause the schedule.
    """

    run_id: UUID
    due_at: datetime
    fence: int
    schedule_id: UUID
    slotted: bool
    state: State
    outcome: AttemptOutcome
    result: Any = None
    error: dict[str, Any] | None = None
    fixed_delay: bool = False
    delay_s: float | None = None
    deadline_at: datetime | None = None
    pause_after: int | None = None

    @property
    def may_pause(self) -> bool:
        """Whether it may be the end that pauses its schedule: then it is written alone (see failures.sql)."""
        fails = self.state in _FAILED or (self.state is State.RETRY_WAIT and self.deadline_at is not None)
        return self.pause_after is not None and fails


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    run_id: UUID
    fence: int
    state: State

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class _Answer:
    claim_id: UUID
    refusal: str | None
    ended: UUID | None  # the schedule of a run that the refusal has ended


def lock(connection: Connection, *, endings: Sequence[Ending] = (), claims: Sequence[Claim] = ()) -> None:
    """Take every lock that ending and claiming these will need, slots before runs, each in id order. Before
    them the schedule that one of these ends may pause.
    """
    pausing = {ending.schedule_id for ending in endings if ending.may_pause}
    if pausing:
        failures.lock_schedules(connection, pausing)
    slots = {ending.schedule_id for ending in endings if ending.slotted}
    slots |= _slots_of_doomed(connection, claims)
    if slots:
        connection.execute(SQL["lock_slots"], {"schedule_ids": sorted(slots)})
    runs = {ending.run_id: ending.due_at for ending in endings}
    runs |= {wish.run_id: wish.due_at for wish in claims}
    connection.execute(SQL["lock_runs"], {"run_ids": list(runs), "due": list(runs.values())})


def _slots_of_doomed(connection: Connection, claims: Sequence[Claim]) -> set[UUID]:
    """By schedule, the slots of runs that these claims will not hold, but end."""
    if not claims:
        return set()
    parameters = {"run_ids": [wish.run_id for wish in claims], "due": [wish.due_at for wish in claims]}
    found = connection.execute(SQL["slots_of_doomed"], parameters)
    return {schedule_id for (schedule_id,) in found}


def claim(connection: Connection, claims: Sequence[Claim], *, session_id: UUID) -> dict[UUID, Refusal | None]:
    """Claim locked runs for a session; by claim id: None where it won, else why not.

    At most one claim a run: of two in one call the database would let one win and not tell which.
    """
    with cursor(connection, class_row(_Answer)) as answers:
        answers.execute(
            SQL["claim"],
            {
                "run_ids": [c.run_id for c in claims],
                "due": [c.due_at for c in claims],
                "claim_ids": [c.claim_id for c in claims],
                "traces": [c.trace_id for c in claims],
                "session_id": session_id,
            },
        )
        rows = answers.fetchall()
    ended = {row.ended for row in rows if row.ended is not None}
    if ended:
        rest.wake(connection, ended)
    return {row.claim_id: Refusal(row.refusal) if row.refusal else None for row in rows}


def claimed(connection: Connection, claim_ids: Sequence[UUID]) -> dict[UUID, Claimed]:
    """Which of these claims hold a lease now, with what they hold."""
    with cursor(connection, class_row(Claimed)) as rows:
        found = rows.execute(SQL["claimed"], {"claim_ids": list(claim_ids)})
        return {row.claim_id: row for row in found}


def end_attempts(connection: Connection, endings: Sequence[Ending], *, guard: Guard) -> dict[int, Ended]:
    """End attempts of locked runs, and arm the schedules that waited for that; by fence, what did change.

    An absent fence was void. That nobody knows how a run ended is told here, before the commit: who dies just
    after that has told it, and nobody else would. Who dies before it, or writes again, has it told twice.
    """
    more = {
        "delays": [ending.delay_s for ending in endings],
        "deadlines": [ending.deadline_at for ending in endings],
        "guard": guard,
    }
    ended = _end(connection, "end_attempts", endings, more)
    for run in ended.values():
        if run.state == State.UNKNOWN:  # as the row has it: a plain text
            telemetry.outcome_unknown(run.run_id, run.fence)
    return ended


def resolve_unknown(connection: Connection, endings: Sequence[Ending]) -> dict[int, Ended]:
    """Runs, locked, of which nobody knew how they ended, and whose last holder comes late and knows.

    By fence, what did change. It resolves what is UNKNOWN under its own fence, as success or failure.
    """
    resolved = _end(connection, "resolve_unknown", endings, {})
    if resolved:
        give_slots_on(connection, [run.run_id for run in resolved.values()])
    return resolved


def _end(
    connection: Connection, statement: str, endings: Sequence[Ending], more: dict[str, Any]
) -> dict[int, Ended]:
    parameters = {
        "run_ids": [e.run_id for e in endings],
        "due": [e.due_at for e in endings],
        "fences": [e.fence for e in endings],
        "states": [e.state for e in endings],
        "outcomes": [e.outcome for e in endings],
        "results": [None if e.result is None else Jsonb(e.result) for e in endings],
        "errors": [None if e.error is None else Jsonb(e.error) for e in endings],
    }
    with cursor(connection, class_row(Ended)) as rows:
        rows.execute(SQL[statement], {**parameters, **more})
        ended = {row.fence: row for row in rows}
    waited_for = {
        one.schedule_id
        for one in endings
        if one.fixed_delay and one.fence in ended and ended[one.fence].is_over
    }
    if waited_for:
        rest.wake(connection, waited_for)
    failed = {fence for fence, run in ended.items() if run.state in _FAILED}
    for schedule_id in {one.schedule_id for one in endings if one.may_pause and one.fence in failed}:
        failures.pause_if_failing(connection, schedule_id)
    return ended


def already_ended(connection: Connection, endings: Sequence[Ending]) -> set[int]:
    """Fences whose end stands on record just so."""
    rows = connection.execute(
        SQL["already_ended"],
        {
            "run_ids": [e.run_id for e in endings],
            "due": [e.due_at for e in endings],
            "fences": [e.fence for e in endings],
            "outcomes": [e.outcome for e in endings],
        },
    )
    return {fence for _, fence in rows}


def count_late_writes(connection: Connection, endings: Sequence[Ending]) -> None:
    connection.execute(
        SQL["count_late_writes"],
        {"run_ids": [e.run_id for e in endings], "due": [e.due_at for e in endings]},
    )


def report_progress(connection: Connection, held: Claimed, progress: dict[str, Any]) -> bool:
    """False: the lease is gone."""
    found = connection.execute(
        SQL["report_progress"],
        {"due_at": held.due_at, "run_id": held.run_id, "fence": held.fence, "progress": Jsonb(progress)},
    ).fetchone()
    return found is not None
