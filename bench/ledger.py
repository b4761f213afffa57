"""What the ledger costs a worker: claims and ends of runs, and the proof that it lives.

    python -m bench.ledger [--json]

The flusher is measured against a row at a time: the same statements, one run in each transaction, from the
thread that wants it. Rounds alternate; medians, and their ratio.

at 64       64 jobs wait at any time    group commit is to be at least three times as fast
at 1        one job waits               and no slower
liveness    40 sessions that hold 10,000 running runs are renewed as workers do: share of one core of Postgres
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import psutil
import psycopg

from bench.ground import circumstances, database_ground, make_schedules
from scheduler.clock import database_now
from scheduler.core.identity import shard_of
from scheduler.core.states import AttemptOutcome, State
from scheduler.processes.tick import new_run_id
from scheduler.store import claims, sessions
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.store.sessions import Load
from scheduler.store.statements import Connection
from scheduler.worker.flusher import ClaimWish, EndWish, Flusher

ROUNDS = 5
RUNS = {64: 1280, 1: 200}  # of a round, by the number of jobs that wait
SESSIONS, HELD = 40, 250
RENEWED_EVERY_S = 10
RENEWALS = 10  # of each session


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Runs per second, claimed and ended, medians over the rounds."""

    waiting: int
    flusher: float
    row_at_a_time: float
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Liveness:
    """What the renewals of `running` runs in `sessions` cost Postgres, as a share of one core."""

    running: int
    sessions: int
    share_of_a_core: float


