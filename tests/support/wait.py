"""Waiting for a condition, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(
    condition: Callable[[], Answer], timeout: float = 30.0, *, message: str = "", interval: float = 0.02
) -> Answer:
    """Return the first true answer of ``condition``; fail after ``timeout`` seconds without one."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(message or f"not within {timeout:g} s: {condition}")
        time.sleep(interval)
    return answer
