"""What users of other schedulers reported (reports.jsonl) about lost databases, brokers and workers.

Played on real processes. Each test is named by its report; what others show already is listed with its test.
"""

import ast
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.core import cases
from tests.support.brokers import Queues
from tests.support.installation import Installation, recording
from tests.support.ledger import LedgerReader
from tests.support.machine import rabbitmqctl
from tests.support.processes import REPOSITORY
from tests.support.servers import database_name, database_on
from tests.support.wait import wait_until

GROUPS = {
    "duplicates_with_two_schedulers",
    "database_loss",
    "broker_reconnect",
    "worker_kill_redelivery",
    "acks_prefetch_revoke",
}

SHOWN_BY = {
    103: "operations/test_reported_sequences.py::test_103_an_edit_elsewhere_sends_no_one_off_again",
    104: "operations/test_reported_sequences.py::test_104_two_ticks_in_one_minute_make_one_run",
    105: "operations/test_reported_sequences.py::test_105_importing_starts_nothing_and_a_restart_runs_once",
    138: "worker/test_flusher.py::test_a_commit_whose_answer_was_lost_is_read_back_by_claim_id",
    142: "processes/test_broker.py::test_an_unroutable_message_is_not_confirmed_and_its_neighbours_are",
    148: "acceptance/test_late_and_double.py::test_a_worker_stopped_past_its_session_is_refused",
    149: "acceptance/test_kills.py::test_kill_at_every_point",
    151: "store/test_overlap.py::test_a_retry_in_between_keeps_the_slot",
    153: "processes/test_rounds.py::test_ten_thousand_retries_that_wait_are_no_messages",
}


def test_every_report_of_these_groups_is_shown_somewhere() -> None:
    reports = {report["id"] for report in cases.lines("reports.jsonl") if report["group"] in GROUPS}
    named = [name for name in globals() if re.match(r"test_\d", name)]
    played = {int(number) for name in named for number in re.findall(r"_(\d{3})(?=_)", name)}
    assert played | SHOWN_BY.keys() == reports


@pytest.mark.parametrize("test", SHOWN_BY.values())
def test_the_test_that_shows_it_is_there(test: str) -> None:
    file, name = test.split("::")
    tree = ast.parse((REPOSITORY / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# Postgres -----------------------------------------------------------------------------------------


@contextmanager
def as_superuser(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_on(database_url, "postgres"), autocommit=True) as connection:
        yield connection


def cut_all(connection: psycopg.Connection[Any], database: str) -> int:
    """Ends every connection to `database`; how many there were."""
    ended = connection.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s", [database]
    ).fetchone()
    return int((ended or [0])[0])


def say(connection: psycopg.Connection[Any], statement: str, *names: str) -> None:
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def fail_over(database_url: str, lost_s: float) -> None:
    """To a replica that has not heard of the last `lost_s` seconds."""
    name = database_name(database_url)
    replica, old = f"{name}_replica", f"{name}_old"
    with as_superuser(database_url) as server, as_superuser(database_url) as watcher:
        say(server, "ALTER DATABASE {} ALLOW_CONNECTIONS false", name)
        cut_all(server, name)
        say(server, "CREATE DATABASE {} TEMPLATE {}", replica, name)
        say(server, "ALTER DATABASE {} ALLOW_CONNECTIONS true", name)
        until = watcher.execute("SELECT clock_timestamp() + %s", [timedelta(seconds=lost_s)]).fetchone()
        wait_until(lambda: watcher.execute("SELECT clock_timestamp() > %s", until).fetchone() == (True,))
        say(server, "ALTER DATABASE {} ALLOW_CONNECTIONS false", name)
        cut_all(server, name)
        say(server, "ALTER DATABASE {} RENAME TO {}", name, old)
        say(server, "ALTER DATABASE {} RENAME TO {}", replica, name)
        say(server, "DROP DATABASE {} WITH (FORCE)", old)


EPOCHS = "SELECT kind, shard, epoch FROM shard_lease ORDER BY 1, 2"


def test_102_after_a_failover_that_lost_seconds_runs_are_still_unique(installation: Installation) -> None:
    installation.be_brisk()
    started = installation.start_all(ticks=2, relays=2)
    installation.apply(*(recording(f"second-{number}") for number in range(5)))
    ledger = installation.ledger
    wait_until(lambda: ledger.states().get("SUCCEEDED", 0) > 10, 60)
    before = ledger.rows(EPOCHS)
    fail_over(installation.database_url, lost_s=3)
    ledger = installation.reconnect()
    until = ledger.now() + timedelta(seconds=3)
    wait_until(lambda: ledger.settled(until=until), 60, interval=0.2)

    assert [one.label for one in started if not one.running()] == []
    after = ledger.rows(EPOCHS)
    assert all(new[2] > old[2] for old, new in zip(before, after, strict=True)), "a shard kept its old epoch"
    assert set(ledger.states(until=until)) == {"SUCCEEDED"}
    # Without the effects: they remember attempts that this database has never heard of.
    report = installation.verify(until=until, effects=False)
    assert (report.violations, report.totals.behind) == ((), 0)


def test_135_a_database_that_only_reads_makes_no_message_and_136_restarts_are_survived(
    installation: Installation, queues: Queues
) -> None:
    """First nothing but reads; then all connections are cut, five times in as many seconds."""
    installation.be_brisk()
    ledger, name = installation.ledger, database_name(installation.database_url)
    loops = [installation.start(kind) for kind in ("tick", "relay", "sweep")]
    installation.apply(*(recording(f"second-{number}") for number in range(5)))
    wait_until(lambda: ledger.states().get("QUEUED", 0) > 10, 60)
    with as_superuser(installation.database_url) as server:
        say(server, "ALTER DATABASE {} SET default_transaction_read_only = on", name)
        cut_all(server, name)
        ledger = installation.reconnect()
        for loop in loops:
            loop.wait_for("database_away")
        queued = ledger.scalar("SELECT count(*) FROM occurrence WHERE state = 'QUEUED'")
        queues.purge()
        since = ledger.now()
        wait_until(lambda: ledger.now() > since + timedelta(seconds=3))
        assert (queues.ready(), ledger.states().get("QUEUED")) == (0, queued)

        say(server, "ALTER DATABASE {} RESET default_transaction_read_only", name)
        worker = installation.start("worker", "--concurrency", "8")
        for _ in range(5):
            wait_until(lambda: cut_all(server, name) > 0, 30)
    ledger = installation.reconnect()
    until = ledger.now() + timedelta(seconds=2)
    wait_until(lambda: ledger.settled(until=until), 60, interval=0.2)

    assert [one.label for one in (*loops, worker) if not one.running()] == []
    assert set(ledger.states(until=until)) == {"SUCCEEDED"}
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)


