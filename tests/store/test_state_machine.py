"""The database knows the machine of core/states.py, and nothing more."""

from itertools import product
from typing import Any

import psycopg
import pytest

from scheduler.core.states import TERMINAL, SkipReason, State, WaitReason, is_allowed
from tests.support.ledger import HandMadeLedger

PAIRS = [(source, target) for source, target in product(State, State) if source is not target]

MOVE = """
UPDATE occurrence SET state = %(target)s, wait_reason = %(wait)s, skip_reason = %(skip)s,
    finished_at = CASE WHEN %(ended)s THEN clock_timestamp() END,
    queued_at = clock_timestamp(), generation = generation + 1, fence = 1, attempt_count = 1
WHERE id = %(run_id)s
"""


def consistent(state: State) -> dict[str, Any]:
    """The columns that the CHECKs ask for beside this state."""
    return {
        "wait": WaitReason.DUE if state is State.PENDING else None,
        "skip": SkipReason.OVERLAP if state is State.SKIPPED else None,
        "ended": state in TERMINAL,
    }


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_a_move_works_if_and_only_if_it_is_in_the_table(
    source: State, target: State, ledger: HandMadeLedger, connection: psycopg.Connection[Any]
) -> None:
    run_id = ledger.run(ledger.instant(1), source, fence=1, attempt_count=1)

    def move() -> None:
        connection.execute(MOVE, {"target": target, "run_id": run_id, **consistent(target)})

    if is_allowed(source, target):
        move()
        assert ledger.connection.execute("SELECT state FROM occurrence").fetchone() == (target,)
    else:
        with pytest.raises(psycopg.errors.CheckViolation, match="no transition"):
            move()


@pytest.mark.parametrize("state", State)
def test_only_pending_and_skipped_are_born(state: State, ledger: HandMadeLedger) -> None:
    ledger.connection.execute("SET session_replication_role = origin")  # with triggers this time
    if is_allowed(None, state):
        ledger.run(ledger.instant(1), state)
    else:
        with pytest.raises(psycopg.errors.CheckViolation, match="cannot be born"):
            ledger.run(ledger.instant(1), state, fence=1, attempt_count=1)


def test_a_run_has_one_row_for_its_identity(ledger: HandMadeLedger) -> None:
    ledger.run(ledger.instant(1), "PENDING")
    with pytest.raises(psycopg.errors.UniqueViolation, match="schedule_id"):
        ledger.run(ledger.instant(1), "PENDING")


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        ("PENDING", {"wait_reason": None}),
        ("PENDING", {"wait_reason": "boredom"}),
        ("SKIPPED", {"skip_reason": None}),
        ("SUCCEEDED", {"finished_at": None}),
        ("RUNNING", {"fence": None}),
        ("QUEUED", {"queued_at": None}),
        ("PENDING", {"origin": "whim"}),
        ("PENDING", {"origin": "trigger"}),
    ],
)
def test_rows_that_contradict_themselves_are_refused(
    state: str, columns: dict[str, Any], ledger: HandMadeLedger
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        ledger.run(ledger.instant(1), state, **columns)


def test_runs_lie_in_the_partition_of_their_month(ledger: HandMadeLedger) -> None:
    ledger.run(ledger.instant(1), "PENDING")
    (partition,) = ledger.connection.execute(
        "SELECT tableoid::regclass::text FROM occurrence"
    ).fetchone() or ("",)
    assert partition == f"occurrence_{ledger.instant(1):%Y%m}"


def test_making_partitions_again_makes_none(connection: psycopg.Connection[Any]) -> None:
    assert connection.execute("SELECT fencepost_make_partitions(3)").fetchone() == (0,)
    assert connection.execute("SELECT fencepost_make_partitions(5)").fetchone() == (4,)
