"""Everything on one machine in one process tree, with nothing to install or configure first."""

import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connections, transaction

from scheduler.models import Schedule
from scheduler.orm import database_time
from scheduler.project import embedded
from scheduler.project.supervisor import Program, Supervisor
from tenants import keys
from tenants.models import Membership, Role, Tenant
from tenants.operations import Actor, create_api_key, create_tenant, set_membership

TENANT = "demo"
LOGIN = "demo@example.com"
ADMIN = "admin@example.com"
SCHEDULES = "examples/schedules.yaml"
THREADS = "16"  # Celery's default is one per processor: too few for jobs that mostly wait
ACTOR = Actor(name="manage.py up")


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What the demo's people and programs sign in with; kept in ``credentials.json``."""

    password: str
    admin_password: str
    api_key: str


class Command(BaseCommand):
    help = (
        "Start everything: web, two ticks, relay, sweep and a worker, with an embedded Postgres and broker "
        "unless DATABASE_URL and BROKER_URL are set. Ctrl-C ends all of it."
    )
    requires_system_checks: list[str] = []  # they ask the database, which is not up yet

    def handle(self, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        home: Path = settings.FENCEPOST.home
        with _only_one(home):
            _refuse_taken_port(settings.FENCEPOST.bind, settings.FENCEPOST.port)
            self._run(home, stop)

    def _run(self, home: Path, stop: threading.Event) -> None:
        logs = home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(environ=os.environ, directory=settings.BASE_DIR, logs=logs, say=self._say)
        (home / "up.json").unlink(missing_ok=True)  # of an `up` that was killed
        try:
            self._start_database(supervisor, home)
            credentials = self._prepare(home)
            if not stop.is_set():
                self._serve(supervisor, _Record(home, credentials, supervisor), stop)
        except embedded.EmbeddedError as error:
            raise CommandError(str(error)) from None
        except OperationalError as error:
            raise CommandError(f"The database of DATABASE_URL cannot be used: {error}") from None
        finally:
            self._say("stopping")
            supervisor.stop()
            (home / "up.json").unlink(missing_ok=True)
        self._say("stopped")

    def _serve(self, supervisor: Supervisor, record: "_Record", stop: threading.Event) -> None:
        supervisor.changed = record.write
        supervisor.start(*programs())
        while not _web_answers() and not stop.wait(0.1):
            supervisor.tend()
        if not stop.is_set():
            self._greet(record.credentials)
        supervisor.run(stop)

    def _start_database(self, supervisor: Supervisor, home: Path) -> None:
        if settings.FENCEPOST.embedded_broker:
            embedded.make_broker_folders(home)
        if not settings.FENCEPOST.embedded_database:
            return
        self._say("starting the embedded Postgres")
        command = embedded.server_command(home)
        supervisor.start(Program(name="postgres", command=command, stage=2, watches_parent=False))
        embedded.wait_until_ready(
            settings.FENCEPOST.database_url,
            alive=lambda: supervisor.running("postgres"),
            log=supervisor.log_of("postgres"),
        )

    def _prepare(self, home: Path) -> Credentials:
        self._say("preparing the database")
        call_command("migrate", interactive=False, verbosity=0)
        call_command("collectstatic", interactive=False, verbosity=0)
        credentials = create_demo(home)
        # Once: what people make of the samples afterwards, deleting them included, is theirs.
        samples = [] if _has_schedules() else [str(settings.BASE_DIR / SCHEDULES), "--tenant", TENANT]
        call_command("apply", *samples, stdout=self.stdout)
        connections.close_all()
        return credentials

    def _greet(self, credentials: Credentials) -> None:
        url = web_url()
        self.stdout.write(
            f"\n  Fencepost is up: {url}\n\n"
            f"    dashboard   {LOGIN}   {credentials.password}\n"
            f"    console     {ADMIN}  {credentials.admin_password}   {url}/admin/\n\n"
            f"    curl -H 'Authorization: Bearer {credentials.api_key}' {url}/api/v1/runs\n\n"
            f"  Logs: {settings.FENCEPOST.home / 'logs'}. Ctrl-C stops everything.\n\n"
        )
        self.stdout.flush()

    def _say(self, line: str) -> None:
        self.stdout.write(f"{datetime.now(UTC):%H:%M:%S} {line}")
        self.stdout.flush()


def programs() -> list[Program]:
    """The process table of one machine."""
    manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    celery = [sys.executable, "-m", "celery", "-A", "scheduler.project", "worker"]
    return [
        Program(name="web", command=[*manage, "web"]),
        Program(name="tick", command=[*manage, "tick"], count=2),
        Program(name="relay", command=[*manage, "relay"]),
        Program(name="sweep", command=[*manage, "sweep"]),
        Program(name="worker", command=[*celery, "--pool", "threads", "--concurrency", THREADS], stage=1),
    ]


def web_url() -> str:
    bind = settings.FENCEPOST.bind
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind, bind)
    return f"http://{host}:{settings.FENCEPOST.port}"


