"""The least that a job can be."""

from scheduler.jobs import Context, job


@job("bench.noop")
def noop(ctx: Context) -> None:
    return None
