"""Jobs that end in ways a pool of processes or greenlets has to cope with."""

import ctypes
import os
import time
from typing import Any

from examples import effects
from scheduler.jobs import Context, job
from scheduler.worker.execution import RESULT_BYTES


class Unpicklable(Exception):
    """Neither way: dumped it raises, and what would load it asks for two arguments."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)
        self.line = lambda: second

    def __reduce__(self) -> Any:
        raise TypeError("not across a pipe")


@job("tests.odd")
def odd(ctx: Context, end: str = "") -> Any:
    effects.append(ctx, "begin")
    if end == "exit":
        os._exit(3)
    if end == "segfault":
        ctypes.string_at(0)
    if end == "unpicklable":
        raise Unpicklable("no", "way")
    if end == "system exit":
        raise SystemExit(7)
    if end == "large error":
        raise RuntimeError("\N{SNOWMAN}" * 100_000)
    effects.append(ctx, "end")
    if end == "large":
        return "x" * (RESULT_BYTES - 2)
    return object() if end == "no json" else {"end": end}


@job("tests.deaf")
def deaf(ctx: Context, seconds: float = 60.0) -> None:
    """Sleeps, and hears nobody: neither a cancellation nor an exception that asks it to end."""
    effects.append(ctx, "begin")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            time.sleep(0.05)
        except Exception:
            continue
    effects.append(ctx, "end")


@job("tests.sleeper")
def sleeper(ctx: Context, seconds: float = 60.0) -> None:
    """Sleeps without a look at its context, and ends by whatever is raised in it."""
    effects.append(ctx, "begin")
    time.sleep(seconds)
    effects.append(ctx, "end")


@job("tests.hog")
def hog(ctx: Context, seconds: float = 1.0) -> None:
    """Computes, and yields to nobody."""
    effects.append(ctx, "begin")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass
    effects.append(ctx, "end")


@job("tests.unsafe_exit", side_effects="unsafe_external")
def unsafe_exit(ctx: Context) -> None:
    """Its process ends after the effect, before it can tell."""
    effects.append(ctx, "begin")
    os._exit(3)


@job("tests.unsafe_sleeper", side_effects="unsafe_external")
def unsafe_sleeper(ctx: Context, seconds: float = 60.0) -> None:
    effects.append(ctx, "begin")
    time.sleep(seconds)
    effects.append(ctx, "end")
