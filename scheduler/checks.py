"""Is this installation fit to work? Asked by `/readyz`."""

from dataclasses import dataclass
from typing import Final

import psycopg
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from kombu import Connection

from scheduler.orm import raw_connection
from scheduler.store import schedules

UNOWNED_PATIENCE_S: Final = 15
OLDEST_DUE_LIMIT_S: Final = 30
BROKER_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """The answer of `/readyz`. What the database would have said is None while it is away."""

    ok: bool
    database: bool
    broker: bool
    ticks: int | None = None
    shards_unowned: int | None = None
    oldest_due_age_s: float | None = None


def readiness() -> Readiness:
    """A broker that is away is shown and no more: what the API accepts waits in the ledger."""
    broker = broker_answers()
    try:
        found = schedules.readiness(
            raw_connection(), shards=settings.FENCEPOST.shards, patience_s=UNOWNED_PATIENCE_S
        )
    except (DatabaseError, InterfaceError, psycopg.Error):
        return Readiness(ok=False, database=False, broker=broker)
    return Readiness(
        ok=found.shards_forsaken == 0 and found.oldest_due_age_s <= OLDEST_DUE_LIMIT_S,
        database=True,
        broker=broker,
        ticks=found.ticks,
        shards_unowned=found.shards_unowned,
        oldest_due_age_s=round(found.oldest_due_age_s, 3),
    )


def broker_answers() -> bool:
    """A connection is made and closed again; a folder that serves as broker is simply there."""
    if settings.CELERY_BROKER_URL.startswith("filesystem:"):
        return True
    broker = Connection(settings.CELERY_BROKER_URL, connect_timeout=BROKER_TIMEOUT_S)
    try:
        broker.connect()
    except tuple(broker.connection_errors):
        return False
    finally:
        broker.release()
    return True
