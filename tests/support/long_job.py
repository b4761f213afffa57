"""A job of a minute that agrees to stop when its worker shuts down, and then goes on where it was."""

import time

from examples import effects
from scheduler.jobs import Context, job


@job("tests.long", drains=True)
def long(ctx: Context) -> None:
    effects.append(ctx, "begin")
    ends = time.monotonic() + (0 if ctx.resume == "nearly done" else 60)
    ctx.heartbeat(resume="nearly done")
    while time.monotonic() < ends:
        ctx.check_cancelled()
        time.sleep(0.05)
    effects.append(ctx, "end")
