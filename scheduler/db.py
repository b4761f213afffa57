"""Django's own connection, for statements and times that come from below the ORM."""

from datetime import datetime

import psycopg
from django.db import connections

from scheduler.clock import database_now


def raw_connection(using: str = "default") -> psycopg.Connection:
    """The psycopg connection under Django's, in whatever transaction the caller has open."""
    connection = connections[using]
    connection.ensure_connection()
    raw = connection.connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def database_time(using: str = "default") -> datetime:
    """The database clock now, in UTC."""
    return database_now(raw_connection(using))
