"""Serves the API, the dashboard and the admin console with waitress."""

import errno
import logging
import signal
from argparse import ArgumentParser
from types import FrameType
from typing import Any

import waitress
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.core.wsgi import get_wsgi_application

MAX_BODY_BYTES = (
    8 * 1024 * 1024
)  # the API says no at 1 MiB, in its own words; beyond this nothing is even kept

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Serve the web surfaces on BIND:PORT until SIGTERM; requests that are being answered may end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--threads", type=int, default=8, help="requests answered at once (default 8)")

    def handle(self, *, threads: int, **options: Any) -> None:
        bind, port = settings.FENCEPOST.bind, settings.FENCEPOST.port
        try:
            server = waitress.create_server(
                get_wsgi_application(),
                host=bind,
                port=port,
                threads=threads,
                ident=None,
                max_request_body_size=MAX_BODY_BYTES,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise CommandError(f"{bind}:{port} is taken. Set PORT to a free one.") from None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
        logger.info("ready: web listens on http://%s:%s", bind, port)
        server.run()


def _leave(number: int, frame: FrameType | None) -> None:
    """waitress ends its loop on SystemExit, after the requests in its threads."""
    raise SystemExit(0)
