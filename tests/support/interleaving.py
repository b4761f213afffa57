"""Actors on connections of their own, moved one SQL statement at a time, in an order that others choose.

Each actor runs in a thread that stops before every statement and before its commit. The stage lets one go on
and waits until it stops again, has ended, or waits for a lock of another: then somebody else has to move.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

_here = threading.local()
_PATIENCE_S = 30.0


@dataclass(kw_only=True)
class Actor:
    name: str
    action: Callable[[], Any]
    stopped: threading.Event = field(default_factory=threading.Event)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    pid: int | None = None
    ended: bool = False
    blocked: bool = False
    error: BaseException | None = None

    def run(self) -> None:
        _here.actor = self
        try:
            self.stop()
            self.action()
        except BaseException as error:  # told by the stage, in the test's own thread
            self.error = error
        finally:
            _here.actor = None
            self.ended = True
            self.stopped.set()

    def stop(self) -> None:
        self.stopped.set()
        self.go.acquire()


def step(pid: int | None = None) -> None:
    """Called in an actor's thread before whatever it does next to the database; elsewhere nothing happens."""
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.pid = pid or actor.pid
        actor.stop()


def stop_at_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every statement of ORM and store, and every commit of the ORM, becomes a step."""
    execute, commit = psycopg.Cursor.execute, psycopg.Connection.commit

    def stepping_execute(self: psycopg.Cursor[Any], *args: Any, **options: Any) -> Any:
        step(self.connection.info.backend_pid)
        return execute(self, *args, **options)

    def stepping_commit(self: psycopg.Connection[Any]) -> None:
        step(self.info.backend_pid)
        commit(self)

    monkeypatch.setattr(psycopg.Cursor, "execute", stepping_execute)
    monkeypatch.setattr(psycopg.Connection, "commit", stepping_commit)


class Stage:
    """`watcher`: an autocommit connection that sees who waits for a lock."""

    def __init__(self, watcher: psycopg.Connection[Any], actors: Sequence[Actor]) -> None:
        self._watcher = watcher
        self.actors = actors

    def play(self, choose: Callable[[Sequence[Actor]], Actor]) -> None:
        """Until all have ended. `choose` picks who moves next among those that can."""
        threads = [threading.Thread(target=actor.run, daemon=True) for actor in self.actors]
        for thread in threads:
            thread.start()
        for actor in self.actors:
            assert actor.stopped.wait(_PATIENCE_S)
        while movable := self._movable():
            self._move(choose(movable))
        for thread in threads:
            thread.join(_PATIENCE_S)

    def _movable(self) -> list[Actor]:
        """Those that stand before a statement. Where all wait for locks, wait until one of them gets on."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for actor in self.actors:
                actor.blocked = actor.blocked and not actor.stopped.is_set()
            found = [actor for actor in self.actors if not actor.ended and not actor.blocked]
            if found or all(actor.ended for actor in self.actors):
                return found
            assert time.monotonic() < deadline, "all wait for each other"
            self.actors[0].stopped.wait(0.005)

    def _move(self, actor: Actor) -> None:
        actor.stopped.clear()
        actor.go.release()
        deadline = time.monotonic() + _PATIENCE_S
        while not actor.stopped.wait(0.003):
            if self._waits_for_lock(actor):
                actor.blocked = True
                return
            assert time.monotonic() < deadline, f"{actor.name} is lost"

    def _waits_for_lock(self, actor: Actor) -> bool:
        asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        return bool((self._watcher.execute(asked, [actor.pid]).fetchone() or [False])[0])
