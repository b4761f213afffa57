"""Endpoints, existing tasks, unsafe jobs and kept results, in child processes and in greenlets."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from tests.support.endpoints import Endpoint, answer, endpoint
from tests.support.house import House
from tests.support.installation import TENANT, Installation
from tests.support.wait import wait_until

TASKS = "tests.support.shop_tasks."
NAMES = ("flaky", "kept", "odd", "exits", "slow")
ENDED = "SELECT count(*) FROM occurrence WHERE state NOT IN ('PENDING', 'QUEUED', 'RUNNING', 'RETRY_WAIT')"


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


@pytest.fixture
def house(installation: Installation) -> House:
    installation.environ["FENCEPOST_JOBS"] = (
        "examples.jobs,tests.support.shop_tasks,tests.support.keeping_job,tests.support.unsafe_job"
    )
    installation.environ["FENCEPOST_TASKS"] = ",".join(TASKS + name for name in NAMES)
    installation.command("apply")
    return House(installation)


def ask(house: House, requests: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, UUID]:
    """Runs on request, by the name given here."""
    lines = [
        f"print(run_now({target!r}, {payload!r}, tenant={TENANT!r}))" for target, payload in requests.values()
    ]
    script = "\n".join(["from scheduler.jobs import run_now", *lines])
    told = house.installation.command("shell", "-c", script).split()[-len(lines) :]
    return dict(zip(requests, map(UUID, told), strict=True))


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_each_ends_as_it_says(house: House, server: Endpoint, pool: str) -> None:
    house.worker(pool=pool, concurrency=8 if pool == "gevent" else 3)
    house.target(server, "billing")
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "called": ("billing", {"invoice": 7}),
        "retried": (TASKS + "flaky", {"name": "flaky"}),
        "kept": (TASKS + "kept", {"x": 4}),
        "odd": (TASKS + "odd", {"name": "odd"}),
        "keeping": ("tests.keeping", {"rows": 5}),
        "unsafe": ("tests.unsafe", {"fails": "without an answer"}),
    }
    expected = {
        "called": ("SUCCEEDED", ["succeeded"]),
        "retried": ("SUCCEEDED", ["failed", "failed", "succeeded"]),
        "kept": ("SUCCEEDED", ["succeeded"]),
        "odd": ("FAILED", ["failed"]),
        "keeping": ("SUCCEEDED", ["succeeded"]),
        "unsafe": ("UNKNOWN", ["failed"]),
    }
    if pool == "prefork":  # what only a process can be ended by, and for
        requests |= {
            "exits": (TASKS + "exits", {"name": "exits"}),
            "slow": (TASKS + "slow", {"name": "slow"}),
        }
        expected |= {"exits": ("DEAD_LETTERED", ["lost"]), "slow": ("FAILED", ["timed_out"])}
    runs = ask(house, requests)
    wait_until(lambda: house.ledger.scalar(ENDED) == len(runs), 90)
    found = {name: (house.of_run(run_id, "state"), house.outcomes(run_id)) for name, run_id in runs.items()}
    assert found == expected
    assert [request.body for request in server.requests] == [b'{"invoice":7}']
    kept = dict(house.ledger.rows("SELECT task_id, result FROM django_celery_results_taskresult"))
    assert kept == {str(runs["kept"]): '{"doubled": 8}', str(runs["keeping"]): '{"rows": 5}'}
    house.assert_sound()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_an_endpoint_that_accepts_holds_no_slot_and_its_word_counts(
    house: House, server: Endpoint, pool: str
) -> None:
    """Its failure pauses the schedule that asks for it, and what it asks to wait for may come too late."""
    house.worker(pool=pool, concurrency=2)
    server.behave = answer(202)
    house.target(server, "slow", schedule={"on_failure": {"pause_after": 1}})
    runs = [house.run_now("slow") for _ in range(4)]
    fences = [house.wait_accepted(run_id) for run_id in runs]
    assert house.tell(runs[0], "complete", fences[0], outcome="succeeded", result={"ok": True}).status == 200
    assert house.tell(runs[1], "complete", fences[1], outcome="failed", error="no").status == 200
    paused = "SELECT state, state_note <> '' FROM schedule WHERE name = 'slow'"
    wait_until(lambda: house.ledger.rows(paused) == [("paused", True)], 30)

    server.behave = answer(429, Retry_After="60")
    house.target(server, "late", schedule={"retry": {"max_attempts": 5, "deadline_s": 10}})
    late = house.run_now("late")
    house.wait_for(late, "DEAD_LETTERED")
    assert house.of_run(late, "dead_letter_reason") == "expired"
    assert house.tell(runs[2], "complete", fences[2], outcome="succeeded").status == 200
    assert house.tell(runs[3], "complete", fences[3], outcome="succeeded").status == 200
    house.assert_sound()
