"""Runs in greenlets, which share one thread, and yield to each other or not."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from tests.support.installation import BRISK, Installation, recording
from tests.support.processes import Running
from tests.support.wait import wait_until

GEVENT = ("--pool", "gevent", "--concurrency")
RARELY_S = 30 * 86400
ONCE = {"max_attempts": 1}
SESSION_S = float(BRISK["FENCEPOST_SESSION_S"])
RUNS_BY_NAME = "SELECT s.name, o.id FROM occurrence o JOIN schedule s ON s.id = o.schedule_id"


@pytest.fixture(autouse=True)
def loops(installation: Installation) -> list[Running]:
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.odd_jobs"
    installation.be_brisk()
    return [installation.start(name) for name in ("tick", "relay", "sweep")]


def ask_for(installation: Installation, **runs: Mapping[str, Any]) -> dict[str, UUID]:
    """One run of each, of schedules that are not due by themselves within a test; their ids by name."""
    installation.apply(*(recording(name, every_s=RARELY_S, **fields) for name, fields in runs.items()))
    installation.run_now(*runs)
    return dict(installation.ledger.rows(RUNS_BY_NAME))


def all_ended(installation: Installation) -> bool:
    return not installation.ledger.scalar("SELECT count(*) FROM occurrence WHERE finished_at IS NULL")


def test_a_job_that_never_yields_holds_the_others_up_and_costs_nobody_a_run(
    installation: Installation,
) -> None:
    """It computes for three lengths of a session, which is renewed all the same."""
    worker = installation.start("worker", *GEVENT, "20")
    others = {
        f"sleeps-{number}": {"target": "tests.sleeper", "payload": {"seconds": 2}} for number in range(5)
    }
    ask_for(installation, hog={"target": "tests.hog", "payload": {"seconds": 3 * SESSION_S}}, **others)
    wait_until(lambda: all_ended(installation), 60, message=worker.output())
    assert installation.ledger.states() == {"SUCCEEDED": 6}
    assert installation.ledger.scalar("SELECT count(*) FROM attempt") == 6
    assert worker.end() == 0
    assert installation.verify().violations == ()


def test_a_greenlet_is_thrown_out_of_its_job_at_the_limit_and_after_a_cancellation(
    installation: Installation,
) -> None:
    """Also of one that catches every Exception."""
    worker = installation.start("worker", *GEVENT, "20")
    runs = ask_for(
        installation,
        overdue={"target": "tests.deaf", "payload": {}, "timeout_s": 2, "cancel_grace_s": 1, "retry": ONCE},
        unwanted={"target": "tests.deaf", "payload": {}, "cancel_grace_s": 1},
        exits={"target": "tests.odd", "payload": {"end": "system exit"}, "retry": ONCE},
    )
    wait_until(lambda: len(installation.effects("begin")) == 3, 30)
    installation.cancel_run(runs["unwanted"])
    wait_until(lambda: all_ended(installation), 30, message=worker.output())
    states = dict(installation.ledger.rows("SELECT id, state FROM occurrence"))
    assert {name: states[run_id] for name, run_id in runs.items()} == {
        "overdue": "DEAD_LETTERED",
        "unwanted": "CANCELLED",
        "exits": "DEAD_LETTERED",
    }
    outcomes = [outcome for _, _, outcome in installation.ledger.attempts(runs["unwanted"])]
    assert outcomes == ["cancelled"]
    assert worker.running()
    assert installation.verify().violations == ()


def test_a_process_whose_loop_stands_still_beyond_every_limit_leaves(installation: Installation) -> None:
    worker = installation.start("worker", *GEVENT, "20")
    limits = {"timeout_s": 1, "cancel_grace_s": 1, "retry": ONCE}
    ask_for(installation, hog={"target": "tests.hog", "payload": {"seconds": 600}, **limits})
    wait_until(lambda: not worker.running(), 90, message=worker.output())
    assert "loop_stands_still" in worker.output()
    wait_until(lambda: installation.ledger.states() == {"DEAD_LETTERED": 1})
