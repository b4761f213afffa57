"""Put the credentials of all HTTP targets under the first key of FENCEPOST_SECRETS_KEY."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler import targets
from scheduler.credentials import Unreadable


class Command(BaseCommand):
    help = __doc__ or ""

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.stdout.write(f"{targets.reseal()} targets are sealed by the first key now")
        except Unreadable as error:
            raise CommandError(f"nothing was changed: {error}") from None
