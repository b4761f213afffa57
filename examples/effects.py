"""The writing end of the effect ledger: what jobs did, told by themselves. `manage.py verify` reads it."""

import json
import os
from datetime import UTC, datetime
from typing import Literal

from django.conf import settings

from scheduler.jobs import Context


def append(ctx: Context, phase: Literal["begin", "end"]) -> None:
    """One line in `FENCEPOST_EFFECTS`, on disk when this returns.

    O_APPEND and a single write keep the lines of many processes whole; one line is far below a page.
    """
    line = {
        "phase": phase,
        "run": str(ctx.run_id),
        "due_at": ctx.due_at.isoformat(),
        "fence": ctx.fence,
        "attempt": ctx.attempt,
        "pid": os.getpid(),
        "at": datetime.now(UTC).isoformat(),
    }
    path = settings.FENCEPOST.effects
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, json.dumps(line).encode() + b"\n")
        os.fsync(ledger)
    finally:
        os.close(ledger)
