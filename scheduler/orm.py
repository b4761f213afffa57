"""What users of the ORM need from below it: its connection, the clock, and the key that finds a run."""

from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from django.db import connections

from scheduler.clock import database_now
from scheduler.core.identity import due_at_of
from scheduler.errors import NotFound


def raw_connection(using: str = "default") -> psycopg.Connection[Any]:
    """The psycopg connection under Django's, in whatever transaction the caller has open."""
    connection = connections[using]
    connection.close_if_health_check_failed()  # as Django does before a cursor of its own
    connection.ensure_connection()
    raw = connection.connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def database_time(using: str = "default") -> datetime:
    """The database clock now, in UTC."""
    return database_now(raw_connection(using))


def run_key(run_id: UUID) -> dict[str, Any]:
    """The primary key of a run as a filter: the id holds the due instant, and so names the partition."""
    try:
        return {"due_at": due_at_of(run_id), "id": run_id}
    except OverflowError:  # beyond the year 9999: an id that no run can have
        raise NotFound("No such run.") from None
