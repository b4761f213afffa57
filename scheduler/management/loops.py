"""From the settings to the objects that the loop commands run."""

import argparse
import threading
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler import broker
from scheduler.db import engine_connection
from scheduler.processes.loop import Process, run_rounds, stop_on_signals
from scheduler.processes.ownership import Ownership
from scheduler.processes.relay import Relay
from scheduler.processes.sweep import Sweep
from scheduler.processes.tick import Tick


def _ownership(kind: str, wanted: range | None) -> Ownership:
    environment = settings.FENCEPOST
    return Ownership(
        kind,
        shard_count=environment.shards,
        wanted=wanted or range(environment.shards),
        lease_s=environment.shard_lease_s,
        ignore=environment.ignore_ownership,
    )


def tick(wanted: range | None) -> Process:
    environment = settings.FENCEPOST
    return Tick(
        _ownership("tick", wanted), look_ahead_s=environment.look_ahead_s, batch=environment.tick_batch
    )


def relay(wanted: range | None) -> Process:
    publisher = broker.publisher(settings.CELERY_BROKER_URL, settings.CELERY_BROKER_TRANSPORT_OPTIONS)
    return Relay(_ownership("relay", wanted), publisher)


def sweep(wanted: range | None) -> Process:
    """The sweep has no shards: its statements skip what another sweep has locked."""
    environment = settings.FENCEPOST
    return Sweep(
        session_s=environment.session_s,
        dispatch_grace_s=environment.dispatch_grace_s,
        rate_per_s=environment.sweep_rate,
        breaker_at=environment.breaker,
    )


PROCESSES: Mapping[str, Callable[[range | None], Process]] = {"tick": tick, "relay": relay, "sweep": sweep}


def shard_range(text: str) -> range:
    """`0-127`, both ends included."""
    first, _, last = text.partition("-")
    try:
        wanted = range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of shards such as 0-127") from None
    if not wanted or wanted.start < 0 or wanted.stop > settings.FENCEPOST.shards:
        raise argparse.ArgumentTypeError(f"shards go from 0 to {settings.FENCEPOST.shards - 1}")
    return wanted


class LoopCommand(BaseCommand):
    """Runs the processes in `names` until SIGTERM; each finishes its round and gives back its shards."""

    names: tuple[str, ...] = ()
    requires_system_checks: tuple[str, ...] = ()  # they load every page and form: not what an engine runs

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do one round and end")
        parser.add_argument(
            "--shards",
            type=shard_range,
            help="work these alone, such as 0-127 (default: a fair share of all)",
        )
        parser.add_argument(
            "--drain-timeout",
            type=float,
            default=10.0,
            help="seconds that a round may still take after SIGTERM (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stop = stop_on_signals()
        failures: list[BaseException] = []
        threads = [
            threading.Thread(
                target=_guarded,
                args=(PROCESSES[name](options["shards"]), stop, options["once"], failures),
                name=name,
                daemon=True,
            )
            for name in self.names
        ]
        for thread in threads:
            thread.start()
        _wait(threads, stop, options["drain_timeout"])
        if failures:
            raise CommandError(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]


def _guarded(process: Process, stop: threading.Event, once: bool, failures: list[BaseException]) -> None:
    """If one of several loops dies, all end: the supervisor starts them again together."""
    try:
        run_rounds(process, engine_connection, stop, once=once)
    except BaseException as error:
        failures.append(error)
        stop.set()


def _wait(threads: list[threading.Thread], stop: threading.Event, drain_timeout_s: float) -> None:
    """Signals reach the main thread alone: it waits in slices until the loops end or are told to."""
    while not stop.is_set() and any(thread.is_alive() for thread in threads):
        stop.wait(0.1)
    for thread in threads:
        thread.join(drain_timeout_s)
