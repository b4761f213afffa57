"""Fixtures of the rooms that work on bare tables: a clean database, its connections, a ledger by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until

Connection = psycopg.Connection[Any]


TABLES = (
    "occurrence attempt lease outbox overlap_slot session shard_lease"
    " schedule_pause audit_entry schedule_revision schedule target tenant"
)


@pytest.fixture
def clean_database(module_database: str) -> str:
    """Emptied instead of copied anew for each of many small tests: milliseconds against a second."""
    with psycopg.connect(module_database) as connection:
        for table in TABLES.split():
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("DELETE FROM sweep_turn")
        connection.execute("INSERT INTO sweep_turn (taken_at) VALUES ('-infinity')")
    return module_database


@pytest.fixture
def connect(clean_database: str) -> Iterator[Callable[[], Connection]]:
    """Connections as the engine's processes have them, triggers and all."""
    opened: list[Connection] = []

    def one() -> Connection:
        opened.append(psycopg.connect(clean_database, autocommit=True))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Callable[[], Connection]) -> Connection:
    return connect()


@pytest.fixture
def ledger(clean_database: str) -> Iterator[HandMadeLedger]:
    made = HandMadeLedger.on(clean_database)
    made.schedule(next_due_at=made.instant(1))
    yield made
    made.connection.close()


@pytest.fixture
def wait_for_lock(connect: Callable[[], Connection]) -> Callable[[int], None]:
    """Until the backend with this pid waits for a lock: what proves that two transactions do meet."""
    watcher = connect()
    waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"

    def wait(pid: int) -> None:
        wait_until(lambda: (watcher.execute(waiting, [pid]).fetchone() or [False])[0])

    return wait
