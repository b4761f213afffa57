"""The bench writes straight into the tables: a changed column is noticed here, not on the day it is run."""

from pathlib import Path

import psycopg

from bench.ground import Ground
from bench.spine import RAW_QUEUE, Bench
from tests.support.processes import Launcher


def test_each_stage_runs_on_this_schema(
    database: str, broker_url: str, launch: Launcher, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        on = Ground(folder=tmp_path, connection=connection, broker_url=broker_url, launch=launch)
        bench = Bench(on, rows=20)
        for stage in (bench.ticked, bench.inserted, bench.dispatched, bench.published):
            assert stage() > 0
        bench.raw.purge(RAW_QUEUE)  # the connection is still good: nothing was refused
        bench.close()
