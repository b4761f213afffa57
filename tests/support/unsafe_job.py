"""A job whose effect must not happen twice, and which ends as its payload says."""

from examples import effects
from scheduler.faultpoints import fault_point
from scheduler.jobs import Context, NotStarted, PermanentError, job


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