def _web_answers() -> bool:
    parts = urlsplit(web_url())
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True


def _has_schedules() -> bool:
    """A deleted schedule keeps its row."""
    return Schedule.objects.filter(tenant__slug=TENANT).exists()


def create_demo(home: Path) -> Credentials:
    """Make the demo tenant, its logins and its key, or bring them back to what the file says."""
    kept = home / "credentials.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    with transaction.atomic():
        tenant = Tenant.objects.filter(slug=TENANT).first() or create_tenant(TENANT, name="Demo", actor=ACTOR)
        credentials = Credentials(
            password=known.get("password") or secrets.token_urlsafe(12),
            admin_password=known.get("admin_password") or secrets.token_urlsafe(12),
            api_key=_working_key(tenant, known.get("api_key", "")),
        )
        _person(ADMIN, credentials.admin_password, staff=True)
        member = _person(LOGIN, credentials.password, staff=False)
        if not Membership.objects.filter(tenant=tenant, user=member).exists():
            set_membership(tenant, member, Role.ADMIN, actor=ACTOR)
    write_private(kept, vars(credentials))
    return credentials


def _working_key(tenant: Tenant, kept: str) -> str:
    """The kept key if this database knows it: the file may be older than the database, or the reverse."""
    key = keys.authenticate(kept, now=database_time())
    if key is not None and key.tenant == tenant:
        return kept
    return create_api_key(tenant, name="made by `manage.py up`", role=Role.ADMIN, actor=ACTOR).text


def _person(email: str, password: str, *, staff: bool) -> User:
    user, _ = User.objects.get_or_create(
        username=email, defaults={"email": email, "is_staff": staff, "is_superuser": staff}
    )
    if not user.check_password(password):
        user.set_password(password)
        user.save(update_fields=["password"])
    return user


class _Record:
    """``up.json``: where everything is, for people's scripts. Rewritten when a child is replaced."""

    def __init__(self, home: Path, credentials: Credentials, supervisor: Supervisor) -> None:
        self.path = home / "up.json"
        self.credentials = credentials
        self.supervisor = supervisor
        self.started_at = datetime.now(UTC).isoformat()

    def write(self) -> None:
        pids: dict[str, Any] = {"up": os.getpid(), **self.supervisor.pids()}
        pids.pop("postgres", None)
        fencepost = settings.FENCEPOST
        write_private(
            self.path,
            {
                "url": web_url(),
                "tenant": TENANT,
                "login": {"email": LOGIN, "password": self.credentials.password},
                "admin": {"email": ADMIN, "password": self.credentials.admin_password},
                "api_key": self.credentials.api_key,
                "database_url": fencepost.database_url,
                "broker_url": fencepost.broker_url,
                "pids": pids,
                "started_at": self.started_at,
            },
        )


def write_private(path: Path, content: dict[str, Any]) -> None:
    """Replace ``path`` in one step by a file that only its owner may read."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Hold the home folder's lock. The kernel frees it however we end."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(
                f"Another `up` (pid {lock.read().strip()}) runs in {home}. "
                f"Stop it, or set FENCEPOST_HOME and PORT for a second one."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _refuse_taken_port(bind: str, port: int) -> None:
    """Asked before anything is started; `web` itself would only be restarted again and again."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CommandError(f"Cannot listen on BIND={bind}, PORT={port}: {error.strerror}.") from None
            raise CommandError(f"PORT={port} on {bind} is taken. Set PORT to a free one.") from None
