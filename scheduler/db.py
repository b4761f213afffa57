"""Connections of the engine's processes: psycopg, autocommit, one per process or thread."""

from typing import Any

import psycopg
from django.conf import settings


def engine_connection(name: str) -> psycopg.Connection[Any]:
    """`name` shows in pg_stat_activity. Nothing is SET on it, so that PgBouncer may stand between."""
    return psycopg.connect(
        settings.ENGINE_DATABASE_URL,
        autocommit=True,
        connect_timeout=5,
        target_session_attrs="read-write",  # of several hosts the primary; a standby is no database for us
        application_name=f"fencepost {name}",
        # A peer that vanished without a word is noticed within about 10 s.
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        tcp_user_timeout=10000,
    )
