"""`manage.py create_api_key TENANT --role ROLE`: a key for programs, shown once."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management import BaseCommand, CommandError

from scheduler.orm import database_time
from tenants.models import Role, Tenant
from tenants.operations import Actor, IssuedKey, create_api_key


class Command(BaseCommand):
    help = "Create an API key for a tenant. Its text is shown once and stored nowhere."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("--role", required=True, choices=Role.values, help="what the key may do")
        parser.add_argument("--name", default="", help="what it is for; the role by default")
        parser.add_argument("--days", type=int, help="how long it is valid; for ever by default")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            raise CommandError(f"There is no tenant '{options['tenant']}'.")
        days = options["days"]
        issued = create_api_key(
            tenant,
            name=options["name"] or options["role"],
            role=options["role"],
            expires_at=database_time() + timedelta(days=days) if days else None,
            actor=Actor(name="manage.py create_api_key"),
        )
        self.stdout.write(_as_json(issued) if options["json"] else issued.text)


def _as_json(issued: IssuedKey) -> str:
    key = issued.key
    return json.dumps(
        {
            "api_key": issued.text,
            "id": str(key.id),
            "tenant": key.tenant.slug,
            "role": key.role,
            "prefix": key.prefix,
            "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        }
    )
