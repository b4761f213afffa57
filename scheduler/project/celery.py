"""The Celery application of the workers: `celery -A scheduler.project worker --pool threads`."""

import os
import secrets
from typing import Any

from celery import Celery, signals
from celery.utils.nodenames import default_nodename

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler.project.settings")
# Django's checks load every page and form: not what a worker runs, and a second of its start.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

from django.conf import settings

from scheduler import existing_tasks, folder_transport
from scheduler.topology import EXCHANGE, is_amqp, queue_name, queues
from scheduler.worker.gate import Gate

folder_transport.register()
app = Celery("fencepost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.task_queues = queues(quorum=is_amqp(settings.CELERY_BROKER_URL))
app.conf.update(
    task_default_queue=queue_name("normal"),
    task_default_exchange=EXCHANGE,
    task_default_routing_key=queue_name("normal"),
)
app.steps["consumer"].add(Gate)
app.autodiscover_tasks(related_name="jobs")
app.conf.imports = ("scheduler.tasks", *settings.FENCEPOST.jobs)


@signals.worker_init.connect
def _know_existing_tasks(**_: Any) -> None:
    """Before a pool forks: its children know what their parent does."""
    try:
        existing_tasks.register(app, settings.FENCEPOST.tasks)
    except (existing_tasks.UnknownTask, TypeError) as error:
        raise SystemExit(str(error)) from None  # whatever else a receiver raises, Celery goes on without


@signals.celeryd_init.connect
def _name_after_process(instance: Any, **_: Any) -> None:
    """Celery's default name is one per host, and containers may share host name and pid. A name given by `-n`
    is left alone.
    """
    if instance.hostname == default_nodename(""):
        instance.hostname = default_nodename(f"celery-{os.getpid()}-{secrets.token_hex(2)}@")
