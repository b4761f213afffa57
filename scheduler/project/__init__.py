"""The composition root. Every process of an installation imports it first."""

from scheduler.project.supervisor import watch_parent

watch_parent()
