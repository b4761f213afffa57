"""Runs in child processes, which can die by themselves."""

import os
import signal
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psutil
import pytest

from tests.support.installation import Installation, recording
from tests.support.machine import rabbitmqctl
from tests.support.processes import Running
from tests.support.proxy import Mode, Proxy
from tests.support.wait import wait_until

PREFORK = ("--pool", "prefork", "--concurrency")
WITHIN_S = 9.0  # three seconds are promised
RARELY_S = 30 * 86400
ONCE = {"max_attempts": 1}
RUNS_BY_NAME = "SELECT s.name, o.id FROM occurrence o JOIN schedule s ON s.id = o.schedule_id"


@pytest.fixture(autouse=True)
def loops(installation: Installation) -> list[Running]:
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.odd_jobs,tests.support.unsafe_job"
    installation.be_brisk()
    return [installation.start(name) for name in ("tick", "relay", "sweep")]


def ask_for(installation: Installation, **runs: Mapping[str, Any]) -> dict[str, UUID]:
    """One run of each, of schedules that are not due by themselves within a test; their ids by name."""
    installation.apply(*(recording(name, every_s=RARELY_S, **fields) for name, fields in runs.items()))
    installation.run_now(*runs)
    return dict(installation.ledger.rows(RUNS_BY_NAME))


def odd(end: str, **fields: Any) -> dict[str, Any]:
    return {"target": "tests.odd", "payload": {"end": end}, "retry": ONCE, **fields}


def how_they_ended(installation: Installation, runs: Mapping[str, UUID]) -> dict[str, tuple[str, list[str]]]:
    ledger = installation.ledger
    states = dict(ledger.rows("SELECT id, state FROM occurrence"))
    return {
        name: (states[run_id], [outcome for _, _, outcome in ledger.attempts(run_id)])
        for name, run_id in runs.items()
    }


def all_ended(installation: Installation) -> bool:
    return not installation.ledger.scalar(
        "SELECT count(*) FROM occurrence WHERE finished_at IS NULL AND state <> 'UNKNOWN'"
    )


def test_however_a_job_ends_its_run_ends_too(installation: Installation) -> None:
    """Three seconds are promised for the death of a child, and no other child waits for it."""
    worker = installation.start("worker", *PREFORK, "2")
    deadline = {"timeout_s": 2, "cancel_grace_s": 1, "retry": ONCE}
    runs = ask_for(
        installation,
        returns=odd(""),
        no_json=odd("no json"),
        large=odd("large"),
        large_error=odd("large error"),
        unpicklable=odd("unpicklable"),
        system_exit=odd("system exit"),
        exits=odd("exit"),
        segfaults=odd("segfault"),
        dies_after_an_effect={"target": "tests.unsafe_exit", "payload": {}},
        ends_at_its_limit={"target": "tests.sleeper", "payload": {}, **deadline},
        is_killed_at_its_limit={"target": "tests.deaf", "payload": {}, **deadline},
    )
    wait_until(lambda: all_ended(installation), 60, message=worker.output())
    ended = how_they_ended(installation, runs)
    soft = ended.pop("ends_at_its_limit")
    assert soft[0] == "DEAD_LETTERED"
    assert soft[1] in (["failed"], ["timed_out"])
    error = "SELECT error->>'type' FROM occurrence WHERE id = %(id)s"
    assert installation.ledger.scalar(error, id=runs["ends_at_its_limit"]) == "SoftTimeLimitExceeded"
    assert ended == {
        "returns": ("SUCCEEDED", ["succeeded"]),
        "no_json": ("SUCCEEDED", ["succeeded"]),
        "large": ("SUCCEEDED", ["succeeded"]),
        "large_error": ("DEAD_LETTERED", ["failed"]),
        "unpicklable": ("DEAD_LETTERED", ["failed"]),
        "system_exit": ("DEAD_LETTERED", ["failed"]),
        "exits": ("DEAD_LETTERED", ["lost"]),
        "segfaults": ("DEAD_LETTERED", ["lost"]),
        "dies_after_an_effect": ("UNKNOWN", ["lost"]),
        "is_killed_at_its_limit": ("DEAD_LETTERED", ["timed_out"]),
    }
    lasted = (
        "SELECT max(extract(epoch FROM finished_at - started_at)) FROM attempt WHERE run_id = ANY(%(ids)s)"
    )
    died = [runs["exits"], runs["segfaults"], runs["dies_after_an_effect"]]
    assert installation.ledger.scalar(lasted, ids=died) < WITHIN_S
    assert installation.ledger.scalar(lasted, ids=[runs["is_killed_at_its_limit"]]) < 3 + WITHIN_S
    assert installation.ledger.scalar("SELECT sum(late_writes_refused) FROM occurrence") == 0
    assert installation.verify().violations == ()


def test_short_jobs_do_not_wait_behind_a_long_one(installation: Installation) -> None:
    installation.start("worker", *PREFORK, "2")
    installation.apply(
        recording("long", every_s=RARELY_S, seconds=60.0), recording("short", every_s=RARELY_S)
    )
    installation.run_now(long=1, short=200)
    done = "SELECT count(*) FROM occurrence WHERE state = 'SUCCEEDED'"
    wait_until(lambda: installation.ledger.scalar(done) == 200, 50, interval=0.1)
    assert installation.ledger.states() == {"SUCCEEDED": 200, "RUNNING": 1}
    assert installation.ledger.scalar("SELECT count(*) FROM attempt") == 201


