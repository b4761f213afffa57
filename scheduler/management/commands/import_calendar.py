"""`manage.py import_calendar NAME FILE.ics`: the days on which schedules of a tenant may rest."""

from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management import BaseCommand, CommandError

from scheduler import operations
from scheduler.core import ics
from scheduler.core.reading import Refusal
from scheduler.errors import ValidationFailed
from scheduler.management.tenants import tenant_named
from scheduler.orm import database_time
from tenants.operations import Actor

ACTOR: Final = Actor(name="manage.py import_calendar")
_AHEAD: Final = timedelta(days=3653)


class Command(BaseCommand):
    help = (
        "Make or replace a tenant's calendar from an iCalendar file, for `exclusions`. Schedules that name it"
        " get a new revision; recurring events are followed ten years ahead."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="how `exclusions` name the calendar")
        parser.add_argument("file", type=Path, help="an .ics file")
        parser.add_argument("--tenant", help="slug of the owner; may be left out while there is only one")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant, until = tenant_named(options["tenant"]), (database_time() + _AHEAD).date()
        try:
            days = ics.days_of(options["file"].read_text(encoding="utf-8"), until=until)
            changes = operations.put_calendar(tenant, options["name"], days, actor=ACTOR)
        except (OSError, UnicodeDecodeError, Refusal, ValidationFailed) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{options['name']}: {len(days)} entries")
        for change in changes:
            self.stdout.write(f"schedule {change.name} {change.action}")
