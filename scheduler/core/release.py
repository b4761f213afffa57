"""What becomes of rows on the agenda that are due: decided over a batch, under locks the store has taken."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from scheduler.core import overlap
from scheduler.core.catchup import CatchUp
from scheduler.core.overlap import Entry, Overlap, Slot
from scheduler.core.states import SkipReason, State, WaitReason

_UNBOUNDED: Final = 1_000_000


class Verdict(StrEnum):
    QUEUE = "queue"  # release it, then publish
    PUBLISH = "publish"  # released before; its publishing was never confirmed
    PARK = "park"  # it waits for its schedule's slot
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
    overlap: str
    buffer_limit: int
    origin: str
    wait_reason: str | None
    overdue: bool
    target: str
    kind: str
    catch_up: str
    catch_up_limit: int
    catch_up_window_s: int | None
    catch_up_after_s: int
    priority: str
    asked_anew: bool  # a person has redriven it, or asked for it by a backfill
    started: bool
    schedule_to_start_s: int | None
    endpoint: str = ""  # host and port, where the target is an HTTP one

    @property
    def slotted(self) -> bool:
        return self.overlap != Overlap.ALLOW

    @property
    def is_parked(self) -> bool:
        return self.state == State.PENDING and self.wait_reason == WaitReason.OVERLAP

    @property
    def start_by(self) -> datetime | None:
        """Later than this it does not begin. Neither a run that has begun once is bound, nor one that a
        person has asked for anew.
        """
        bound = self.state == State.PENDING and not self.started and not self.asked_anew
        if self.schedule_to_start_s is None or not bound:
            return None
        return self.dispatch_at + timedelta(seconds=self.schedule_to_start_s)

    def is_expired(self, now: datetime) -> bool:
        return self.start_by is not None and now > self.start_by


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """`overdue` and `overlap`: how the run goes on, if it does; a catch-up may have changed them.

    `look_by`: when a parked run is looked at again, if not sooner.
    """

    candidate: Candidate
    verdict: Verdict
    overlap: str
    reason: SkipReason | None = None
    overdue: bool = False
    look_by: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`holders_to_cancel`: active runs, by (due_at, id), that a newer run wants stopped."""

    decisions: tuple[Decision, ...]
    holders_to_cancel: frozenset[tuple[datetime, UUID]]


def is_late(candidate: Candidate, now: datetime) -> bool:
    """Late through an outage of ours: it waited for nothing but its time, and that is long past."""
    patience = timedelta(seconds=candidate.catch_up_after_s)
    return _waits_for_time(candidate) and now > candidate.dispatch_at + patience


def decide(candidates: Iterable[Candidate], *, slots: Mapping[UUID, Slot], now: datetime) -> Batch:
    """`slots` holds those that could be locked, and is left as the batch leaves them; a schedule whose slot
    is missing there is left for the next round.

    Those in line before those who come: one who came first to a slot that was just freed would find a line
    before it, wait, and displace the very run that was woken for the slot. Nobody would be left to wake it.
    """
    batch = sorted(candidates, key=lambda one: (not one.is_parked, one.due_at, one.run_id))
    return _Deciding(batch, slots, now).all()