class Bench:
    def __init__(self, database_url: str, *, runs: dict[int, int] = RUNS) -> None:
        self.runs = runs
        self.connect: Callable[[str], Connection] = lambda name: psycopg.connect(
            database_url, autocommit=True, application_name=name
        )
        self.connection = self.connect("bench")
        self.now = database_now(self.connection).replace(microsecond=0)
        (self.schedule,) = make_schedules(
            self.connection, 1, every_s=30 * 86400, anchor=self.now - timedelta(seconds=1)
        )
        self.session = self._session()
        self.moments = (self.now - timedelta(seconds=number) for number in count(600))

    def rate(self, waiting: int) -> Rate:
        pairs = [(self.flushed(waiting), self.one_by_one(waiting)) for _ in range(ROUNDS)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        return Rate(waiting=waiting, flusher=ours, row_at_a_time=theirs, ratio=ours / theirs)

    # Runs through the flusher -------------------------------------------------------------------

    def flushed(self, waiting: int) -> float:
        queue = self._queued(self.runs[waiting])
        with self._flusher() as flusher:
            return _timed(len(queue), lambda: _in_threads(waiting, queue, _Job(flusher, self.session)))

    @contextmanager
    def _flusher(self) -> Iterator[Flusher]:
        flusher = Flusher(self.connect)
        flusher.start()
        yield flusher
        flusher.finish(10)

    # Runs one by one ----------------------------------------------------------------------------

    def one_by_one(self, waiting: int) -> float:
        """One connection, as the flusher has: of jobs that wait, each has its turn on it."""
        queue = self._queued(self.runs[waiting])
        with self.connect("bench row at a time") as connection:
            turn = threading.Lock()

            def job(claim: Claim) -> None:
                with turn:
                    held = _claim_row(connection, claim, self.session)
                with turn:
                    _end_row(connection, _ending(held))

            return _timed(len(queue), lambda: _in_threads(waiting, queue, job))

    # Liveness -----------------------------------------------------------------------------------

    def liveness(self, *, running: int = SESSIONS * HELD, renewals: int = RENEWALS) -> Liveness:
        own = [self._session() for _ in range(SESSIONS)]
        moment = next(self.moments)
        self._rows(moment, running)
        self.connection.execute(_HOLD, {"moment": moment, "sessions": own})
        self.connection.execute(b"ANALYZE lease, occurrence")
        backend = psutil.Process(self.connection.info.backend_pid)
        before = _processor_s(backend)
        for _ in range(renewals):
            for session_id in own:
                sessions.renew_session(self.connection, session_id, load=Load(), length_s=600)
                sessions.held_leases(self.connection, session_id)
        spent_s = (_processor_s(backend) - before) / renewals
        return Liveness(running=running, sessions=SESSIONS, share_of_a_core=spent_s / RENEWED_EVERY_S)

    # Rows ---------------------------------------------------------------------------------------

    def _session(self) -> UUID:
        session_id = uuid4()
        sessions.open_session(
            self.connection, session_id, kind="worker", worker="bench", capacity=HELD, length_s=3600
        )
        return session_id

    def _queued(self, runs: int) -> list[Claim]:
        moment = next(self.moments)
        ids = self._rows(moment, runs)
        self.connection.execute(_QUEUE, {"moment": moment})
        return [Claim(run_id=run_id, due_at=moment, claim_id=uuid4()) for run_id in ids]

    def _rows(self, moment: datetime, runs: int) -> list[UUID]:
        ids = [new_run_id(moment) for _ in range(runs)]
        self.connection.execute(
            _INSERT,
            {
                "ids": ids,
                "keys": [uuid4() for _ in ids],
                "moment": moment,
                "schedule": self.schedule,
                "shard": shard_of(self.schedule),
            },
        )
        return ids


class _Job:
    """What a slot of a worker does, with a function that takes no time."""

    def __init__(self, flusher: Flusher, session_id: UUID) -> None:
        self._flusher = flusher
        self._session_id = session_id

    def __call__(self, claim: Claim) -> None:
        held = self._answer(
            lambda tell: ClaimWish(claim=claim, session_id=self._session_id, answer=tell),
        )
        assert isinstance(held, Claimed), held
        assert self._answer(lambda tell: EndWish(ending=_ending(held), answer=tell))

    def _answer(self, wish: Callable[[Callable[[Any], None]], Any]) -> Any:
        answered = threading.Event()
        answers: list[Any] = []

        def tell(answer: Any) -> None:
            answers.append(answer)
            answered.set()

        self._flusher.submit(wish(tell))
        assert answered.wait(30)
        return answers[0]


def _claim_row(connection: Connection, claim: Claim, session_id: UUID) -> Claimed:
    with connection.transaction():
        claims.lock(connection, claims=[claim])
        claims.claim(connection, [claim], session_id=session_id)
    return claims.claimed(connection, [claim.claim_id])[claim.claim_id]


def _end_row(connection: Connection, ending: Ending) -> None:
    with connection.transaction():
        claims.lock(connection, endings=[ending])
        assert claims.end_attempts(connection, [ending], guard="holder")


def _ending(held: Claimed) -> Ending:
    return Ending(
        run_id=held.run_id,
        due_at=held.due_at,
        fence=held.fence,
        schedule_id=held.schedule_id,
        slotted=held.slotted,
        state=State.SUCCEEDED,
        outcome=AttemptOutcome.SUCCEEDED,
    )


def _in_threads(waiting: int, queue: list[Claim], job: Callable[[Claim], None]) -> None:
    """`waiting` threads share the queue: so many jobs wait for the ledger at any time."""

    def work(number: int) -> None:
        for claim in queue[number::waiting]:
            job(claim)

    threads = [threading.Thread(target=work, args=[number]) for number in range(waiting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _timed(runs: int, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return runs / (time.perf_counter() - began)


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


_INSERT = b"""
INSERT INTO occurrence (id, due_at, schedule_id, revision, origin, origin_key, tenant_id, shard, overlap,
                        state, wait_reason, dispatch_at, created_at, tzdata_version)
SELECT r.id, %(moment)s, s.id, 1, 'trigger', r.key, s.tenant_id, %(shard)s, 'allow',
       'PENDING', 'due', %(moment)s, %(moment)s, 'bench'
FROM unnest(%(ids)s::uuid[], %(keys)s::uuid[]) AS r(id, key), schedule s WHERE s.id = %(schedule)s
"""
_QUEUE = b"""
UPDATE occurrence SET state = 'QUEUED', wait_reason = NULL, generation = 1, queued_at = clock_timestamp()
WHERE due_at = %(moment)s AND state = 'PENDING'
"""
_HOLD = b"""
WITH queued AS (
    SELECT id, due_at, row_number() OVER () AS number FROM occurrence WHERE due_at = %(moment)s
)
INSERT INTO lease (run_id, due_at, session_id, fence, claim_id, granted_at, ends_by)
SELECT id, due_at, (%(sessions)s::uuid[])[1 + number %% cardinality(%(sessions)s::uuid[])],
       nextval('fence_seq'), gen_random_uuid(), clock_timestamp(), clock_timestamp() + interval '1 hour'
FROM queued
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.ledger", description="Claims, ends and liveness.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    as_json = parser.parse_args(arguments).json
    with database_ground() as database_url:
        bench = Bench(database_url)
        facts = {**circumstances(bench.connection), "rounds": ROUNDS}
        rates = [bench.rate(waiting) for waiting in RUNS]
        liveness = bench.liveness()
        bench.connection.close()
    if as_json:
        figures = {"rates": [asdict(rate) for rate in rates], "liveness": asdict(liveness)}
        print(json.dumps({"bench": "ledger", **facts, **figures}, indent=2))
        return 0
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    for rate in rates:
        print(
            f"at {rate.waiting:<9}{rate.flusher:9,.0f}/s  of {rate.row_at_a_time:9,.0f}/s"
            f"   ratio {rate.ratio:.2f}"
        )
    print(
        f"liveness of {liveness.running:,} runs in {liveness.sessions} sessions:"
        f" {liveness.share_of_a_core:.2%} of a core"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
