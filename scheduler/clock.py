"""The one clock that decides: the database's. Read once at the head of a round, then passed down."""

from datetime import UTC, datetime
from typing import Any

import psycopg


def database_now(connection: psycopg.Connection[Any]) -> datetime:
    """`clock_timestamp()`, not `now()`: the latter is the transaction's start and may be long past."""
    found = connection.execute("SELECT clock_timestamp()").fetchone()
    assert found is not None
    instant: datetime = found[0]
    return instant.astimezone(UTC)