class _Deciding:
    """The batch in order, each decision seeing what the ones before it left."""

    def __init__(self, batch: Sequence[Candidate], slots: Mapping[UUID, Slot], now: datetime) -> None:
        self._slots = slots
        self._now = now
        catch_ups = _catch_ups(batch, now)
        self._missed = frozenset(run.run_id for runs in catch_ups for run in runs)
        self._surplus = frozenset(run_id for runs in catch_ups for run_id in _not_run(runs, now))
        self._batch = [self._stands(candidate) for candidate in batch]
        self._decisions: dict[UUID, Decision] = {}
        self._cancels: set[tuple[datetime, UUID]] = set()
        self._left_line: set[UUID] = set()  # schedules of which somebody in line has expired

    def _stands(self, candidate: Candidate) -> Candidate:
        """As it goes on. Missed runs that are all to run wait for each other, whatever the overlap policy;
        how many there are is bounded by the catch-up's own limit, and the buffer takes all of them.
        """
        if candidate.run_id not in self._missed:
            return candidate
        if candidate.catch_up != CatchUp.RUN_ALL or not candidate.slotted:
            return replace(candidate, overdue=True)
        buffer_limit = max(candidate.buffer_limit, _UNBOUNDED)
        return replace(candidate, overdue=True, overlap=Overlap.BUFFER_ALL, buffer_limit=buffer_limit)

    def all(self) -> Batch:
        stale = [candidate for candidate in self._batch if not _is_current(candidate)]
        for candidate in self._batch:
            if _is_current(candidate):
                self._decide(candidate)
        dropped = [_decision(candidate, Verdict.DROP) for candidate in stale]
        return Batch(
            decisions=(*dropped, *self._decisions.values()), holders_to_cancel=frozenset(self._cancels)
        )

    def _decide(self, candidate: Candidate) -> None:
        if candidate.state == State.QUEUED:
            self._note(candidate, Verdict.PUBLISH)
        elif candidate.dispatch_at > self._now:
            return
        elif candidate.run_id in self._surplus:
            self._note(candidate, Verdict.SKIP, SkipReason.MISSED)
        elif not candidate.slotted:
            self._decide_free(candidate)
        elif (slot := self._slots.get(candidate.schedule_id)) is not None:
            self._at_slot(candidate, slot)

    def _decide_free(self, candidate: Candidate) -> None:
        if candidate.is_expired(self._now):
            self._note(candidate, Verdict.SKIP, SkipReason.EXPIRED)
        else:
            self._note(candidate, Verdict.QUEUE)

    def _at_slot(self, candidate: Candidate, slot: Slot) -> None:
        if candidate.is_expired(self._now):
            self._note(candidate, Verdict.SKIP, SkipReason.EXPIRED)
            self._left_line.add(candidate.schedule_id)
            overlap.leave(candidate, slot)
            return
        holder = (slot.holder_due_at, slot.holder)
        admitted = overlap.admit(candidate, slot)
        if admitted.entry is Entry.ENTER:
            self._note(candidate, Verdict.QUEUE)
        elif admitted.entry is Entry.SKIP:
            self._note(candidate, Verdict.SKIP, SkipReason.OVERLAP)
        else:
            self._note(candidate, Verdict.PARK)
        if admitted.displaced is not None:
            self._displace(admitted.displaced)
        if admitted.cancel_holder and holder[0] is not None and holder[1] is not None:
            self._cancels.add((holder[0], holder[1]))

    def _displace(self, run_id: UUID) -> None:
        """The store reads parked runs together with those that may displace them."""
        for candidate in self._batch:
            if candidate.run_id == run_id:
                self._note(candidate, Verdict.SKIP, SkipReason.OVERLAP)

    def _note(self, candidate: Candidate, verdict: Verdict, reason: SkipReason | None = None) -> None:
        decision = _decision(candidate, verdict, reason)
        if verdict is Verdict.PARK:
            # Whoever expired may have been next, and woken for that: those behind look again at once.
            look_by = self._now if candidate.schedule_id in self._left_line else candidate.start_by
            decision = replace(decision, look_by=look_by)
        self._decisions[candidate.run_id] = decision


def _decision(candidate: Candidate, verdict: Verdict, reason: SkipReason | None = None) -> Decision:
    return Decision(
        candidate=candidate,
        verdict=verdict,
        reason=reason,
        overdue=candidate.overdue,
        overlap=candidate.overlap,
    )


def _is_current(candidate: Candidate) -> bool:
    """Whether the row speaks of the run as it stands: of its release, or of the release that it had."""
    if candidate.state == State.QUEUED:
        return candidate.generation == candidate.row_generation
    waits = candidate.state in (State.PENDING, State.RETRY_WAIT, State.SUSPENDED)
    return waits and candidate.generation + 1 == candidate.row_generation


def _waits_for_time(candidate: Candidate) -> bool:
    return (
        candidate.state == State.PENDING
        and candidate.wait_reason == WaitReason.DUE
        and candidate.origin == "schedule"
        and not candidate.overdue  # its own catch-up made it: it is the one that runs
        and candidate.generation == 0  # released before: it was redriven, and no instant is missed
    )


def _catch_ups(batch: Sequence[Candidate], now: datetime) -> list[list[Candidate]]:
    """Of each schedule that missed an instant, all that waited for nothing but their time, up to now."""
    missed = {candidate.schedule_id for candidate in batch if is_late(candidate, now)}
    waiting: dict[UUID, list[Candidate]] = {}
    for candidate in batch:
        if candidate.schedule_id in missed and _waits_for_time(candidate) and candidate.dispatch_at <= now:
            waiting.setdefault(candidate.schedule_id, []).append(candidate)
    return list(waiting.values())


def _not_run(missed: Sequence[Candidate], now: datetime) -> set[UUID]:
    """Of one schedule's missed runs in order: all but the latest that the policy keeps, and the too old."""
    newest = missed[-1]
    kept = {CatchUp.SKIP: 0, CatchUp.RUN_LATEST_ONLY: 1, CatchUp.RUN_ALL: newest.catch_up_limit}
    surplus = missed[: max(0, len(missed) - kept[CatchUp(newest.catch_up)])]
    return {run.run_id for run in surplus} | {run.run_id for run in missed if _is_too_old(run, now)}


def _is_too_old(candidate: Candidate, now: datetime) -> bool:
    window_s = candidate.catch_up_window_s
    return window_s is not None and now > candidate.due_at + timedelta(seconds=window_s)
