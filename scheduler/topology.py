"""Names of what lies in the broker, agreed between relay and worker."""

from typing import Any

from kombu import Exchange, Queue

EXCHANGE = "fencepost.runs"
LANE = "default"
CLASSES = ("high", "normal", "low", "overdue")

# Celery tasks that stand for many targets: HTTP endpoints, existing tasks. A job is a task of its own name.
HTTP_TASK = "fencepost.http"
EXISTING_TASK = "fencepost.task"
_TASK_OF_KIND = {"http": HTTP_TASK, "task": EXISTING_TASK}


def celery_task(kind: str, target: str) -> str:
    """The name of the Celery task that runs a target of this kind."""
    return _TASK_OF_KIND.get(kind, target)


def queue_name(run_class: str, lane: str = LANE) -> str:
    return f"fencepost.{lane}.{run_class}"


def exchange() -> Exchange:
    return Exchange(EXCHANGE, type="direct", durable=True)


def queues(*, quorum: bool) -> list[Queue]:
    """All of a lane. Quorum queues where the broker has them: a classic one lost confirmed messages' order
    and, killed at once, unconfirmed ones by the thousand.
    """
    arguments: dict[str, Any] = {"x-queue-type": "quorum"} if quorum else {}
    return [
        Queue(
            queue_name(run_class),
            exchange(),
            routing_key=queue_name(run_class),
            durable=True,
            queue_arguments=arguments,
        )
        for run_class in CLASSES
    ]


def is_amqp(broker_url: str) -> bool:
    return broker_url.startswith(("amqp://", "amqps://", "pyamqp://"))
