"""`manage.py create_tenant SLUG`: a new tenant."""

from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError

from scheduler.errors import ValidationFailed
from tenants.operations import Actor, create_tenant


class Command(BaseCommand):
    help = "Create a tenant: the owner of schedules, members and API keys."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug", help="its short name, as in 'acme'")
        parser.add_argument("--name", default="", help="how people call it; the slug by default")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            tenant = create_tenant(
                options["slug"], name=options["name"], actor=Actor(name="manage.py create_tenant")
            )
        except ValidationFailed as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"Tenant {tenant.slug} ({tenant.id}) is ready.")
