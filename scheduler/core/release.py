"""What becomes of rows on the agenda that are due: decided over a batch, under locks the store has taken."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from scheduler.core.states import SkipReason, State, WaitReason


class Verdict(StrEnum):
    QUEUE = "queue"  # release it, then publish
    PUBLISH = "publish"  # released before; its publishing was never confirmed
    SKIP = "skip"
    DROP = "drop"  # the row is out of date: the run went on without it


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An agenda row together with its run, as read under lock."""

    row_id: int
    row_at: datetime
    row_generation: int
    run_id: UUID
    due_at: datetime
    state: str
    generation: int
    dispatch_at: datetime
    schedule_id: UUID
    slotted: bool
    origin: str
    wait_reason: str | None
    overdue: bool
    target: str
    catch_up: str
    catch_up_after_s: int
    priority: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    candidate: Candidate
    verdict: Verdict
    reason: SkipReason | None = None
    overdue: bool = False


def is_late(candidate: Candidate, now: datetime) -> bool:
    """Late through an outage of ours: it waited for nothing but its time, and that is long past."""
    return _waits_for_time(candidate) and now > candidate.due_at + timedelta(
        seconds=candidate.catch_up_after_s
    )


def decide(
    candidates: Iterable[Candidate], *, slots: Mapping[UUID, UUID | None], now: datetime
) -> list[Decision]:
    """`slots`: the holder (None: free) of each slot that could be locked; a schedule whose slot is missing
    there is left for the next round.
    """
    batch = sorted(candidates, key=lambda candidate: (candidate.due_at, candidate.run_id))
    surplus = _surplus(batch, now)
    holders = dict(slots)
    return [
        decision
        for candidate in batch
        if (decision := _decide_one(candidate, surplus, holders, now)) is not None
    ]


def _decide_one(
    candidate: Candidate, surplus: frozenset[UUID], holders: dict[UUID, UUID | None], now: datetime
) -> Decision | None:
    if candidate.state == State.QUEUED and candidate.generation == candidate.row_generation:
        return Decision(candidate=candidate, verdict=Verdict.PUBLISH)
    if not _releases(candidate):
        return Decision(candidate=candidate, verdict=Verdict.DROP)
    if candidate.dispatch_at > now:
        return None
    if candidate.run_id in surplus:
        return Decision(candidate=candidate, verdict=Verdict.SKIP, reason=SkipReason.MISSED)
    return _through_slot(candidate, holders, now)


def _through_slot(candidate: Candidate, holders: dict[UUID, UUID | None], now: datetime) -> Decision | None:
    if candidate.slotted:
        if candidate.schedule_id not in holders:
            return None
        # A retry finds itself in the slot: it kept it.
        if holders[candidate.schedule_id] not in (None, candidate.run_id):
            return Decision(candidate=candidate, verdict=Verdict.SKIP, reason=SkipReason.OVERLAP)
        holders[candidate.schedule_id] = candidate.run_id
    return Decision(candidate=candidate, verdict=Verdict.QUEUE, overdue=is_late(candidate, now))


def _releases(candidate: Candidate) -> bool:
    waits = candidate.state in (State.PENDING, State.RETRY_WAIT, State.SUSPENDED)
    return waits and candidate.generation + 1 == candidate.row_generation


def _waits_for_time(candidate: Candidate) -> bool:
    return (
        candidate.state == State.PENDING
        and candidate.wait_reason == WaitReason.DUE
        and candidate.origin == "schedule"
        and not candidate.overdue  # its own catch-up made it: it is the one that runs
    )


def _surplus(batch: Sequence[Candidate], now: datetime) -> frozenset[UUID]:
    """Of a schedule that was missed, all up to now but the latest, or all where the policy is to skip."""
    missed = {candidate.schedule_id: candidate for candidate in batch if is_late(candidate, now)}
    waiting = [
        candidate
        for candidate in batch
        if candidate.schedule_id in missed and _waits_for_time(candidate) and candidate.due_at <= now
    ]
    latest = {candidate.schedule_id: candidate.run_id for candidate in waiting}
    return frozenset(
        candidate.run_id
        for candidate in waiting
        if candidate.catch_up == "skip" or latest[candidate.schedule_id] != candidate.run_id
    )
