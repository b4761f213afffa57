"""An application's own code and its own Celery tasks: nothing in them knows of fences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.installation import TENANT, Installation
from tests.support.wait import wait_until

TASKS = "tests.support.shop_tasks."
NAMES = ("add", "flaky", "automatic", "gives_up", "insists", "broken", "kept", "odd", "exits", "slow")

ASK = """
import os, signal
from django.db import transaction
from scheduler.jobs import run_now
with transaction.atomic():
    print(run_now("demo.record", {{"seconds": 0}}, tenant={tenant!r}, key={key!r}), flush=True)
    {before}
os.kill(os.getpid(), signal.SIGKILL)
"""

DELAY = """
import scheduler.project.celery
from tests.support.shop_tasks import flaky
flaky.delay("plain", good_after=2)
"""


@pytest.fixture(autouse=True)
def _application(installation: Installation) -> None:
    installation.be_brisk()
    installation.environ["FENCEPOST_JOBS"] = (
        "examples.jobs,tests.support.shop_tasks,tests.support.keeping_job"
    )
    installation.environ["FENCEPOST_TASKS"] = ",".join(TASKS + name for name in NAMES)


def start_loops(installation: Installation) -> None:
    installation.command("apply")
    for name in ("tick", "relay", "sweep"):
        installation.start(name)


def state_of(installation: Installation, run_id: UUID) -> str:
    found: str = installation.ledger.scalar("SELECT state FROM occurrence WHERE id = %(id)s", id=run_id)
    return found


def ask(installation: Installation, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[UUID]:
    lines = [f"print(run_now({task!r}, {payload!r}, tenant={TENANT!r}))" for task, payload in requests]
    told = installation.command("shell", "-c", "\n".join(["from scheduler.jobs import run_now", *lines]))
    return [UUID(run_id) for run_id in told.split()[-len(requests) :]]


def test_a_run_that_is_committed_runs_though_its_process_died_at_once(installation: Installation) -> None:
    start_loops(installation)
    died = installation.start("shell", "-c", ASK.format(tenant=TENANT, key="kept", before="pass"))
    assert died.process.wait(60) == -9, died.output()
    died_before = installation.start(
        "shell", "-c", ASK.format(tenant=TENANT, key="lost", before="os.kill(os.getpid(), signal.SIGKILL)")
    )
    assert died_before.process.wait(60) == -9, died_before.output()
    committed, rolled_back = (UUID(one.output().split()[-1]) for one in (died, died_before))

    installation.start("worker")
    wait_until(lambda: state_of(installation, committed) == "SUCCEEDED", 60)
    count = "SELECT count(*) FROM occurrence WHERE id = %(id)s"
    assert installation.ledger.scalar(count, id=rolled_back) == 0
    assert [effect.run for effect in installation.effects("begin")] == [committed]
    assert installation.verify().violations == ()


def test_plain_tasks_keep_their_retries_and_their_errors(installation: Installation) -> None:
    start_loops(installation)
    worker = installation.start("worker")
    requests: list[tuple[str, dict[str, Any]]] = [
        (TASKS + "add", {"x": 1, "y": 2}),
        (TASKS + "flaky", {"name": "flaky"}),
        (TASKS + "flaky", {"name": "hopeless", "good_after": 99}),
        (TASKS + "automatic", {"name": "automatic"}),
        (TASKS + "gives_up", {"name": "gives_up"}),
        (TASKS + "insists", {"name": "insists"}),
        (TASKS + "broken", {"name": "broken"}),
        (TASKS + "kept", {"x": 4}),
        ("tests.keeping", {"rows": 5}),
    ]
    ends: list[tuple[str, int, Any]] = [
        ("SUCCEEDED", 1, 3),
        ("SUCCEEDED", 3, None),
        ("FAILED", 4, None),
        ("FAILED", 3, None),
        ("FAILED", 2, None),
        ("SUCCEEDED", 2, {"rows": 2}),
        ("FAILED", 1, None),
        ("SUCCEEDED", 1, {"doubled": 8}),
        ("SUCCEEDED", 1, {"rows": 5}),
    ]
    expected = dict(zip(ask(installation, requests), ends, strict=True))
    found = "SELECT state, attempt_count, result FROM occurrence WHERE id = %(id)s"
    for run_id, (state, attempts, result) in expected.items():
        wait_until(lambda run_id=run_id: state_of(installation, run_id) in ("SUCCEEDED", "FAILED"), 60)
        row = installation.ledger.rows(found, id=run_id)[0]
        assert row[:2] == (state, attempts), worker.output()
        assert result is None or row[2] == result
    calls = {
        file.name: file.stat().st_size
        for file in (Path(installation.effects_file).parent / "calls").iterdir()
    }
    assert calls == {
        "add": 1, "flaky": 3, "hopeless": 4, "automatic": 3, "gives_up": 2, "insists": 2, "broken": 1,
    }, "and none besides"  # fmt: skip

    kept = "SELECT task_id, status, result FROM django_celery_results_taskresult ORDER BY result"
    doubled, rows = list(map(str, expected))[-2:]
    assert installation.ledger.rows(kept) == [
        (doubled, "SUCCESS", '{"doubled": 8}'),
        (rows, "SUCCESS", '{"rows": 5}'),
    ]
    errors = "SELECT error->>'type' FROM occurrence WHERE state = 'FAILED' ORDER BY 1"
    assert [row[0] for row in installation.ledger.rows(errors)] == [
        "ConnectionError",
        "ConnectionError",
        "MaxRetriesExceededError",
        "ValueError",
    ]
    assert installation.verify(effects=False).violations == ()

    # The same worker still runs them as Celery's, for whoever calls delay(): their retries are Celery's then.
    installation.command("shell", "-c", DELAY)
    plain = Path(installation.effects_file).parent / "calls" / "plain"
    wait_until(lambda: plain.exists() and plain.stat().st_size == 2, 30)


def test_a_name_that_is_no_task_stops_a_worker_and_an_apply_with_the_nearest_one(
    installation: Installation,
) -> None:
    wrong = {"FENCEPOST_TASKS": TASKS + "ad"}
    for process in (installation.start("worker", env=wrong), installation.start("apply", env=wrong)):
        assert process.process.wait(60) != 0
        assert f"there is no Celery task '{TASKS}ad'. Did you mean '{TASKS}add'?" in process.output()
