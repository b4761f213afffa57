"""The admin console: what the platform's operators see of all tenants' schedules, runs and targets."""

from django.contrib import admin

from scheduler.admin import runs, schedules, targets

__all__ = ["runs", "schedules", "targets"]

admin.site.index_title = "All tenants"
