"""The Celery tasks that are the product's own."""

from scheduler.jobs import celery_task
from scheduler.worker import http_target

call_endpoint = celery_task(http_target.SPEC)
