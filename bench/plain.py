"""Plain Celery with its defaults and a task that does nothing: the ceiling for the way through the worker.

BENCH_BROKER_URL: where; BENCH_PLAIN_FILE: receives the time after each BENCH_PLAIN_BATCH tasks.
"""

import os
import time
from itertools import count

from celery import Celery

TASK, QUEUE = "bench.plain.noop", "bench.plain"
_BATCH = int(os.environ.get("BENCH_PLAIN_BATCH", "1000"))
_done = count(1)

app = Celery("plain", broker=os.environ.get("BENCH_BROKER_URL", "amqp://"))
app.conf.task_default_queue = QUEUE
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 4  # as our own worker's


@app.task(name=TASK)
def noop() -> None:
    if next(_done) % _BATCH == 0:
        with open(os.environ["BENCH_PLAIN_FILE"], "a", encoding="ascii") as times:
            times.write(f"{time.time()}\n")
