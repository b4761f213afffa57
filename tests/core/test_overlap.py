"""Every policy at a slot that is free, held, held by itself, with and without others in line."""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.overlap import Entry, Overlap, Slot, Verdict, admit, leave

HOLDER, FIRST = uuid4(), uuid4()
WAITING = [Overlap.SKIP, Overlap.BUFFER_ONE, Overlap.BUFFER_ALL, Overlap.CANCEL_RUNNING]
REPLACING = [Overlap.BUFFER_ONE, Overlap.CANCEL_RUNNING]


@dataclass
class Run:
    overlap: str
    run_id: UUID
    is_parked: bool = False
    buffer_limit: int = 2
    overdue: bool = False
    asked_anew: bool = False
    due_at: datetime = datetime(2026, 11, 30, tzinfo=UTC)


def run(policy: Overlap, run_id: UUID | None = None, **fields: bool) -> Run:
    return Run(overlap=policy, run_id=run_id or uuid4(), **fields)


def line_of_one(policy: Overlap) -> Slot:
    replaceable = FIRST if policy in REPLACING else None
    return Slot(holder=HOLDER, parked=1, first_parked=FIRST, replaceable=replaceable)


@pytest.mark.parametrize("policy", WAITING)
def test_a_free_slot_is_entered_by_any_policy(policy: Overlap) -> None:
    slot, comer = Slot(), run(policy)
    assert admit(comer, slot).entry is Entry.ENTER
    assert slot.holder == comer.run_id


@pytest.mark.parametrize("policy", WAITING)
def test_a_retry_finds_itself_in_the_slot_whoever_waits(policy: Overlap) -> None:
    slot = Slot(holder=HOLDER, parked=1, first_parked=FIRST)
    assert admit(run(policy, HOLDER), slot).entry is Entry.ENTER


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (Overlap.SKIP, Verdict(entry=Entry.SKIP)),
        (Overlap.BUFFER_ONE, Verdict(entry=Entry.PARK, displaced=FIRST)),
        (Overlap.BUFFER_ALL, Verdict(entry=Entry.PARK)),
        (Overlap.CANCEL_RUNNING, Verdict(entry=Entry.PARK, displaced=FIRST, cancel_holder=True)),
    ],
)
def test_a_held_slot_with_one_in_line(policy: Overlap, verdict: Verdict) -> None:
    assert admit(run(policy), line_of_one(policy)) == verdict


@pytest.mark.parametrize("policy", WAITING[1:])
def test_a_parked_run_that_is_looked_at_again_stays_parked(policy: Overlap) -> None:
    slot = line_of_one(policy)
    verdict = admit(run(policy, FIRST, is_parked=True), slot)
    assert (verdict.entry, verdict.displaced, slot.parked) == (Entry.PARK, None, 1)


def test_the_first_in_line_enters_a_freed_slot_and_a_newer_run_does_not_pass_it() -> None:
    slot = Slot(parked=2, first_parked=FIRST)
    assert admit(run(Overlap.BUFFER_ALL), slot).entry is Entry.SKIP  # the buffer of two is full
    assert admit(run(Overlap.BUFFER_ALL, FIRST, is_parked=True), slot).entry is Entry.ENTER
    assert (slot.holder, slot.parked) == (FIRST, 1)
    assert admit(run(Overlap.BUFFER_ALL), slot).entry is Entry.PARK


@pytest.mark.parametrize("policy", REPLACING)
def test_a_missed_run_that_was_promised_is_waited_for_and_not_replaced(policy: Overlap) -> None:
    slot = Slot()
    first, second = (run(Overlap.BUFFER_ALL, overdue=True) for _ in range(2))
    older, newer = run(policy), run(policy)
    assert admit(first, slot) == Verdict(entry=Entry.ENTER)
    assert admit(second, slot) == Verdict(entry=Entry.PARK)
    assert admit(older, slot) == Verdict(entry=Entry.PARK)
    assert admit(newer, slot) == Verdict(entry=Entry.PARK, displaced=older.run_id)
    assert (slot.holder, slot.first_parked, slot.parked) == (first.run_id, second.run_id, 2)


