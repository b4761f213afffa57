"""Hooks that find out how a run of unknown outcome ended: one asks, and a run is settled once."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler.core.states import AttemptOutcome, State
from scheduler.store import claims
from scheduler.store.claims import Claimed
from scheduler.worker import reconciler
from scheduler.worker.reconciler import Hook, Reconciler, UnknownRun
from scheduler.worker.registry import JobSpec
from tests.store.test_claims import claim_of, end, ending, open_session, take
from tests.support.ledger import HandMadeLedger

Connection = psycopg.Connection[Any]


@pytest.fixture
def unknown(ledger: HandMadeLedger, connection: Connection) -> Claimed:
    """The last holder of a run in its slot of which nobody knows how it ended."""
    connection.execute("UPDATE target SET side_effects = 'unsafe_external'")
    return make_unknown(ledger, connection, 1)


def make_unknown(ledger: HandMadeLedger, connection: Connection, number: int) -> Claimed:
    due_at = ledger.instant(number)
    run_id = ledger.run(due_at, "QUEUED", overlap="skip" if number == 1 else "allow")
    held = take(connection, claim_of(run_id, due_at), open_session(connection))
    assert isinstance(held, Claimed)
    if number == 1:
        slot = [held.schedule_id, held.run_id, held.due_at]
        connection.execute("INSERT INTO overlap_slot VALUES (%s, %s, %s)", slot)
    lost = {"type": "TimeoutError", "message": "no answer"}
    end(connection, ending(held, State.UNKNOWN, outcome=AttemptOutcome.FAILED, error=lost))
    return held


@pytest.fixture
def asks(connect: Callable[[], Connection]) -> Callable[..., bool]:
    """One round of a worker whose job has this hook; whether it asked."""

    def ask(hook: Hook, *, hook_s: float = 30, target: str = "demo.record") -> bool:
        spec = JobSpec(
            name=target,
            function=lambda ctx: None,
            retry=None,
            timeout_s=None,
            side_effects="unsafe_external",
            parameters={},
            description="",
            reconcile=hook,
        )
        return Reconciler(lambda name: connect(), lambda: {target: spec}, hook_s=hook_s).round()

    return ask


def run_of(connection: Connection) -> tuple[Any, ...]:
    row = connection.execute("SELECT state, reconcile_tries FROM occurrence ORDER BY due_at").fetchone()
    assert row is not None
    return tuple(row)


def audit(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT actor, action, subject_id, after->>'state' FROM audit_entry").fetchall()


@pytest.mark.parametrize(
    ("answer", "state", "keeps_slot"),
    [("succeeded", "SUCCEEDED", False), ("failed", "FAILED", False), ("retry", "PENDING", True)],
)
def test_what_a_hook_says_settles_the_run(
    answer: str, state: str, keeps_slot: bool, unknown: Claimed, asks: Any, connection: Connection
) -> None:
    assert asks(lambda run: answer)
    assert run_of(connection) == (state, 1)
    slot = connection.execute("SELECT run_id IS NOT NULL FROM overlap_slot").fetchone()
    assert slot == (keeps_slot,)
    assert audit(connection) == [("reconcile hook of demo.record", "run.reconcile", unknown.run_id, state)]
    assert not asks(lambda run: answer)


def test_a_hook_gets_the_run_and_its_last_attempt(unknown: Claimed, asks: Any) -> None:
    seen = list[UnknownRun]()
    asks(seen.append)
    (run,) = seen
    assert (run.run_id, run.due_at, run.fence, run.attempt) == (
        unknown.run_id,
        unknown.due_at,
        unknown.fence,
        1,
    )
    assert (run.tenant, run.payload, run.error) == (
        "demo",
        {},
        {"type": "TimeoutError", "message": "no answer"},
    )
    assert run.key("charge") != run.idempotency_key


def boom(run: UnknownRun) -> str:
    raise ConnectionResetError("the bank is away")


def exits(run: UnknownRun) -> str:
    raise SystemExit(1)


@pytest.mark.parametrize(
    "hook", [lambda run: None, lambda run: "perhaps", lambda run: True, boom, exits], ids=str
)
def test_a_hook_that_does_not_know_is_asked_again_later_each_time_twice_as_late(
    hook: Hook, unknown: Claimed, asks: Any, connection: Connection
) -> None:
    waits = []
    for _ in range(3):
        assert asks(hook)
        row = connection.execute(
            "SELECT extract(epoch FROM reconcile_at - clock_timestamp())::float8 FROM occurrence"
        ).fetchone()
        assert row is not None
        waits.append(row[0])
        assert not asks(hook)
        connection.execute("UPDATE occurrence SET reconcile_at = clock_timestamp()")
    assert [round(wait / 60) for wait in waits] == [1, 2, 4]
    assert run_of(connection) == ("UNKNOWN", 3)
    assert audit(connection) == []


def test_the_wait_is_bounded(unknown: Claimed, asks: Any, connection: Connection) -> None:
    connection.execute("UPDATE occurrence SET reconcile_tries = 1000000")
    assert asks(lambda run: None)
    bounded = connection.execute(
        "SELECT reconcile_at < clock_timestamp() + interval '1 hour' FROM occurrence"
    )
    assert bounded.fetchone() == (True,)


def test_a_hook_that_does_not_come_back_is_left_behind_and_its_answer_is_no_answer(
    unknown: Claimed, asks: Any, connection: Connection
) -> None:
    may_end = threading.Event()

    def hangs(run: UnknownRun) -> str:
        may_end.wait(30)
        return "succeeded"

    assert asks(hangs, hook_s=0.05)
    may_end.set()
    assert run_of(connection) == ("UNKNOWN", 1)


def test_where_too_many_hang_nobody_is_asked(
    ledger: HandMadeLedger, connection: Connection, unknown: Claimed, connect: Any
) -> None:
    may_end = threading.Event()
    spec = JobSpec(
        name="demo.record",
        function=lambda ctx: None,
        retry=None,
        timeout_s=None,
        side_effects="unsafe_external",
        parameters={},
        description="",
        reconcile=lambda run: may_end.wait(30) and None,
    )
    one = Reconciler(lambda name: connect(), lambda: {"demo.record": spec}, hook_s=0.02)
    for _ in range(reconciler.MOST_OVERTIME):
        connection.execute("UPDATE occurrence SET reconcile_at = clock_timestamp()")
        assert one.round()
    connection.execute("UPDATE occurrence SET reconcile_at = clock_timestamp()")
    assert not one.round()
    may_end.set()


def test_of_two_workers_one_asks(unknown: Claimed, asks: Any) -> None:
    """The second comes while the first still asks."""
    asked = list[UUID]()
    others = list[bool]()

    def hook(run: UnknownRun) -> None:
        asked.append(run.run_id)
        others.append(asks(lambda run: asked.append(run.run_id)))

    assert asks(hook)
    assert (asked, others) == ([unknown.run_id], [False])


def test_a_worker_asks_about_the_jobs_that_it_knows(unknown: Claimed, asks: Any) -> None:
    assert not asks(lambda run: "succeeded", target="somebody.elses")


@pytest.mark.parametrize("answer", ["succeeded", "failed", "retry"])
def test_a_late_completion_during_the_question_is_the_one_end(
    answer: str, unknown: Claimed, asks: Any, connection: Connection
) -> None:
    late = ending(unknown, State.SUCCEEDED)

    def hook(run: UnknownRun) -> str:
        with connection.transaction():
            claims.lock(connection, endings=[late])
            assert claims.resolve_unknown(connection, [late])
        return answer

    assert asks(hook)
    assert run_of(connection)[0] == "SUCCEEDED"
    assert audit(connection) == []


def test_what_a_hook_says_of_one_attempt_is_not_said_of_the_next(
    unknown: Claimed, asks: Any, connection: Connection
) -> None:
    """Somebody had it tried again meanwhile, and that attempt is UNKNOWN too."""

    def hook(run: UnknownRun) -> str:
        connection.execute("UPDATE occurrence SET fence = nextval('fence_seq')")
        return "succeeded"

    assert asks(hook)
    assert run_of(connection)[0] == "UNKNOWN"


def test_nothing_of_a_cancelled_schedule_is_tried_again(
    unknown: Claimed, asks: Any, connection: Connection
) -> None:
    connection.execute("UPDATE schedule SET state = 'cancelled'")
    assert asks(lambda run: "retry")
    assert run_of(connection)[0] == "UNKNOWN"
    connection.execute("UPDATE occurrence SET reconcile_at = clock_timestamp()")
    assert asks(lambda run: "failed")
    assert run_of(connection)[0] == "FAILED"


def test_each_of_many_is_asked_about(ledger: HandMadeLedger, connection: Connection, asks: Any) -> None:
    connection.execute("UPDATE target SET side_effects = 'unsafe_external'")
    for number in (2, 3, 4):
        make_unknown(ledger, connection, number)
    assert [asks(lambda run: "failed") for _ in range(4)] == [True, True, True, False]
