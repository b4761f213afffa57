"""`manage.py import_calendar NAME FILE.ics`: the days on which schedules of a tenant may rest."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.core.management import BaseCommand, CommandError

from scheduler.calendars import put_calendar
from scheduler.errors import Conflict, ValidationFailed
from scheduler.management.tenants import tenant_named
from tenants.operations import Actor

ACTOR: Final = Actor(name="manage.py import_calendar")


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
        tenant = tenant_named(options["tenant"])
        try:
            file = options["file"].read_text(encoding="utf-8")
            done = put_calendar(tenant, options["name"], ics=file, actor=ACTOR)
        except (OSError, UnicodeDecodeError, ValidationFailed, Conflict) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{options['name']}: {len(done.calendar.days)} entries")
        for change in done.schedules:
            self.stdout.write(f"schedule {change.name} {change.action}")
