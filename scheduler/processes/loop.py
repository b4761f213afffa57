"""The only `while`, wait and signal handling of tick, relay and sweep."""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from scheduler import telemetry
from scheduler.clock import database_now
from scheduler.store.statements import DATABASE_AWAY, Connection

RECONNECT_S = (0.2, 0.5, 1.0, 2.0)  # pauses after failures in a row; the last repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a round did. `more`: start the next at once; else wait `wait_s` seconds."""

    counts: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    wait_s: float = 1.0


class Process(Protocol):
    name: str

    def run_once(self, connection: Connection, now: datetime) -> Report:
        """One round. `now` is the database's clock at its head."""

    def retire(self, connection: Connection) -> None:
        """Give back what is held, so that others need not wait for it to run out."""

    def disconnected(self) -> None:
        """The connection was lost: what was believed held may be somebody else's by now."""


Connect = Callable[[str], Connection]


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set: the round that runs is finished, then the loop ends."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def run_rounds(process: Process, connect: Connect, stop: threading.Event, *, once: bool = False) -> None:
    """Rounds until `stop`. A lost database is waited for; any other error of a round ends the process,
    for its supervisor to see: a round has no state that a restart could lose.
    """
    failures = 0
    while not stop.is_set():
        try:
            with connect(process.name) as connection:
                failures = 0
                _rounds_on(process, connection, stop, once=once)
                process.retire(connection)
            return
        except DATABASE_AWAY as error:
            if once:
                raise
            process.disconnected()
            telemetry.trouble("database_away", process=process.name, error=str(error).strip())
            stop.wait(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
            failures += 1


def _rounds_on(process: Process, connection: Connection, stop: threading.Event, *, once: bool) -> None:
    while not stop.is_set():
        report = _timed_round(process, connection)
        if once:
            return
        if not report.more:
            stop.wait(report.wait_s)


def _timed_round(process: Process, connection: Connection) -> Report:
    began = time.monotonic()
    report = process.run_once(connection, database_now(connection))
    telemetry.round_ended(process.name, report.counts, time.monotonic() - began)
    return report
