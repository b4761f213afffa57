"""Actors on connections of their own, moved one SQL statement at a time, in an order that others choose.

Each actor runs in a thread that stops before every statement and every end of a transaction. The stage lets
one go on and waits until everybody stands again: before a step, at the end, or behind a lock of one that
stands. What can move next therefore follows from the order so far, and the same order gives the same result.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

import psycopg
import pytest
from django.db import connections
from psycopg.pq import TransactionStatus

from tests.support.footprints import Catalogue, Step

Connection: TypeAlias = psycopg.Connection[Any]

_here = threading.local()
_PATIENCE_S = 30.0
_GLANCE_S = 0.002  # most statements are done by then: only after it is asked who waits for a lock


class _Abandoned(BaseException):
    """The play is over for this actor, whatever it was about to do."""


@dataclass(kw_only=True, eq=False)
class Actor:
    """`action` gets a connection of its own, as the engine's processes have them; the ORM has another.

    `pending` is what it does when it is let go. `answer` and `error` are what became of the action.
    """

    name: str
    action: Callable[[Connection], Any]
    pending: Step | None = None
    answer: Any = None
    error: BaseException | None = None
    ended: bool = False
    abandoned: bool = False
    pid: int = 0
    held: set[str] = field(default_factory=set)  # tables with locks of its open transaction
    written: set[str] = field(default_factory=set)
    standing: threading.Event = field(default_factory=threading.Event)
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run(self, connection: Connection) -> None:
        _here.actor = self
        try:
            self.answer = self.action(connection)
        except _Abandoned:
            pass
        except BaseException as error:  # told by the stage, in the test's own thread
            self.error = error
        finally:
            _here.actor = None
            self.pending, self.ended = None, True
            self.standing.set()

    def stop_before(self, step: Step, pid: int = 0) -> None:
        if step.touches_nothing:
            return
        self.pending, self.pid = step, pid or self.pid
        if not self.abandoned:
            self.standing.set()
            self._go.acquire()
        if self.abandoned:
            raise _Abandoned

    def let_go(self) -> None:
        self.standing.clear()
        self._go.release()


def stop_before(step: Step) -> None:
    """For what is no statement and yet a step, such as a look at a clock. Elsewhere nothing happens."""
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.stop_before(step)


def stop_at_statements(monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue) -> None:
    """Every statement of ORM and store, and every end of a transaction, becomes a step."""
    _stop_at_each_execute(monkeypatch, catalogue)
    _stop_at_each_end(monkeypatch)


def _stop_at_each_execute(monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue) -> None:
    execute = psycopg.Cursor.execute

    def stepping(
        self: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any
    ) -> psycopg.Cursor[Any]:
        actor: Actor | None = getattr(_here, "actor", None)
        if actor is None:
            return execute(self, query, params, **options)
        info = self.connection.info
        alone = self.connection.autocommit and info.transaction_status == TransactionStatus.IDLE
        step = catalogue.step(query, params, held=actor.held, alone=alone)
        actor.stop_before(step, info.backend_pid)
        answer = execute(self, query, params, **options)
        if not (alone or step.touches_nothing) and self.rowcount:
            locked, written = catalogue.effect(query)
            actor.held |= locked
            actor.written |= written
        return answer

    monkeypatch.setattr(psycopg.Cursor, "execute", stepping)


def _stop_at_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's transactions end by `__exit__`, those of the ORM by `commit` and `rollback`."""
    leave = psycopg.Transaction.__exit__
    commit, rollback = psycopg.Connection.commit, psycopg.Connection.rollback

    def stepping_leave(
        self: psycopg.Transaction,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            if not self.savepoint_name:
                _stop_before_end(self.connection, commits=error is None)
        except _Abandoned as abandoned:  # psycopg is to roll back all the same
            leave(self, _Abandoned, abandoned, None)
            raise
        return leave(self, kind, error, trace)

    def stepping_commit(self: Connection) -> None:
        try:
            _stop_before_end(self, commits=True)
        except _Abandoned:
            rollback(self)
            raise
        commit(self)

    def stepping_rollback(self: Connection) -> None:
        try:
            _stop_before_end(self, commits=False)
        finally:
            rollback(self)

    monkeypatch.setattr(psycopg.Transaction, "__exit__", stepping_leave)
    monkeypatch.setattr(psycopg.Connection, "commit", stepping_commit)
    monkeypatch.setattr(psycopg.Connection, "rollback", stepping_rollback)


def _stop_before_end(connection: Connection, *, commits: bool) -> None:
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is None or connection.info.transaction_status == TransactionStatus.IDLE:
        return
    frees, shows = frozenset(actor.held), frozenset(actor.written if commits else ())
    actor.held, actor.written = set(), set()
    step = Step(label="commit" if commits else "rollback", frees=frees, shows=shows)
    actor.stop_before(step, connection.info.backend_pid)


class _Seat(threading.Thread):
    """A thread with its connections, for one actor after the other: connecting costs more than most plays."""

    def __init__(self, database_url: str) -> None:
        super().__init__(daemon=True)
        self.actors: queue.SimpleQueue[Actor | None] = queue.SimpleQueue()
        self._database_url = database_url

    def run(self) -> None:
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            while (actor := self.actors.get()) is not None:
                actor.run(connection)
        connections.close_all()


# Of those that can move, and knowing who waits for a lock, the next to move; None breaks the play off.
Choose: TypeAlias = Callable[[Sequence[Actor], Sequence[Actor]], Actor | None]


class Stage:
    def __init__(self, watcher: Connection, seats: Sequence[_Seat]) -> None:
        self._watcher = watcher
        self._seats = seats

    @classmethod
    @contextmanager
    def open(cls, database_url: str, *, seats: int = 5) -> Iterator["Stage"]:
        threads = [_Seat(database_url) for _ in range(seats)]
        with psycopg.connect(database_url, autocommit=True) as watcher:
            for thread in threads:
                thread.start()
            yield cls(watcher, threads)
        for thread in threads:
            thread.actors.put(None)
        for thread in threads:
            thread.join(_PATIENCE_S)

    def play(self, actors: Sequence[Actor], choose: Choose) -> bool:
        """Until all have ended; False: it was broken off, and all that was not committed rolled back."""
        assert len(actors) <= len(self._seats)
        for seat, actor in zip(self._seats, actors, strict=False):
            seat.actors.put(actor)
        try:
            while movable := self._movable(actors):
                waiting = [actor for actor in actors if not actor.standing.is_set()]
                chosen = choose(movable, waiting)
                if chosen is None:
                    return False
                chosen.let_go()
            return True
        finally:
            self._abandon(actors)

    def _movable(self, actors: Sequence[Actor]) -> list[Actor]:
        """Those that stand before a step, once nobody is under way who will get further by himself."""
        deadline = time.monotonic() + _PATIENCE_S
        for actor in actors:
            actor.standing.wait(_GLANCE_S)
        while True:
            under_way = [actor for actor in actors if not actor.standing.is_set()]
            movable = [actor for actor in actors if actor not in under_way and not actor.ended]
            if not under_way or (movable and self._all_wait(under_way, movable)):
                return movable
            # If all wait for each other, Postgres ends one of them, and its error is told.
            assert time.monotonic() < deadline, f"lost: {[(one.name, one.pending) for one in under_way]}"
            under_way[0].standing.wait(_GLANCE_S)

    def _all_wait(self, under_way: Sequence[Actor], movable: Sequence[Actor]) -> bool:
        """Whether each waits for a lock of one that stands, or of one that waits like that.

        By the lock table, which knows of a release when the commit has been answered; the wait events of
        pg_stat_activity are behind it.
        """
        asked = "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::int[]) AS pid"
        if not all(actor.pid for actor in under_way):
            return False  # on its way to its first statement
        blockers = dict(self._watcher.execute(asked, [[actor.pid for actor in under_way]]).fetchall())
        stuck = {actor.pid for actor in movable}
        while more := {pid for pid, by in blockers.items() if pid not in stuck and stuck & set(by)}:
            stuck |= more
        return stuck >= set(blockers)

    def _abandon(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            actor.abandoned = True
        for actor in actors:
            if actor.standing.is_set() and not actor.ended:
                actor.let_go()
        deadline = time.monotonic() + _PATIENCE_S
        while not all(actor.ended for actor in actors):
            assert time.monotonic() < deadline, "an actor does not end"
            next(actor for actor in actors if not actor.ended).standing.wait(_GLANCE_S)
