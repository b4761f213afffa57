"""`manage.py retime --plan | --apply`: after an update of the zone data."""

from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand

from scheduler import retime
from scheduler.retime import Retiming


class Command(BaseCommand):
    help = (
        "What an update of the zone data moves: --plan lists it, --apply moves it. The past stays as it is."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        chosen = parser.add_mutually_exclusive_group(required=True)
        chosen.add_argument("--plan", action="store_true", help="list what would move; change nothing")
        chosen.add_argument("--apply", action="store_true", help="move it")

    def handle(self, *args: Any, **options: Any) -> None:
        moves = retime.apply() if options["apply"] else retime.plan()
        for move in moves:
            self.stdout.write(_line(move))
        self.stdout.write(f"{len(moves)} schedules {'moved' if options['apply'] else 'would move'}.")


def _line(move: Retiming) -> str:
    after = f"{move.after:%Y-%m-%d %H:%M:%S}" if move.after else "never"
    tenant = move.schedule.tenant.slug
    return f"{tenant}/{move.schedule.name} {move.zone} {move.before:%Y-%m-%d %H:%M:%S} -> {after} UTC"
