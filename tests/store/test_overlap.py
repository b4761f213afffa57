"""Slots on real rows: who waits, who is woken by what, and no order of two transactions strands anybody."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from scheduler.clock import database_now
from scheduler.core.states import AttemptOutcome, State
from scheduler.processes.relay import Relay
from scheduler.store import claims, schedules, sessions
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.store.schedules import RunKey
from tests.processes.test_rounds import Notebook, ownership
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]


class Schedule:
    """A slotted schedule whose runs come due one by one and are worked on by hand."""

    def __init__(self, ledger: HandMadeLedger, connection: Connection, policy: str) -> None:
        self.ledger = ledger
        self.connection = connection
        self.policy = policy
        self.number = 0
        self.session_id = uuid4()
        sessions.open_session(
            connection, self.session_id, kind="worker", worker="host:1", capacity=9, length_s=600
        )
        connection.execute("INSERT INTO overlap_slot (schedule_id) VALUES (%s)", [ledger.schedule_id])
        connection.execute("UPDATE schedule_revision SET catch_up_after_s = 7200, buffer_limit = 2")
        self.relay = Relay(ownership("relay", ignore=True), Notebook())

    def come_due(self) -> UUID:
        run_id = self.write()
        self.round()
        return run_id

    def write(self, **columns: Any) -> UUID:
        self.number += 1
        due_at = self.ledger.instant(self.number)
        run_id = self.ledger.run(due_at, "PENDING", **{"overlap": self.policy, **columns})
        self.ledger.outbox(run_id, due_at, 1)
        return run_id

    def round(self) -> None:
        self.relay.run_once(self.connection, database_now(self.connection))

    def key(self, run_id: UUID) -> RunKey:
        (due_at,) = (
            self.connection.execute("SELECT due_at FROM occurrence WHERE id = %s", [run_id]).fetchone() or ()
        )
        return RunKey(due_at, run_id)

    def begin(self, run_id: UUID) -> Claimed:
        claim = Claim(run_id=run_id, due_at=self.key(run_id).due_at, claim_id=uuid4())
        with self.connection.transaction():
            claims.lock(self.connection, claims=[claim])
            claims.claim(self.connection, [claim], session_id=self.session_id)
        return claims.claimed(self.connection, [claim.claim_id])[claim.claim_id]

    def end(self, held: Claimed, state: State, connection: Connection | None = None) -> None:
        one = Ending(
            run_id=held.run_id,
            due_at=held.due_at,
            fence=held.fence,
            schedule_id=held.schedule_id,
            slotted=held.slotted,
            state=state,
            outcome=AttemptOutcome.SUCCEEDED if state is State.SUCCEEDED else AttemptOutcome.FAILED,
            delay_s=0.0 if state is State.RETRY_WAIT else None,
        )
        with (connection or self.connection).transaction():
            claims.lock(connection or self.connection, endings=[one])
            claims.end_attempts(connection or self.connection, [one], guard="holder")

    def reconcile(self, run_id: UUID, answer: State) -> None:
        with self.connection.transaction():
            schedules.lock_slot(self.connection, self.ledger.schedule_id)
            schedules.lock_run(self.connection, self.key(run_id))
            assert schedules.reconcile(self.connection, self.key(run_id), answer)

    def cancel(self, run_id: UUID) -> None:
        with self.connection.transaction():
            schedules.lock_slot(self.connection, self.ledger.schedule_id)
            schedules.lock_run(self.connection, self.key(run_id))
            schedules.cancel(self.connection, [self.key(run_id)], now=database_now(self.connection))

    def asked_to_stop(self, run_id: UUID) -> bool:
        asked = "SELECT cancel_requested_at IS NOT NULL FROM occurrence WHERE id = %s"
        (stop,) = self.connection.execute(asked, [run_id]).fetchone() or (False,)
        return bool(stop)

    def states(self) -> list[str]:
        rows = self.connection.execute("SELECT state FROM occurrence ORDER BY due_at").fetchall()
        return [state for (state,) in rows]


@pytest.fixture
def schedule_of(ledger: HandMadeLedger, connection: Connection) -> Callable[[str], Schedule]:
    return lambda policy: Schedule(ledger, connection, policy)


ENDS = [State.SUCCEEDED, State.FAILED, State.DEAD_LETTERED]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("policy", ["buffer_one", "buffer_all", "cancel_running"])
def test_each_end_of_the_active_run_wakes_the_next(
    policy: str, end: State, schedule_of: Callable[[str], Schedule]
) -> None:
    schedule = schedule_of(policy)
    first, _ = schedule.come_due(), schedule.come_due()
    if policy == "cancel_running":
        assert schedule.states() == ["CANCELLED", "PENDING"]  # it was QUEUED: nobody had begun it
    else:
        assert schedule.states() == ["QUEUED", "PENDING"]
        schedule.end(schedule.begin(first), end)
    schedule.round()
    assert schedule.states()[1] == "QUEUED"


@pytest.mark.parametrize("answer", [State.SUCCEEDED, State.FAILED, State.PENDING])
@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all", "cancel_running"])
def test_an_unknown_outcome_keeps_the_slot_until_somebody_says_how_it_ended(
    policy: str, answer: State, schedule_of: Callable[[str], Schedule]
) -> None:
    schedule = schedule_of(policy)
    first = schedule.come_due()
    schedule.end(schedule.begin(first), State.UNKNOWN)
    schedule.come_due()
    waiting = "SKIPPED" if policy == "skip" else "PENDING"
    assert schedule.states() == ["UNKNOWN", waiting]
    assert not schedule.asked_to_stop(first)

    schedule.reconcile(first, answer)
    schedule.round()
    if policy == "skip":
        assert schedule.states() == ["QUEUED" if answer is State.PENDING else answer, "SKIPPED"]
    elif (
        answer is State.PENDING
    ):  # it is not over and keeps its slot; where the newer one stops it, it is stopped
        again = "CANCELLED" if policy == "cancel_running" else "QUEUED"
        assert schedule.states() == [again, "PENDING"]
    else:
        assert schedule.states() == [answer, "QUEUED"]


@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all", "cancel_running"])
def test_a_retry_in_between_keeps_the_slot(policy: str, schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of(policy)
    schedule.end(schedule.begin(schedule.come_due()), State.RETRY_WAIT)
    schedule.come_due()
    expected = {
        "skip": ["QUEUED", "SKIPPED"],
        "buffer_one": ["QUEUED", "PENDING"],
        "buffer_all": ["QUEUED", "PENDING"],
    }
    if policy == "cancel_running":
        assert schedule.states()[0] == "CANCELLED"
    else:
        assert schedule.states() == expected[policy]


def test_buffer_one_keeps_the_newest(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("buffer_one")
    first = schedule.come_due()
    for _ in range(3):
        schedule.come_due()
    assert schedule.states() == ["QUEUED", "SKIPPED", "SKIPPED", "PENDING"]
    schedule.end(schedule.begin(first), State.SUCCEEDED)
    schedule.round()
    assert schedule.states() == ["SUCCEEDED", "SKIPPED", "SKIPPED", "QUEUED"]


def test_buffer_all_is_bounded_and_goes_in_order(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("buffer_all")
    runs = [schedule.come_due() for _ in range(4)]
    assert schedule.states() == ["QUEUED", "PENDING", "PENDING", "SKIPPED"]
    for number in (0, 1, 2):
        schedule.end(schedule.begin(runs[number]), State.SUCCEEDED)
        schedule.round()
    assert schedule.states() == ["SUCCEEDED"] * 3 + ["SKIPPED"]


def test_cancel_running_asks_the_running_one_to_stop(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("cancel_running")
    held = schedule.begin(schedule.come_due())
    schedule.come_due()
    assert schedule.states() == ["RUNNING", "PENDING"]
    asked = schedule.connection.execute(
        "SELECT cancel_requested_at FROM occurrence ORDER BY due_at"
    ).fetchone()
    assert asked is not None
    assert asked[0] is not None
    schedule.end(held, State.RETRY_WAIT)  # how a cancelled attempt's error would have ended
    schedule.round()
    assert schedule.states() == ["CANCELLED", "QUEUED"]


@pytest.mark.parametrize("made_by", ["tick", "release"])
@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all", "cancel_running"])
def test_run_all_runs_each_missed_instant_though_newer_ones_come_meanwhile(
    policy: str, made_by: str, schedule_of: Callable[[str], Schedule]
) -> None:
    """Missed by the tick, they are written as a catch-up's; missed by the relay, it makes them one."""
    schedule = schedule_of(policy)
    schedule.connection.execute("UPDATE schedule_revision SET catch_up = 'run_all', catch_up_after_s = 3000")
    columns = {"overlap": "buffer_all", "overdue": True} if made_by == "tick" else {}
    missed = [schedule.write(**columns) for _ in range(5)]  # more than the buffer of two holds
    schedule.round()
    schedule.number = 50
    newer = [schedule.come_due() for _ in range(2)]
    for run_id in missed:
        assert not schedule.asked_to_stop(run_id)
        schedule.end(schedule.begin(run_id), State.SUCCEEDED)
        schedule.round()
    ends = {"skip": ["SKIPPED"] * 2, "buffer_all": ["SKIPPED"] * 2}
    assert schedule.states() == ["SUCCEEDED"] * 5 + ends.get(policy, ["SKIPPED", "QUEUED"])
    assert newer


