"""A job whose effect must not happen twice, and which ends as its payload says."""

import os
import signal

from django.conf import settings

from examples import effects
from scheduler.faultpoints import fault_point
from scheduler.jobs import Context, NotStarted, PermanentError, UnknownRun, job
from scheduler.testing import effects as ledger_of_effects


def asks_the_bank(run: UnknownRun) -> str:
    """The file of effects is what the bank has on record."""
    if os.environ.get("KILLED_IN_HOOK"):
        os.kill(os.getpid(), signal.SIGKILL)
    recorded = ledger_of_effects.read(settings.FENCEPOST.effects)
    paid = any(effect.run == run.run_id and effect.phase == "end" for effect in recorded)
    return "succeeded" if paid else "failed"


@job("tests.payment", side_effects="unsafe_external", reconcile=asks_the_bank)
def payment(ctx: Context) -> str:
    effects.append(ctx, "begin")
    effects.append(ctx, "end")
    fault_point("worker.after_effect")
    return "paid"


@job("tests.unsafe", side_effects="unsafe_external")
def unsafe(ctx: Context, fails: str = "") -> str:
    if fails == "before":
        raise NotStarted("the bank was closed")
    effects.append(ctx, "begin")
    if fails == "for good":
        raise PermanentError("the account is closed")
    if fails == "without an answer":
        raise TimeoutError("no answer within 30 s")
    effects.append(ctx, "end")
    fault_point("worker.after_effect")
    return "paid"