# RabbitMQ -----------------------------------------------------------------------------------------


def test_139_connections_cut_three_times_and_143_nothing_far_ahead_is_in_the_broker(
    installation: Installation, queues: Queues, vhost: str
) -> None:
    ledger = installation.ledger
    started = installation.start_all(ticks=1)
    later = ledger.now() + timedelta(hours=6)
    installation.apply(
        *(recording(f"second-{number}") for number in range(5)),
        recording("in-six-hours", trigger={"once": {"at": later.isoformat()}}),
    )
    wait_until(lambda: ledger.states().get("SUCCEEDED", 0) > 10, 60)
    for _ in range(3):
        cut = rabbitmqctl("close_all_connections", "--vhost", vhost, "a test")
        assert cut.returncode == 0, cut.stderr
    since = ledger.now()
    succeeded = "SELECT count(*) FROM attempt WHERE outcome = 'succeeded' AND started_at > %(since)s"
    wait_until(lambda: ledger.scalar(succeeded, since=since) > 10, 30, message="consumption did not resume")
    until = ledger.now()
    wait_until(lambda: ledger.settled(until=until), 60, interval=0.2)

    assert [one.label for one in started if not one.running()] == []
    ahead = "SELECT count(*) FROM occurrence WHERE due_at > %(soon)s"
    assert ledger.scalar(ahead, soon=ledger.now() + timedelta(hours=1)) == 0
    for loop in started[:2]:
        loop.end()
    wait_until(lambda: queues.ready() == 0)
    assert installation.verify(until=until).violations == ()


# Workers ------------------------------------------------------------------------------------------


def test_147_a_redelivery_under_a_valid_lease_is_dropped(installation: Installation, queues: Queues) -> None:
    """The first worker dies with its claim written and the message not acknowledged: it comes again."""
    ledger = installation.ledger
    installation.environ["FENCEPOST_SESSION_S"] = "15"  # long enough for a second worker to start within it
    for kind in ("tick", "relay", "sweep"):
        installation.start(kind)
    installation.apply(recording("asked-for", every_s=30 * 86400))
    first = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_claim_commit:1:KILL"})
    installation.run_now("asked-for")
    wait_until(lambda: not first.running(), 60)
    assert first.process.returncode == -signal.SIGKILL
    second = installation.start("worker")
    alive = "SELECT count(*) FROM session WHERE kind = 'worker'"
    wait_until(lambda: ledger.scalar(alive) == 2, 60)
    wait_until(lambda: queues.ready() == 0)
    held = (
        "SELECT count(*) FROM lease JOIN session s ON s.id = session_id AND s.expires_at > clock_timestamp()"
    )
    assert ledger.scalar(held) == 1, "the lease ran out before the redelivery was refused"
    assert second.running()
    wait_until(lambda: ledger.states() == {"SUCCEEDED": 1}, 90)
    assert queues.ready() == 0
    attempts = ledger.rows("SELECT number, outcome FROM attempt ORDER BY number")
    assert attempts == [(1, "lost"), (2, "succeeded")]


def test_154_and_155_what_is_cancelled_before_its_claim_never_runs(
    installation: Installation, queues: Queues
) -> None:
    """One that is not released yet, one in the queue with no worker there, one in a worker's hand."""
    ledger = installation.ledger
    installation.apply(*(recording(name, every_s=30 * 86400) for name in ("waiting", "queued", "in-hand")))
    installation.run_now("waiting")
    waiting = run_of(ledger, "waiting")
    installation.cancel_run(waiting)
    relay = installation.start("relay")
    installation.run_now("queued")
    wait_until(lambda: queues.ready() == 1, 30)
    installation.cancel_run(run_of(ledger, "queued"))
    holding = installation.start("worker", env={"FENCEPOST_FAULT": "worker.received:2:STOP"})
    wait_until(lambda: queues.ready() == 0, 60)
    installation.run_now("in-hand")
    wait_until(lambda: installation.fault_log.exists(), 60)
    installation.cancel_run(run_of(ledger, "in-hand"))
    holding.signal(signal.SIGCONT)

    assert ledger.states() == {"CANCELLED": 3}
    installation.apply(recording("last", every_s=30 * 86400))
    installation.run_now("last")
    wait_until(lambda: ledger.states() == {"CANCELLED": 3, "SUCCEEDED": 1}, 60)
    assert len(installation.effects("begin")) == 1
    assert queues.ready() == 0
    assert relay.running()


def run_of(ledger: LedgerReader, schedule: str) -> Any:
    found = "SELECT o.id FROM occurrence o JOIN schedule s ON s.id = o.schedule_id WHERE s.name = %(name)s"
    return ledger.scalar(found, name=schedule)
