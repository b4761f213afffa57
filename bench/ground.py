"""What a bench stands on: a database and a vhost of its own, schedules by the thousand, a raw publisher."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import amqp
import psycopg
from kombu.utils.url import parse_url
from psycopg.types.json import Jsonb

from scheduler.core.identity import shard_of
from scheduler.project import embedded
from scheduler.store.statements import Connection
from tests.support.machine import rabbitmq_url, rabbitmq_usable
from tests.support.processes import REPOSITORY, Launcher, product_environ
from tests.support.servers import embedded_postgres, fresh_database, fresh_vhost, migrate

DURABLE = {"max_connections": "200"}  # fsync and synchronous_commit on, as shipped
BLOCK = 500
QUORUM = {"x-queue-type": "quorum"}


@dataclass(frozen=True, kw_only=True)
class Ground:
    folder: Path
    connection: Connection
    broker_url: str
    launch: Launcher


@contextmanager
def ground(**environ: str) -> Iterator[Ground]:
    """Servers as a deployment would have them. `environ`: more for the processes that are started.

    FENCEPOST_TEST_DATABASE_URL names a Postgres server, else the wheel's is started.
    """
    if not rabbitmq_usable():
        raise SystemExit(f"bench.spine needs RabbitMQ at {rabbitmq_url()} and rabbitmqctl")
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root, the server runs under another account
        with _server(folder) as server, fresh_database(server) as database_url, fresh_vhost() as vhost:
            migrate(database_url)
            broker_url = f"{rabbitmq_url().rstrip('/')}/{vhost}"
            values = _environ(folder, database_url, broker_url)
            launch = Launcher({**values, **environ, "BENCH_BROKER_URL": broker_url}, folder)
            with psycopg.connect(database_url, autocommit=True) as connection:
                try:
                    yield Ground(folder=folder, connection=connection, broker_url=broker_url, launch=launch)
                finally:
                    launch.end_all()


@contextmanager
def database_ground() -> Iterator[str]:
    """The database alone; its URL."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with _server(folder) as server, fresh_database(server) as database_url:
            migrate(database_url)
            yield database_url


