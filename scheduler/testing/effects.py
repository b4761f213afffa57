"""The reading end of the effect ledger: what jobs did, told by the jobs and not by the product.

One JSON object a line, appended and fsynced by the job itself: `phase` (`begin` or `end`), `run`, `due_at`,
`fence`, `attempt`, `pid`, `at`. `examples/effects.py` writes it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from scheduler.store.invariants import Breach
from scheduler.store.statements import Connection, cursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    phase: str
    run: UUID
    due_at: datetime
    fence: int
    attempt: int
    pid: int
    at: datetime


def read(path: Path) -> Iterator[Effect]:
    """Every whole line. A kill in the middle of the last write may leave half of one: it is not an effect."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield _effect(json.loads(line))


def _effect(line: dict[str, Any]) -> Effect:
    return Effect(
        phase=line["phase"],
        run=UUID(line["run"]),
        due_at=datetime.fromisoformat(line["due_at"]),
        fence=line["fence"],
        attempt=line["attempt"],
        pid=line["pid"],
        at=datetime.fromisoformat(line["at"]),
    )


def breaches(connection: Connection, path: Path) -> Iterator[Breach]:
    """Hold the effects against the ledger. Loads them into a temporary table of the open transaction."""
    connection.execute(_TABLE)
    with connection.cursor().copy(_COPY) as copy:
        for effect in read(path):
            copy.write_row((effect.phase, effect.run, effect.due_at, effect.fence, effect.attempt, effect.at))
    for question in (_UNKNOWN, _EARLY, _TWICE, _END_ALONE, _UNSEEN):
        with cursor(connection, class_row(Breach)) as rows:
            yield from rows.execute(question)


_TABLE = b"""
CREATE TEMPORARY TABLE effect (
    line bigint GENERATED ALWAYS AS IDENTITY, phase text, run_id uuid, due_at timestamptz, fence bigint,
    number integer, at timestamptz) ON COMMIT DROP
"""
_COPY = b"COPY effect (phase, run_id, due_at, fence, number, at) FROM STDIN"

# The ledger is read in a snapshot, the file later: an attempt newer than all of the snapshot is no breach.
_UNKNOWN = b"""
SELECT e.run_id::text AS subject,
       format('attempt %s (fence %s) left an effect, but is not in the ledger', e.number, e.fence) AS detail
FROM effect e
LEFT JOIN attempt a
  ON a.due_at = e.due_at AND a.run_id = e.run_id AND a.fence = e.fence AND a.number = e.number
WHERE e.phase = 'begin' AND a.fence IS NULL AND e.fence <= (SELECT max(fence) FROM attempt)
"""

# The job's host has its own clock: the attempt's start, by the database's, is what counts.
_EARLY = b"""
SELECT e.run_id::text AS subject, format('began at %s, due at %s', a.started_at, e.due_at) AS detail
FROM effect e
JOIN attempt a ON a.due_at = e.due_at AND a.run_id = e.run_id AND a.fence = e.fence
WHERE e.phase = 'begin' AND a.started_at < e.due_at
"""

_TWICE = b"""
SELECT min(e.run_id::text) AS subject, format('%s effects begin under fence %s', count(*), e.fence) AS detail
FROM effect e
WHERE e.phase = 'begin'
GROUP BY e.fence
HAVING count(*) > 1
"""

_END_ALONE = b"""
SELECT e.run_id::text AS subject,
       format('an effect ends under fence %s without having begun', e.fence) AS detail
FROM effect e
WHERE e.phase = 'end' AND NOT EXISTS (
    SELECT FROM effect b WHERE b.phase = 'begin' AND b.fence = e.fence AND b.line < e.line)
"""

# Targets that keep an effect ledger are those of the runs in it. Where a person has said that a run succeeded
# its attempt has not, and may never have written its effect.
_UNSEEN = b"""
SELECT o.id::text AS subject, format('has succeeded under fence %s without an effect', o.fence) AS detail
FROM occurrence o
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN attempt a ON a.due_at = o.due_at AND a.run_id = o.id AND a.fence = o.fence
WHERE o.state = 'SUCCEEDED' AND a.outcome = 'succeeded'
  AND o.due_at BETWEEN (SELECT min(due_at) FROM effect) AND (SELECT max(due_at) FROM effect)
  AND r.target_name IN (
      SELECT DISTINCT k.target_name FROM effect e
      JOIN occurrence p ON p.due_at = e.due_at AND p.id = e.run_id
      JOIN schedule_revision k ON k.schedule_id = p.schedule_id AND k.number = p.revision)
  AND NOT EXISTS (SELECT FROM effect e WHERE e.phase = 'end' AND e.fence = o.fence AND e.run_id = o.id)
"""
