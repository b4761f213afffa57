"""A worker without its Celery, on a real ledger, from the claim to the end that is written."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler.core.states import Refusal
from scheduler.errors import Drained, TimedOut
from scheduler.store.sessions import Load
from scheduler.worker.execution import Context
from scheduler.worker.registry import JobSpec
from scheduler.worker.runtime import Worker
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until


@pytest.fixture
def worker(clean_database: str) -> Iterator[Worker]:
    made = Worker(
        lambda name: psycopg.connect(clean_database, autocommit=True, application_name=name),
        name="host:1",
        session_s=30,
        load=lambda: Load(capacity=8),
        abandoned=lambda: None,
    )
    made.start()
    wait_until(lambda: made.can_claim)
    yield made
    made.finish(10)


def job(function: Any, *, drains: bool) -> JobSpec:
    return JobSpec(
        name="demo.record",
        function=function,
        retry=None,
        timeout_s=None,
        side_effects="idempotent",
        parameters={},
        description="",
        drains=drains,
    )


def test_at_shutdown_a_job_that_agreed_is_handed_back_and_another_is_waited_for(
    ledger: HandMadeLedger, worker: Worker
) -> None:
    """One attempt each, neither lost nor wasted: the first run is queued anew, the second has succeeded."""
    answers: list[UUID | Refusal] = []
    for number in (1, 2):
        worker.claim(ledger.run(ledger.instant(number), "QUEUED"), ledger.instant(number), answers.append)
        wait_until(lambda count=number: len(answers) == count)
    begun, may_end = threading.Semaphore(0), threading.Event()
    raised: dict[bool, BaseException | None] = {}

    def work(ctx: Context) -> None:
        begun.release()
        while not may_end.wait(0.01):
            ctx.check_cancelled()

    def execute(claim_id: Any, drains: bool) -> None:
        raised[drains] = worker.execute(claim_id, job(work, drains=drains))

    threads = [
        threading.Thread(target=execute, args=pair) for pair in zip(answers, (True, False), strict=True)
    ]
    for thread in threads:
        thread.start()
        assert begun.acquire(timeout=10)
    worker.drain()
    threads[0].join(10)
    assert isinstance(raised[True], Drained)
    assert threads[1].is_alive()
    may_end.set()
    threads[1].join(10)
    wait_until(lambda: not worker.held())
    runs = "SELECT state, attempt_count, generation FROM occurrence ORDER BY due_at"
    assert ledger.connection.execute(runs).fetchall() == [("QUEUED", 0, 2), ("SUCCEEDED", 1, 1)]


def test_a_job_past_its_time_limit_is_told_and_its_run_tried_again(
    ledger: HandMadeLedger, worker: Worker
) -> None:
    ledger.execute("UPDATE schedule_revision SET timeout_s = 1")
    answers: list[UUID | Refusal] = []
    worker.claim(ledger.run(ledger.instant(1), "QUEUED"), ledger.instant(1), answers.append)
    wait_until(lambda: len(answers) == 1)

    def work(ctx: Context) -> None:
        wait_until(lambda: ctx.check_cancelled() or False)

    assert isinstance(answers[0], UUID)
    error = worker.execute(answers[0], job(work, drains=False))
    assert isinstance(error, TimedOut)
    wait_until(lambda: not worker.held())
    row = ledger.connection.execute(
        "SELECT o.state, a.outcome, a.finished_at - a.started_at >= interval '1 s'"
        " FROM occurrence o JOIN attempt a ON a.run_id = o.id"
    ).fetchone()
    assert row == ("RETRY_WAIT", "timed_out", True)


def test_what_a_job_last_reported_is_what_its_next_attempt_resumes_from(
    ledger: HandMadeLedger, worker: Worker
) -> None:
    ledger.execute('UPDATE schedule_revision SET retry = \'{"max_attempts": 2, "initial_interval_s": 0}\'')
    run_id, seen = ledger.run(ledger.instant(1), "QUEUED"), list[Any]()

    def work(ctx: Context) -> None:
        seen.append(ctx.resume)
        ctx.heartbeat(percent=40, note="page 4", resume={"page": 5})
        raise ConnectionResetError

    for attempt in (1, 2):
        answers: list[UUID | Refusal] = []
        worker.claim(run_id, ledger.instant(1), answers.append)
        wait_until(lambda answers=answers: len(answers) == 1)
        assert isinstance(answers[0], UUID), attempt
        worker.execute(answers[0], job(work, drains=False))
        wait_until(lambda: not worker.held())
        ledger.execute(
            "UPDATE occurrence SET state = 'QUEUED', generation = generation + 1 WHERE state = 'RETRY_WAIT'"
        )
    assert seen == [None, {"page": 5}]
    progress = ledger.connection.execute("SELECT progress FROM occurrence").fetchone()
    assert progress == ({"percent": 40, "note": "page 4", "resume": {"page": 5}},)