def circumstances(connection: Connection) -> dict[str, Any]:
    """What a figure depends on beside the product."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "postgres": connection.info.server_version // 10000,
    }


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    url = os.environ.get("FENCEPOST_TEST_DATABASE_URL")
    if url:
        yield url
        return
    embedded.settle(folder)
    with embedded_postgres(folder, DURABLE) as url:
        yield url


def _environ(folder: Path, database_url: str, broker_url: str) -> dict[str, str]:
    return product_environ(
        DATABASE_URL=database_url,
        BROKER_URL=broker_url,
        SECRET_KEY="bench",
        ALLOWED_HOSTS="localhost",
        FENCEPOST_HOME=str(folder / "home"),
        FENCEPOST_JOBS="bench.jobs",
    )


# Schedules --------------------------------------------------------------------------------------


def make_schedules(connection: Connection, count: int, *, every_s: int, anchor: datetime) -> list[UUID]:
    """`count` schedules of `bench.noop`, first due at `anchor + every_s`. Straight into the tables."""
    now = anchor - timedelta(seconds=1)
    tenant, target = uuid4(), uuid4()
    ids = [uuid4() for _ in range(count)]
    trigger = {"interval": {"every_s": every_s, "anchor": anchor.isoformat()}}
    parameters = {
        "tenant": tenant,
        "target": target,
        "slug": tenant.hex,
        "ids": ids,
        "shards": [shard_of(schedule_id) for schedule_id in ids],
        "trigger": Jsonb(trigger),
        "first": anchor + timedelta(seconds=every_s),
        "now": now,
    }
    for statement in _DEFINITIONS:
        connection.execute(statement, parameters)
    return ids


_DEFINITIONS = (
    b"INSERT INTO tenant (id, slug, name, payload_max_bytes, max_schedules, created_at)"
    b" VALUES (%(tenant)s, %(slug)s, 'Bench', 65536, 1000000, %(now)s)",
    b"INSERT INTO target (id, name, kind, side_effects, parameters, description, everyone, enabled,"
    b"                    created_at)"
    b" VALUES (%(target)s, 'bench.noop', 'job', 'idempotent', '{}', '', true, true, %(now)s)"
    b" ON CONFLICT (name) WHERE owner_id IS NULL DO NOTHING",
    b"INSERT INTO schedule (id, tenant_id, name, state, shard, revision, next_due_at, state_note, fault,"
    b"                      created_at, updated_at)"
    b" SELECT id, %(tenant)s, id::text, 'active', shard, 1, %(first)s, '', '', %(now)s, %(now)s"
    b" FROM unnest(%(ids)s::uuid[], %(shards)s::int[]) AS s(id, shard)",
    # A round of a bench may come late; what it measures is not the catch-up.
    b"INSERT INTO schedule_revision (schedule_id, number, target_id, target_name, payload, trigger,"
    b"    exclusions, on_excluded, calendars, flexible_window_s, mode, catch_up, catch_up_limit,"
    b"    catch_up_after_s, overlap, buffer_limit, retry, timeout_s, cancel_grace_s, late_after_s, priority,"
    b"    tags, description, created_at, created_by, effective_from)"
    b" SELECT id, 1, (SELECT id FROM target WHERE name = 'bench.noop'), 'bench.noop', '{}', %(trigger)s,"
    b"    '[]', 'skip', '{}', 0, 'fixed_rate', 'run_latest_only', 100, 86400, 'allow', 1000,"
    b"    '{\"max_attempts\": 5}', 300, 30, 30, 'normal', '[]', '',"
    b"    %(now)s, 'bench', %(now)s"
    b" FROM unnest(%(ids)s::uuid[]) AS s(id)",
)


# Broker -----------------------------------------------------------------------------------------


class RawPublisher:
    """py-amqp with pipelined confirms and nothing else: messages in blocks, a block's confirms together."""

    def __init__(self, broker_url: str) -> None:
        parts = parse_url(broker_url)
        self._connection = amqp.Connection(
            host=f"{parts['hostname']}:{parts['port'] or 5672}",
            userid=parts["userid"] or "guest",
            password=parts["password"] or "guest",
            virtual_host=parts["virtual_host"],
        )
        self._connection.connect()
        self._channel = _confirming_channel(self._connection)
        self._channel.events["basic_ack"].add(self._acked)
        self._last_tag = 0
        self._unconfirmed: set[int] = set()

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> None:
        self._channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)

    def purge(self, queue: str) -> None:
        self._channel.queue_purge(queue)

    def publish(self, queue: str, task: str, count: int) -> None:
        """`count` messages that Celery would understand; returns when all are confirmed."""
        for begin in range(0, count, BLOCK):
            size = min(BLOCK, count - begin)
            for _ in range(size):
                self._last_tag += 1
                self._unconfirmed.add(self._last_tag)
                self._channel._basic_publish(_task_message(task), "", queue, mandatory=True)
            while self._unconfirmed:
                self._connection.drain_events(timeout=10)

    def close(self) -> None:
        self._connection.close()

    def _acked(self, tag: int, multiple: bool) -> None:
        self._unconfirmed -= {known for known in self._unconfirmed if known <= tag} if multiple else {tag}


def _confirming_channel(connection: amqp.Connection) -> Any:
    """Any: amqp's stubs know neither `events` nor `_basic_publish`."""
    channel = connection.channel()
    channel.confirm_select()
    return channel


def _task_message(task: str) -> amqp.Message:
    task_id = str(uuid4())
    headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
    }
    more = {"retries": 0, "timelimit": [None, None], "eta": None, "expires": None, "ignore_result": True}
    return amqp.Message(
        json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        correlation_id=task_id,
        application_headers={**headers, **more, "argsrepr": "()", "kwargsrepr": "{}"},
    )
