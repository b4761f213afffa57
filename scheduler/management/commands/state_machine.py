from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduler.testing.state_machine import document


class Command(BaseCommand):
    help = "Write docs/state-machine.md from the table of transitions in scheduler/core/states.py."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        page = settings.BASE_DIR / "docs" / "state-machine.md"
        parser.add_argument("--to", type=Path, default=page, help="the file to write")

    def handle(self, *args: Any, **options: Any) -> None:
        options["to"].write_text(document(), encoding="utf-8")
        self.stdout.write(f"wrote {options['to']}")
