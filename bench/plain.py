"""Plain Celery, with its defaults but for heartbeats, and a task that does nothing: the ceiling for the way
through the worker.

BENCH_BROKER_URL: where; BENCH_PLAIN_FILE: receives the time after each BENCH_PLAIN_BATCH tasks.
"""

import os
import time

from billiard import Value
from celery import Celery

TASK, QUEUE = "bench.plain.noop", "bench.plain"
_BATCH = int(os.environ.get("BENCH_PLAIN_BATCH", "1000"))
_done = Value("l", 0)  # of all processes of the pool

app = Celery("plain", broker=os.environ.get("BENCH_BROKER_URL", "amqp://"))
app.conf.task_default_queue = QUEUE
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 4  # as our own worker's
app.conf.broker_heartbeat = 0  # with gevent it would do eleven tasks a second


@app.task(name=TASK)
def noop() -> None:
    with _done.get_lock():
        _done.value += 1
        is_last = _done.value % _BATCH == 0
    if is_last:
        with open(os.environ["BENCH_PLAIN_FILE"], "a", encoding="ascii") as times:
            times.write(f"{time.time()}\n")
