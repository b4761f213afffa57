"""`manage.py apply [FILE]`: bring targets in line with the code, and schedules with a file kept in git."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

import yaml
from django.core.management import BaseCommand, CommandError
from django.db import transaction

from scheduler import declarations, existing_tasks, operations
from scheduler.errors import Conflict, ValidationFailed
from scheduler.management.tenants import tenant_named
from scheduler.operations import AppliedChange
from scheduler.worker import registry
from tenants.operations import Actor

ACTOR: Final = Actor(name="manage.py apply")

_SIGNS: Final = {"created": "+", "edited": "~", "unchanged": "=", "cancelled": "-"}


class Command(BaseCommand):
    help = (
        "Register the jobs that the code declares as targets, and bring a tenant's schedules in line with"
        " FILE, by name, all or nothing. Without FILE, the targets alone."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, nargs="?", help="YAML or JSON with a list named 'schedules'")
        parser.add_argument("--tenant", help="slug of the owner; may be left out while there is only one")
        parser.add_argument("--dry-run", action="store_true", help="show what would change, change nothing")
        parser.add_argument(
            "--prune", action="store_true", help="cancel what an earlier apply made and FILE no longer names"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["file"] is None and options["prune"]:
            raise CommandError("--prune needs the FILE that says what to keep.")
        _load_declarations()
        try:
            with transaction.atomic():  # targets first: the schedules name them, in a dry run too
                self._tell("target", operations.sync_targets(registry.jobs(), actor=ACTOR))
                changes = self._schedules(options) if options["file"] else []
                transaction.set_rollback(options["dry_run"])
        except (ValidationFailed, Conflict) as error:
            raise CommandError(_listed(error)) from None
        self._tell("schedule", changes)

    def _schedules(self, options: dict[str, Any]) -> list[AppliedChange]:
        return operations.apply_schedules(
            tenant_named(options["tenant"]),
            _drafts_in(options["file"]),
            dry_run=options["dry_run"],
            prune=options["prune"],
            actor=ACTOR,
        )

    def _tell(self, what: str, changes: list[AppliedChange]) -> None:
        for change in changes:
            self.stdout.write(f"{_SIGNS[change.action]} {what} {change.name} {change.action}")
            for field in change.changes if change.action == "edited" else ():
                self.stdout.write(
                    f"    {field.field}: {json.dumps(field.before)} -> {json.dumps(field.after)}"
                )


def _load_declarations() -> None:
    try:
        declarations.load()
    except (existing_tasks.UnknownTask, TypeError) as error:
        raise CommandError(str(error)) from None


def _drafts_in(path: Path) -> list[Any]:
    """The list under `schedules`. YAML is a superset of JSON, so one reader serves both."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    found = document.get("schedules") if isinstance(document, dict) else None
    if not isinstance(found, list) or set(document) != {"schedules"}:
        raise CommandError(f"{path}: expected one list named 'schedules'.")
    for index, draft in enumerate(found):
        if not isinstance(draft, dict) or not all(isinstance(name, str) for name in draft):
            raise CommandError(f"{path}: schedules.{index}: expected named fields.")
    return found


class _PlainLoader(yaml.SafeLoader):
    """Leaves times as the texts that the API takes, where YAML would make dates of them."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _listed(error: ValidationFailed | Conflict) -> str:
    if isinstance(error, Conflict):
        return str(error)
    return "Nothing was changed:\n" + "\n".join(f"  {fault.field}: {fault.detail}" for fault in error.errors)
