"""A browser, and the product behind it as a deployment runs it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.support.machine import chromium_path, find_free_port
from tests.support.processes import Launcher, Running

EMAIL = "alice@example.com"
PASSWORD = "correct horse battery"

# By the product's own shell, so that the account is made by the code of the processes under test.
MAKE_ACCOUNT = f"""
from django.contrib.auth.models import User
from tenants.operations import Actor, create_tenant, set_membership
actor = Actor(name="tests")
user = User.objects.create_user("{EMAIL}", "{EMAIL}", "{PASSWORD}")
set_membership(create_tenant("acme", name="Acme", actor=actor), user, "admin", actor=actor)
"""

NO_SCHEDULES = "schedules: []\n"


@dataclass(frozen=True, kw_only=True)
class Site:
    """The product on a port. `launch` starts more of its processes."""

    url: str
    launch: Launcher


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright keeps an event loop in this thread, in which Django would refuse to work unless told."""
    with sync_playwright() as playwright, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        launched = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture
def site(launch: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A web process with one account and the example jobs as targets."""
    no_schedules = tmp_path_factory.mktemp("apply") / "schedules.yaml"
    no_schedules.write_text(NO_SCHEDULES)
    finish(launch("shell", "--command", MAKE_ACCOUNT))
    finish(launch("collectstatic", "--noinput", "--verbosity", "0"))
    finish(launch("apply", str(no_schedules), "--tenant", "acme"))
    port = find_free_port()
    launch("web", env={"PORT": str(port)}).wait_for("ready")
    return Site(url=f"http://127.0.0.1:{port}", launch=launch)


def finish(command: Running) -> None:
    assert command.process.wait(60) == 0, command.output()


def sign_in(context: BrowserContext, url: str) -> None:
    """Alice, whose password every test's accounts share."""
    page = context.new_page()
    page.goto(f"{url}/login")
    page.get_by_label("E-mail").fill(EMAIL)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Schedules", exact=True).wait_for()
    page.close()
