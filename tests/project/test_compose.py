"""docker-compose.yml says how the stack is run: so each of its commands is run, on real servers."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.support.processes import REPOSITORY, Launcher, Running
from tests.support.servers import fresh_database
from tests.support.wait import wait_until

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
CONNECTED = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()
"""
LIVE_SESSIONS = "SELECT count(*) FROM session WHERE expires_at > clock_timestamp()"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?([^}]*))?\}")


class MissingVariable(Exception):
    pass


def interpolate(text: str, values: dict[str, str]) -> str:
    """What compose does with ``${NAME:-default}`` and ``${NAME:?message}``."""

    def replace(match: re.Match[str]) -> str:
        name, default, message = match.groups()
        if name in values:
            return values[name]
        if message is not None:
            raise MissingVariable(f"{name} {message}")
        return str(default)

    return VARIABLE.sub(replace, text)


def environment(service: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    return {name: interpolate(str(text), values) for name, text in service["environment"].items()}


def test_every_process_of_the_product_is_there() -> None:
    assert set(OURS) == {"migrate", "web", "tick", "relay", "sweep", "worker"}
    assert OURS["tick"]["deploy"]["replicas"] == 2


def test_servers_are_of_supported_versions_and_report_their_health() -> None:
    assert int(SERVICES["postgres"]["image"].split(":")[1].split("-")[0]) >= 16
    assert SERVICES["rabbitmq"]["image"].startswith("rabbitmq:3.13")
    assert all("healthcheck" in SERVICES[name] for name in ("postgres", "rabbitmq", "web"))


def test_nothing_starts_before_the_migration_has_succeeded() -> None:
    assert OURS["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in OURS.keys() - {"migrate"}:
        assert OURS[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_the_api_does_not_wait_for_the_broker() -> None:
    assert "rabbitmq" not in OURS["web"]["depends_on"]


def test_only_the_web_is_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"web"}
    assert all(port.startswith("127.0.0.1:") for port in published["web"])


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_secret_key_is_required_with_a_sentence(name: str) -> None:
    with pytest.raises(MissingVariable, match="SECRET_KEY is required, a long random text"):
        environment(OURS[name], {})


def test_passwords_agree_between_servers_and_clients() -> None:
    values = {"SECRET_KEY": "s", "POSTGRES_PASSWORD": "first", "RABBITMQ_PASSWORD": "second"}
    ours = environment(OURS["worker"], values)
    assert ":first@postgres:5432/" in ours["DATABASE_URL"]
    assert ":second@rabbitmq:5672/" in ours["BROKER_URL"]
    assert environment(SERVICES["postgres"], values)["POSTGRES_PASSWORD"] == "first"
    assert environment(SERVICES["rabbitmq"], values)["RABBITMQ_DEFAULT_PASS"] == "second"


Start = Callable[..., Running]


@pytest.fixture
def start(launch: Launcher, broker_url: str, module_database: str) -> Start:
    """Start a service's own command with its own variables, the addresses of servers replaced."""

    def start(name: str, **replaced: str) -> Running:
        given = environment(OURS[name], {"SECRET_KEY": "compose"})
        given |= {"DATABASE_URL": module_database, "BROKER_URL": broker_url, **replaced}
        program, *arguments = OURS[name]["command"]
        return launch.start(name, [str(Path(sys.executable).with_name(program)), *arguments], env=given)

    return start


def test_migrate_makes_the_tables_and_ends(start: Start, postgres_url: str) -> None:
    with fresh_database(postgres_url) as empty:
        migration = start("migrate", DATABASE_URL=empty)
        assert migration.process.wait(60) == 0, migration.output()
        with psycopg.connect(empty) as connection:
            assert connection.execute("SELECT to_regclass('occurrence') IS NOT NULL").fetchone() == (True,)


def test_web_passes_its_own_health_check(start: Start, free_port: int) -> None:
    web = start("web", BIND="127.0.0.1", PORT=str(free_port))
    check = [part.replace("127.0.0.1:8000", f"127.0.0.1:{free_port}") for part in _health_check("web")]

    def healthy() -> bool:
        assert web.running(), web.output()
        hosts = {"ALLOWED_HOSTS": environment(OURS["web"], {"SECRET_KEY": "s"})["ALLOWED_HOSTS"]}
        return subprocess.run(check, env={**os.environ, **hosts}, capture_output=True).returncode == 0

    wait_until(healthy, 30)
    assert web.end() == 0


@pytest.mark.parametrize("name", ["tick", "relay", "sweep"])
def test_a_loop_is_at_work_on_the_database(start: Start, module_database: str, name: str) -> None:
    process = start(name)
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
    )
    _await_row(process, module_database, query, [f"fencepost {name}"])
    assert process.end() == 0


def test_the_worker_opens_a_session(start: Start, module_database: str) -> None:
    worker = start("worker")
    _await_row(worker, module_database, LIVE_SESSIONS, [])
    assert worker.end() == 0


def _await_row(process: Running, database: str, query: str, parameters: list[str]) -> None:
    def found() -> bool:
        assert process.running(), process.output()
        with psycopg.connect(database) as connection:
            row = connection.execute(query, parameters).fetchone()
        return row is not None and row[0] > 0

    wait_until(found, 30, message=process.output())


def _health_check(name: str) -> list[str]:
    kind, program, *rest = OURS[name]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    return [sys.executable, *rest]
