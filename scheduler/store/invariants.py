"""The ledger's invariants, asked of the ledger. Answers are streamed: memory does not grow with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg import ServerCursor
from psycopg.rows import BaseRowFactory, class_row
from psycopg.types.json import JsonbLoader

from scheduler.store.statements import Connection, Row, cursor, load

SQL = load("invariants")

# Statement by statement, so that a violation can name the one that found it.
RULES: Mapping[str, tuple[str, ...]] = {
    "I2": ("completed_twice", "success_without_attempt", "attempt_left_open"),
    "I3": ("fence_not_rising", "fence_not_newest", "fence_used_twice"),
    "I4": (
        "rest_without_end",
        "waiting_without_outbox",
        "outbox_without_run",
        "running_without_lease",
        "lease_without_run",
        "slot_not_given_back",
    ),
    "I8": ("attempts_miscounted", "attempts_over_limit", "attempt_after_deadline"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """(since, until] by due_at. `since` None: from the beginning."""

    since: datetime | None
    until: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Reign:
    """The due instants of (begins_after, ends_at], less its pauses, are this revision's to account for."""

    schedule_id: UUID
    faulted: bool
    revision: int
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    exclusions: list[dict[str, Any]]
    on_excluded: str
    calendars: dict[str, list[Any]]
    fixed_delay: bool
    begins_after: datetime
    rules_changed_at: datetime | None
    ends_at: datetime
    paused_at: list[datetime]
    resumed_from: list[datetime]


@dataclass(frozen=True, kw_only=True, slots=True)
class NominalRow:
    """A run of a due instant, or of `coalesced` of them from `coalesced_from` on. `called_off`: cancelled
    ahead of its instant, which an edit or a pause may then have taken off the timeline."""

    schedule_id: UUID
    revision: int
    due_at: datetime
    coalesced: int
    coalesced_from: datetime | None
    called_off: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Breach:
    """`subject` (the id of a run) breaks a rule in this way."""

    subject: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    schedules: int
    behind: int
    runs: int
    unfinished: int
    skipped: int
    late_writes_refused: int
    attempts: int
    lost: int


def reigns(connection: Connection, window: Window) -> Iterator[Reign]:
    """By schedule id descending, then by revision."""
    return _stream(connection, "reigns", class_row(Reign), window)


def nominal_rows(connection: Connection, window: Window) -> Iterator[NominalRow]:
    """By schedule id descending, then by due instant."""
    return _stream(connection, "nominal_rows", class_row(NominalRow), window)


def breaches(connection: Connection, rule: str, window: Window) -> Iterator[Breach]:
    """Whatever breaks one of the statements named in `RULES`."""
    return _stream(connection, rule, class_row(Breach), window)


def totals(connection: Connection, window: Window) -> Totals:
    with cursor(connection, class_row(Totals)) as rows:
        found = rows.execute(SQL["totals"], _parameters(window)).fetchone()
    assert found is not None  # counts always answer
    return found


def _parameters(window: Window) -> dict[str, Any]:
    return {"since": window.since, "until": window.until}


def _stream(
    connection: Connection, statement: str, row_factory: BaseRowFactory[Row], window: Window
) -> Iterator[Row]:
    """A server-side cursor of its own: two can be read side by side. Needs an open transaction."""
    name = f"{statement}_{uuid4().hex}"
    with ServerCursor(connection, name, row_factory=row_factory) as rows:
        rows.adapters.register_loader("jsonb", JsonbLoader)
        rows.itersize = 2000
        yield from rows.execute(SQL[statement], _parameters(window))
