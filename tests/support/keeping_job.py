"""A job that keeps its result in Celery's result backend too."""

from scheduler.jobs import Context, job


@job("tests.keeping", store_result=True)
def keeping(ctx: Context, rows: int) -> dict[str, int]:
    return {"rows": rows}
