"""What an application's code declares: its jobs, and the existing tasks that are to be targets."""

from importlib import import_module

from celery import current_app
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from scheduler import existing_tasks


def load() -> None:
    """Fill the registry as a worker does: the modules that FENCEPOST_JOBS names, `jobs.py` of every installed
    app, and then the tasks that FENCEPOST_TASKS names. Raises UnknownTask, or TypeError, for one of these
    that cannot be a target.
    """
    autodiscover_modules("jobs")
    for name in settings.FENCEPOST.jobs:
        import_module(name)
    existing_tasks.register(current_app, settings.FENCEPOST.tasks)