def test_a_run_that_somebody_let_wait_is_no_promise_that_it_runs_to_its_end() -> None:
    """`buffer_all` on one run, or on a revision before this one, is how that run came to the slot."""
    slot = Slot()
    admit(run(Overlap.BUFFER_ALL), slot)
    assert admit(run(Overlap.CANCEL_RUNNING), slot).cancel_holder


PROMISES = st.sampled_from(["", "overdue", "asked_anew"])


@pytest.mark.parametrize("policy", REPLACING)
@given(comers=st.lists(st.tuples(PROMISES, st.booleans()), max_size=60))
def test_whoever_comes_and_ends_each_promised_run_enters_in_order_and_one_other_waits(
    policy: Overlap, comers: list[tuple[str, bool]]
) -> None:
    """Runs come one by one, promised or not; after some of them the active run ends and the next is woken."""
    slot, line, promised, entered = Slot(), list[Run](), list[UUID](), list[UUID]()
    for promise, end in [*comers, *[("", True)] * len(comers)]:
        is_promised = promise != ""
        comer = run(
            Overlap.BUFFER_ALL if is_promised else policy,
            overdue=promise == "overdue",
            asked_anew=promise == "asked_anew",
        )
        comer.buffer_limit = 1000
        verdict = admit(comer, slot)
        promised += [comer.run_id] if is_promised else []
        if verdict.entry is Entry.ENTER:
            entered.append(comer.run_id)
        else:
            comer.is_parked = True
            line = [*(waiting for waiting in line if waiting.run_id != verdict.displaced), comer]
        assert [waiting.overlap for waiting in line].count(policy) <= 1
        if end and line:
            slot = seen(line)
            assert admit(line[0], slot).entry is Entry.ENTER
            entered.append(line.pop(0).run_id)
            slot.first_parked = seen(line).first_parked
    assert [run_id for run_id in entered if run_id in promised] == promised


@pytest.mark.parametrize("policy", WAITING[1:])
def test_whoever_leaves_the_line_holds_nobody_up_who_comes_to_it_empty(policy: Overlap) -> None:
    slot = Slot(parked=1, first_parked=FIRST, replaceable=FIRST if policy in REPLACING else None)
    leave(run(policy, FIRST, is_parked=True), slot)
    assert slot == Slot()
    leave(run(policy), slot)  # it had not stood in line
    assert slot == Slot()


@pytest.mark.parametrize("policy", WAITING)
def test_nobody_goes_before_those_that_stand_behind_whoever_left_the_line(policy: Overlap) -> None:
    slot = Slot(parked=2, first_parked=FIRST)
    leave(run(Overlap.BUFFER_ALL, FIRST, is_parked=True), slot)
    assert admit(run(policy), slot).entry is not Entry.ENTER


def seen(line: list[Run]) -> Slot:
    """A free slot as the store reads it, with these in line."""
    replaceable = [waiting.run_id for waiting in line if waiting.overlap in REPLACING]
    return Slot(
        parked=len(line),
        first_parked=line[0].run_id if line else None,
        replaceable=replaceable[0] if replaceable else None,
    )


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_a_bounded_buffer_loses_nothing_it_took_and_keeps_the_order(ends: list[bool], limit: int) -> None:
    """Runs come one by one; after some of them the active run ends and the first in line is woken."""
    slot, line, entered, taken = Slot(), list[Run](), list[UUID](), list[UUID]()
    for end in ends:
        comer = run(Overlap.BUFFER_ALL)
        comer.buffer_limit = limit
        entry = admit(comer, slot).entry
        if entry is not Entry.SKIP:
            taken.append(comer.run_id)
        if entry is Entry.ENTER:
            entered.append(comer.run_id)
        elif entry is Entry.PARK:
            comer.is_parked = True
            line.append(comer)
        assert len(line) <= limit
        if end and slot.holder is not None:
            slot = Slot(parked=len(line), first_parked=line[0].run_id if line else None)
            if line:
                woken = line.pop(0)
                assert admit(woken, slot).entry is Entry.ENTER
                entered.append(woken.run_id)
                slot.first_parked = line[0].run_id if line else None
    assert entered + [waiting.run_id for waiting in line] == taken