def test_a_cancelled_job_that_does_not_hear_is_killed(installation: Installation) -> None:
    worker = installation.start("worker", *PREFORK, "2")
    grace = {"cancel_grace_s": 1}
    runs = ask_for(
        installation,
        deaf={"target": "tests.deaf", "payload": {}, **grace},
        unsafe={"target": "tests.unsafe_sleeper", "payload": {}, **grace},
    )
    wait_until(lambda: len(installation.effects("begin")) == 2, 30)
    installation.cancel_run(*runs.values())
    wait_until(lambda: all_ended(installation), 3 * (1 + 1 + 3), message=worker.output())
    assert how_they_ended(installation, runs) == {
        "deaf": ("CANCELLED", ["cancelled"]),
        "unsafe": ("UNKNOWN", ["cancelled"]),
    }


def test_runs_end_while_the_broker_is_away(installation: Installation, broker_url: str) -> None:
    """By themselves, by the death of their child and at their limit: none of it waits for a connection."""
    broker = urlsplit(broker_url)
    way = Proxy((broker.hostname or "127.0.0.1", broker.port or 5672))
    through = broker._replace(netloc=f"guest:guest@127.0.0.1:{way.port}").geturl()
    worker = installation.start("worker", *PREFORK, "3", env={"BROKER_URL": through})
    runs = ask_for(
        installation,
        returns={"payload": {"seconds": 10.0}},
        dies={"target": "tests.sleeper", "payload": {}, "retry": ONCE},
        overdue={"target": "tests.deaf", "payload": {}, "timeout_s": 10, "cancel_grace_s": 1, "retry": ONCE},
    )
    begun = wait_until(lambda: len(installation.effects("begin")) == 3 and installation.effects("begin"), 60)
    with way.failing(Mode.BLACK_HOLE):
        way.reset()
        (pid,) = (effect.pid for effect in begun if effect.run == runs["dies"])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all_ended(installation), 11 + WITHIN_S, message=worker.output())
    assert how_they_ended(installation, runs) == {
        "returns": ("SUCCEEDED", ["succeeded"]),
        "dies": ("DEAD_LETTERED", ["lost"]),
        "overdue": ("DEAD_LETTERED", ["timed_out"]),
    }
    assert way.done["resets"] > 0
    installation.run_now("returns")
    wait_until(lambda: installation.ledger.states().get("SUCCEEDED") == 2, 60, message=worker.output())
    assert installation.ledger.scalar("SELECT sum(late_writes_refused) FROM occurrence") == 0
    way.stop()


def test_a_run_that_no_child_has_accepted_when_the_connection_is_lost_runs_once_and_frees_its_slot(
    installation: Installation, vhost: str
) -> None:
    """Celery drops it then, and expects the broker to deliver it again: but it is acknowledged."""
    ledger = installation.ledger
    worker = installation.start("worker", *PREFORK, "1")
    ask_for(installation, only={"payload": {"seconds": 0.1}})
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 1}, 60)
    (child,) = psutil.Process(worker.pid).children()
    child.suspend()
    installation.run_now("only")
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 1, "RUNNING": 1}, 60)
    cut = rabbitmqctl("close_all_connections", "--vhost", vhost, "a test")
    assert cut.returncode == 0, cut.stderr
    wait_until(lambda: "Connection to broker lost" in worker.output(), 30, message=worker.output())
    child.resume()
    installation.run_now("only")
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 3}, 60, message=worker.output())
    assert ledger.scalar("SELECT count(*) FROM attempt") == 3


def test_children_killed_at_random_cost_attempts_and_no_throughput(installation: Installation) -> None:
    """Report 149: a worker whose children had been killed by the kernel took work and ran none of it."""
    worker = installation.start("worker", *PREFORK, "4", "--max-tasks-per-child", "7")
    installation.apply(*(recording(f"second-{number}", seconds=0.3) for number in range(8)))
    ledger = installation.ledger
    succeeded = "SELECT count(*) FROM occurrence WHERE state = 'SUCCEEDED'"
    wait_until(lambda: ledger.scalar(succeeded) >= 16, 60)
    killed = 0
    for goal in range(24, 24 + 20 * 4, 4):
        children = psutil.Process(worker.pid).children()
        if children:
            children[killed % len(children)].send_signal(signal.SIGKILL)
            killed += 1
        wait_until(lambda more=goal: ledger.scalar(succeeded) >= more, 30, message=worker.output())
    end = ledger.now()
    wait_until(lambda: ledger.settled(until=end), 30, interval=0.1, message=worker.output())
    lost = ledger.scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost'")
    assert 0 < lost <= killed
    assert set(ledger.states(until=end)) == {"SUCCEEDED"}

    # It says what it can do, and does it: as many at once as it has children.
    busiest = "SELECT capacity FROM session WHERE kind = 'worker' AND expires_at > clock_timestamp()"
    assert ledger.rows(busiest) == [(4,)]
    at_once = "SELECT count(*) FROM lease"
    wait_until(lambda: ledger.scalar(at_once) == 4, 30)
    assert worker.end() == 0
    assert ledger.scalar(at_once) == 0
    assert installation.verify(until=end).violations == ()
