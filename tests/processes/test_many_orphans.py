"""Twenty thousand leases expire at once under three sweeps. Half a minute long: `make soak` runs it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from scheduler.clock import database_now
from scheduler.processes.sweep import Sweep
from scheduler.store import sessions
from scheduler.testing.verify import verify
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until

Connection = psycopg.Connection[Any]
ORPHANS, LIVING, RATE = 20_000, 90, 2000
TRICKLE = 100

HELD = """
WITH run AS (
    INSERT INTO occurrence (id, due_at, schedule_id, revision, origin, origin_key, tenant_id, shard, overlap,
                            state, dispatch_at, generation, attempt_count, fence, created_at, queued_at,
                            started_at, tzdata_version)
    SELECT gen_random_uuid(), s.created_at, s.id, 1, 'trigger', gen_random_uuid(), s.tenant_id, s.shard,
           'allow', 'RUNNING', s.created_at, 1, 1, nextval('fence_seq'), s.created_at, s.created_at,
           s.created_at, 'test'
    FROM schedule s, generate_series(1, %(count)s)
    RETURNING id, due_at, fence
), lease AS (
    INSERT INTO lease (run_id, due_at, session_id, fence, claim_id, granted_at, ends_by)
    SELECT id, due_at, %(session)s, fence, gen_random_uuid(), due_at, clock_timestamp() + interval '1 day'
    FROM run
)
INSERT INTO attempt (run_id, due_at, fence, number, session_id, worker, started_at)
SELECT id, due_at, fence, 1, %(session)s, 'host:1', due_at FROM run
"""


def worker(
    ledger: HandMadeLedger, connection: Connection, *, holds: int, capacity: int, length_s: float
) -> UUID:
    session_id = uuid4()
    sessions.open_session(
        connection, session_id, kind="worker", worker="host:1", capacity=capacity, length_s=length_s
    )
    ledger.execute(HELD, count=holds, session=session_id)
    return session_id


def sweeping(connection: Connection, stop: threading.Event) -> tuple[int, bool]:
    """Rounds in quick succession, so that the sweeps contend; how many this one ended, and if it is open."""
    process = Sweep(session_s=30, dispatch_grace_s=5, rate_per_s=RATE, breaker_at=0.85)
    ended = 0
    while not stop.wait(0.02):
        ended += process.run_once(connection, database_now(connection)).counts["lost"]
    return ended, process._broken


@pytest.mark.soak
def test_they_return_at_one_rate_past_a_breaker_that_closes_by_itself(
    ledger: HandMadeLedger, connect: Callable[[], Connection], clean_database: str
) -> None:
    connection = connect()
    worker(ledger, connection, holds=ORPHANS, capacity=ORPHANS, length_s=-1)
    living = worker(ledger, connection, holds=LIVING, capacity=100, length_s=600)
    stop = threading.Event()

    def left() -> int:
        return int((connection.execute("SELECT count(*) FROM lease").fetchone() or [0])[0])

    with ThreadPoolExecutor(3) as pool:
        sweeps = [pool.submit(sweeping, connect(), stop) for _ in range(3)]
        try:
            wait_until(lambda: left() <= ORPHANS + LIVING - 2 * TRICKLE, 30)
            connection.execute("UPDATE session SET capacity = 1000 WHERE id = %s", [living])
            wait_until(lambda: left() == LIVING, 120)
        finally:
            stop.set()
        ended = [one.result(30) for one in sweeps]  # a deadlock would be raised here

    assert sum(count for count, _ in ended) == ORPHANS
    assert not any(broken for _, broken in ended)
    turns = connection.execute(
        "SELECT count(*), extract(epoch FROM finished_at)::float8 FROM attempt"
        " WHERE outcome = 'lost' GROUP BY finished_at ORDER BY finished_at"
    ).fetchall()
    assert [count for count, _ in turns[:2]] == [TRICKLE, TRICKLE]
    assert max(count for count, _ in turns) == RATE
    assert turns[-1][1] - turns[0][1] > len(turns) - 2
    assert all(later > earlier for (_, earlier), (_, later) in pairwise(turns))
    held = connection.execute("SELECT count(*) FROM lease WHERE session_id = %s", [living]).fetchone()
    assert held == (LIVING,)
    assert not [found for found in verify(clean_database).violations if found.invariant != "I1"]
