"""An application's tasks as Celery's documentation writes them. They know nothing of schedules and fences."""

import os
import time
from pathlib import Path

from celery import shared_task

CALLS = Path(os.environ.get("FENCEPOST_EFFECTS", "effects.jsonl")).with_name("calls")


def called(name: str) -> int:
    """Note a call; how many there have been of this name."""
    CALLS.mkdir(exist_ok=True)
    with (CALLS / name).open("a") as calls:
        calls.write("x")
    return (CALLS / name).stat().st_size


@shared_task
def add(x: int, y: int = 1) -> int:
    called("add")
    return x + y


@shared_task(bind=True, max_retries=3, default_retry_delay=1)
def flaky(self, name: str, good_after: int = 3):
    if called(name) < good_after:
        raise self.retry(exc=ConnectionError("not yet"), countdown=0.2)
    return {"retries": self.request.retries, "id": self.request.id}


@shared_task(autoretry_for=(ConnectionError,), retry_backoff=False, max_retries=2, default_retry_delay=0)
def automatic(name: str):
    called(name)
    raise ConnectionError("never")


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def gives_up(self, name: str):
    called(name)
    raise self.retry()


@shared_task(bind=True)
def insists(self, name: str, rows: int = 2):
    """Asks for a retry and returns: Celery would have published it."""
    if called(name) < 2:
        self.retry(args=(name,), kwargs={"rows": rows}, countdown=0.1, throw=False)
    return {"rows": rows}


@shared_task
def broken(name: str):
    called(name)
    raise ValueError("a bug")


@shared_task(ignore_result=False, soft_time_limit=60)
def kept(x: int):
    return {"doubled": 2 * x}


class OddError(Exception):
    """Does not go through a pipe."""

    def __init__(self, one, two):
        super().__init__(one)
        self.function = lambda: two


@shared_task
def odd(name: str):
    called(name)
    raise OddError("odd", "error")


@shared_task(max_retries=0)
def exits(name: str):
    called(name)
    os._exit(3)


@shared_task(soft_time_limit=1)
def slow(name: str):
    called(name)
    time.sleep(30)
