"""Servers, databases and processes for tests, and the rule about what a machine lacks.

Postgres comes from the wheel, started for the run; FENCEPOST_TEST_DATABASE_URL names another server.
Tests marked with what this machine does not have are deselected and counted. Where CI=true, that
fails, and so does any skipped test.
"""

import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.project import embedded
from tests.support.machine import absent, find_free_port, rabbitmq_url
from tests.support.processes import Launcher, installed_environ, product_environ
from tests.support.servers import (
    database_name,
    embedded_postgres,
    fresh_database,
    fresh_vhost,
    migrate,
)

CI = os.environ.get("CI") == "true"
RUN_HOME = Path(tempfile.mkdtemp(prefix="fencepost-tests-"))
SERVER_URL = os.environ.get("FENCEPOST_TEST_DATABASE_URL", "")
DESELECTED: Counter[str] = Counter()


def _configure_environment() -> None:
    """Before Django reads its settings. A developer's own DATABASE_URL must never reach a test."""
    RUN_HOME.chmod(0o755)  # as root, the server runs under another account
    embedded.settle(RUN_HOME)
    kept = {k: v for k, v in os.environ.items() if k.startswith("FENCEPOST_TEST_") or k == "FENCEPOST_CASES"}
    clean = product_environ(
        DJANGO_SETTINGS_MODULE="scheduler.project.settings",
        SECRET_KEY="tests",
        ALLOWED_HOSTS="localhost,127.0.0.1,testserver",
        FENCEPOST_HOME=str(RUN_HOME),
        FENCEPOST_JOBS="examples.jobs",
        DATABASE_URL=SERVER_URL or embedded.database_url(RUN_HOME),
    )
    os.environ.clear()
    os.environ.update(clean | kept)


_configure_environment()


# What this machine has --------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    from django.conf import settings

    settings.STATIC_ROOT = RUN_HOME / "static"  # whitenoise warns of a folder that is not there
    settings.STATIC_ROOT.mkdir()
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.DATABASES["default"]["TEST"] = {"NAME": f"fencepost_test_{secrets.token_hex(6)}"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "vhost" in getattr(item, "fixturenames", ()):
            item.add_marker("rabbitmq")
    lacking = {item: absent({mark.name for mark in item.iter_markers()}) for item in items}
    out = [item for item in items if lacking[item]]
    DESELECTED.update(name for item in out for name in lacking[item])
    if out and CI:
        raise pytest.UsageError(f"CI=true, and this machine lacks what tests need: {dict(DESELECTED)}")
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if not lacking[item]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests.support.orders import TRIED  # needs Django's environment

    for name, count in sorted(TRIED.items()):
        terminalreporter.write_line(f"orders tried: {count:5} by {name}")
    for name, count in sorted(DESELECTED.items()):
        terminalreporter.write_line(f"deselected: {count} tests need {name}, which this machine lacks")


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if CI and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("CI=true: a skipped test is a failure")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    shutil.rmtree(RUN_HOME, ignore_errors=True)


# Postgres ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the server of this run; make databases on it with `fresh_database`."""
    if SERVER_URL:
        yield SERVER_URL
        return
    with embedded_postgres(RUN_HOME) as url:
        yield url


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> Iterator[str]:
    """A migrated database that nobody connects to, since it is what others are copied from."""
    with fresh_database(postgres_url) as url:
        migrate(url)
        yield url


@pytest.fixture
def database(postgres_url: str, template_database: str) -> Iterator[str]:
    """URL of a migrated, empty database for one test."""
    with fresh_database(postgres_url, template=database_name(template_database)) as url:
        yield url


@pytest.fixture(scope="module")
def module_database(postgres_url: str, template_database: str) -> Iterator[str]:
    """URL of a migrated, empty database that the tests of a module share."""
    with fresh_database(postgres_url, template=database_name(template_database)) as url:
        yield url


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_url: str) -> None:
    """pytest-django's hook for this: its own `db` fixtures need the server to be up first."""


# RabbitMQ and processes -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vhost() -> Iterator[str]:
    """Name of a RabbitMQ vhost of this module's own."""
    with fresh_vhost() as name:
        yield name


@pytest.fixture(scope="module")
def broker_url(vhost: str) -> str:
    return f"{rabbitmq_url().rstrip('/')}/{vhost}"


@pytest.fixture
def free_port() -> int:
    return find_free_port()


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """Start product processes: ``launch("tick", "--once", env={...})`` gives a `Running`.

    They use the test's `module_database` or else its `database`, and its `broker_url` when it asks
    for one, else a filesystem broker of its own. All are gone at the end of the test.
    """
    database_fixture = "module_database" if "module_database" in request.fixturenames else "database"
    environ = installed_environ(tmp_path / "home", DATABASE_URL=request.getfixturevalue(database_fixture))
    if "broker_url" in request.fixturenames:
        environ["BROKER_URL"] = request.getfixturevalue("broker_url")
    else:
        embedded.make_broker_folders(tmp_path / "home")
    launcher = Launcher(environ, tmp_path)
    yield launcher
    launcher.end_all()