def test_a_cancelled_run_wakes_the_next(schedule_of: Callable[[str], Schedule]) -> None:
    schedule = schedule_of("buffer_all")
    first, second, third = (schedule.come_due() for _ in range(3))
    schedule.cancel(second)  # one that waits: its place in line is empty, nothing else happens
    assert schedule.states() == ["QUEUED", "CANCELLED", "PENDING"]
    schedule.cancel(first)
    schedule.round()
    assert schedule.states() == ["CANCELLED", "CANCELLED", "QUEUED"]
    assert third


def test_two_releases_at_once_let_one_in(
    schedule_of: Callable[[str], Schedule], connect: Callable[[], Connection]
) -> None:
    """Both would see that nothing is active: the one that comes second passes the locked slot over."""
    schedule = schedule_of("skip")
    first, second = connect(), connect()
    second.execute("SET lock_timeout = '2 s'")
    with first.transaction():
        schedule.connection = first
        schedule.come_due()
        schedule.connection = second
        schedule.come_due()
        assert schedule.states() == ["PENDING", "PENDING"]
    schedule.round()
    assert schedule.states() == ["QUEUED", "SKIPPED"]


@pytest.mark.parametrize("parks_first", [True, False])
def test_an_end_and_a_park_at_once_strand_nobody(
    parks_first: bool,
    schedule_of: Callable[[str], Schedule],
    connect: Callable[[], Connection],
    wait_for_lock: Callable[[int], None],
) -> None:
    """Two releases that both look see nothing active; an end that looks while a release parks sees nobody.
    Both lock the slot first: whoever comes second sees what the first has done.
    """
    schedule = schedule_of("buffer_all")
    held = schedule.begin(schedule.come_due())
    ender, parker = connect(), connect()
    if parks_first:
        with parker.transaction():
            schedule.connection = parker
            schedule.come_due()  # within the outer transaction: parked, not committed
            thread = threading.Thread(target=lambda: schedule.end(held, State.SUCCEEDED, ender))
            thread.start()
            wait_for_lock(ender.info.backend_pid)
        thread.join(10)
    else:
        with ender.transaction():
            schedule.end(held, State.SUCCEEDED, ender)
            schedule.connection = parker
            schedule.come_due()  # the slot is locked: the release passes it over, and looks again
            assert schedule.states() == ["RUNNING", "PENDING"]
    schedule.connection = connect()
    schedule.round()
    assert schedule.states() == ["SUCCEEDED", "QUEUED"]
