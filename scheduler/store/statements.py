"""SQL lives in .sql files: each statement has a line `-- name: ...` and a description above it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.pq import TransactionStatus
from psycopg.rows import BaseRowFactory
from psycopg.types.json import JsonbLoader

Connection: TypeAlias = psycopg.Connection[Any]
Row = TypeVar("Row")

# What a process survives by connecting again and doing it once more. psycopg counts the last two among
# Postgres' own failures: a server that only reads, after a failover or with a full disk, and a transaction
# that it ended.
DATABASE_AWAY: tuple[type[psycopg.Error], ...] = (
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)

# A process that is stopped between two statements (SIGSTOP, a paused machine) holds its locks, and others
# wait for them, or pass over what they cover, until it goes on. Postgres ends its transaction before.
# By SET LOCAL, as PgBouncer wants it, in the same message as BEGIN.
BEGIN = b"BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'"

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_FOLDER = Path(__file__).parent


def load(room: str) -> Mapping[str, bytes]:
    """The statements of `room`.sql by name, as bytes for psycopg."""
    pieces = _NAME.split((_FOLDER / f"{room}.sql").read_text(encoding="utf-8"))
    return {name: text.strip().encode() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def every_statement() -> Iterator[tuple[str, str, bytes]]:
    """(room, name, text) of all of them: a test PREPAREs each against the migrated schema."""
    for path in sorted(_FOLDER.glob("*.sql")):
        for name, text in load(path.stem).items():
            yield path.stem, name, text


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """All or nothing, on an autocommit connection; in a transaction of the caller's, a savepoint of it."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        with connection.transaction():
            yield
        return
    connection.execute(BEGIN)
    try:
        yield
        connection.commit()
    except BaseException:
        if not connection.broken:
            connection.rollback()
        raise


def cursor(
    connection: Connection, row_factory: BaseRowFactory[Row], *, shared_json: bool = False
) -> psycopg.Cursor[Row]:
    """A server-side binding cursor, also on Django's connection, whose own loader leaves jsonb as text.

    With `shared_json` equal documents are one object, which nobody may change.
    """
    result = psycopg.Cursor(connection, row_factory=row_factory)
    result.adapters.register_loader("jsonb", _SharedJson if shared_json else JsonbLoader)
    return result


class _SharedJson(JsonbLoader):
    """A batch of a thousand schedules has a few dozen triggers, and mostly no exclusions."""

    def load(self, data: Buffer) -> Any:
        return _decoded(bytes(data))


@lru_cache(maxsize=4096)
def _decoded(document: bytes) -> Any:
    return json.loads(document)
