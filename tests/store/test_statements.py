"""Every named statement is prepared against the migrated schema: a renamed column fails in milliseconds."""

import re

import psycopg
import pytest

from scheduler.store import statements
from scheduler.store.statements import Connection, every_statement, transaction
from tests.support.wait import wait_until

STATEMENTS = {f"{room}.{name}": text for room, name, text in every_statement()}


@pytest.mark.parametrize("name", STATEMENTS)
def test_it_fits_the_schema(name: str, module_database: str) -> None:
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match.group(1), len(numbers) + 1)}"

    text = re.sub(r"%\((\w+)\)[sb]", numbered, STATEMENTS[name].decode())
    with psycopg.connect(module_database) as connection:
        connection.execute(f"PREPARE probe AS {text}".encode())


def test_there_are_statements() -> None:
    assert {"due.materialise", "outbox.release", "claims.claim", "claims.end_attempts"} <= set(STATEMENTS)


def test_a_transaction_that_postgres_has_ended_is_a_lost_connection(
    module_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is what a process finds that was stopped in the middle of one."""
    monkeypatch.setattr(statements, "BEGIN", statements.BEGIN.replace(b"'10s'", b"'20ms'"))
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    stopped = psycopg.connect(module_database, autocommit=True)

    def outlasted() -> None:
        with psycopg.connect(module_database, autocommit=True) as watcher, transaction(stopped):
            pid = stopped.info.backend_pid
            wait_until(lambda: watcher.execute(alive, [pid]).fetchone() == (0,))
            stopped.execute("SELECT 1")

    with pytest.raises(statements.DATABASE_AWAY):
        outlasted()
    assert stopped.broken


def test_what_fails_in_a_transaction_is_undone(module_database: str) -> None:
    def fail(connection: Connection) -> None:
        with transaction(connection):
            connection.execute("CREATE TABLE gone ()")
            raise ZeroDivisionError

    with psycopg.connect(module_database, autocommit=True) as connection:
        with pytest.raises(ZeroDivisionError):
            fail(connection)
        assert connection.execute("SELECT to_regclass('gone')").fetchone() == (None,)
