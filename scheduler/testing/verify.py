"""The checker: does a ledger keep the promises? `manage.py verify`, and the end of every fault test.

I1 every due instant has exactly one run or one reason; I2 at most one completion of a run was accepted;
I3 fences rise within a run and are never given twice; I4 whatever waits has something that will wake it;
I8 no run has more attempts than allowed. With an effect ledger also: no effect without its attempt, none
early, none twice under one fence.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import psycopg

from scheduler.clock import database_now
from scheduler.store import invariants
from scheduler.store.invariants import Breach, Totals, Window
from scheduler.store.statements import Connection
from scheduler.testing import effects
from scheduler.testing.accounts import unbalanced

LISTED = 1000  # violations of one rule that are listed; a broken ledger may have millions


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """`subject`: the id of a run, for `due_instants` that of a schedule."""

    invariant: str
    rule: str
    subject: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """`violations` lists the first `LISTED` of each rule."""

    window: Window
    totals: Totals
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def verify(
    database_url: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    effects_file: Path | None = None,
) -> Report:
    """Check the due instants of (since, until]; `until` None: up to now by the database clock.

    All questions are put to one snapshot, so that it may be asked while everything runs. Reads only;
    memory does not grow with the ledger.
    """
    with psycopg.connect(database_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            now = database_now(connection)
            window = Window(since=since, until=min(until, now) if until else now)
            return Report(
                window=window,
                totals=invariants.totals(connection, window),
                violations=tuple(_violations(connection, window, effects_file)),
            )


def _violations(connection: Connection, window: Window, effects_file: Path | None) -> Iterator[Violation]:
    reigns, rows = invariants.reigns(connection, window), invariants.nominal_rows(connection, window)
    yield from _named("I1", "due_instants", unbalanced(reigns, rows, window))
    for invariant, rules in invariants.RULES.items():
        for rule in rules:
            yield from _named(invariant, rule, invariants.breaches(connection, rule, window))
    if effects_file is not None:
        yield from _named("effects", "effect_ledger", effects.breaches(connection, effects_file))


def _named(invariant: str, rule: str, breaches: Iterable[Breach]) -> Iterator[Violation]:
    for breach in islice(breaches, LISTED):
        yield Violation(invariant=invariant, rule=rule, subject=breach.subject, detail=breach.detail)
