"""Runs in child processes, which can die by themselves."""

import os
import signal
from typing import Any
from uuid import UUID

import pytest

from tests.support.installation import Installation, recording
from tests.support.processes import Running
from tests.support.wait import wait_until

PREFORK = ("--pool", "prefork", "--concurrency")
WITHIN_S = 9.0  # three seconds are promised
RARELY_S = 30 * 86400


@pytest.fixture(autouse=True)
def loops(installation: Installation) -> list[Running]:
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.odd_jobs,tests.support.unsafe_job"
    installation.be_brisk()
    return [installation.start(name) for name in ("tick", "relay", "sweep")]


def ask(installation: Installation, name: str, target: str, payload: dict[str, Any], **fields: Any) -> UUID:
    """For a run of a new schedule that is not due by itself within a test."""
    installation.apply(recording(name, target=target, payload=payload, every_s=RARELY_S, **fields))
    installation.run_now(name)
    found = "SELECT o.id FROM occurrence o JOIN schedule s ON s.id = o.schedule_id WHERE s.name = %(name)s"
    run_id: UUID = installation.ledger.scalar(found, name=name)
    return run_id


def outcomes(installation: Installation, run_id: UUID) -> list[str | None]:
    return [outcome for _, _, outcome in installation.ledger.attempts(run_id)]


def state(installation: Installation, run_id: UUID) -> str:
    found: str = installation.ledger.scalar("SELECT state FROM occurrence WHERE id = %(id)s", id=run_id)
    return found


def test_however_a_job_ends_its_run_ends_too(installation: Installation) -> None:
    worker = installation.start("worker", *PREFORK, "2")
    once = {"retry": {"max_attempts": 1}}
    expected = {
        "": ("SUCCEEDED", ["succeeded"]),
        "no json": ("SUCCEEDED", ["succeeded"]),
        "unpicklable": ("DEAD_LETTERED", ["failed"]),
        "system exit": ("DEAD_LETTERED", ["failed"]),
        "exit": ("DEAD_LETTERED", ["lost"]),
        "segfault": ("DEAD_LETTERED", ["lost"]),
    }
    for number, (end, (final, attempts)) in enumerate(expected.items()):
        run_id = ask(installation, f"odd-{number}", "tests.odd", {"end": end}, **once)
        wait_until(lambda run=run_id, want=final: state(installation, run) == want, 30, message=worker.output())
        assert outcomes(installation, run_id) == attempts, end
    assert installation.verify().violations == ()
