"""Every page in a browser: nothing breaks the policy or is cut off, nothing needs a mouse or a script."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect
from pytest_django.live_server_helper import LiveServer

from scheduler.core.states import State
from scheduler.models import Attempt, Occurrence, Schedule
from tests.pages.conftest import sign_in
from tests.support.scene import Scene, make_run, make_scene, make_schedule

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]

LONG = "a-name-that-somebody-made-by-joining-many-words-with-hyphens-until-it-was-long " * 2


@pytest.fixture
def scene(transactional_db: None) -> Iterator[Scene]:
    yield make_scene()
    Attempt.objects.all().delete()  # the ledger's tables are not Django's own: its flush leaves them alone
    Occurrence.objects.all().delete()


def pages_of(scene: Scene) -> list[str]:
    schedule = make_schedule(scene.acme, LONG.strip(), description=LONG, payload={"kind": "x" * 200})
    error = {"type": "ValueError", "message": "y" * 300, "traceback": "z " * 300}
    runs = [make_run(schedule, ago=timedelta(minutes=number)) for number in range(2, 35)]
    failed = make_run(schedule, State.DEAD_LETTERED, outcomes=("lost", "failed"), attempt_error=error)
    running = make_run(schedule, State.RUNNING, outcomes=(None,), progress={"percent": 5, "note": "w" * 200})
    return [
        "/", "/runs", "/schedules/new", f"/schedules/{schedule.id}", f"/runs?schedule={schedule.id}",
        *(f"/runs/{run.id}" for run in (runs[0], failed, running)), "/no-such-page",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_breaks_the_policy_or_scrolls_sideways(
    width: int, browser: Browser, live_server: LiveServer, scene: Scene
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844})
    sign_in(context, live_server.url)
    page, complaints = _watched(context)
    for path in pages_of(scene):
        page.goto(live_server.url + path)
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert not complaints
    context.close()


def test_the_console_works_under_its_policy(
    browser: Browser, live_server: LiveServer, scene: Scene, django_user_model: type
) -> None:
    django_user_model.objects.filter(pk=scene.alice.pk).update(is_staff=True, is_superuser=True)
    schedule = make_schedule(scene.acme)
    context = browser.new_context()
    sign_in(context, live_server.url)
    page, complaints = _watched(context)
    for path in (
        "",
        "scheduler/schedule/",
        "scheduler/occurrence/",
        f"scheduler/schedule/{schedule.id}/change/",
    ):
        page.goto(f"{live_server.url}/admin/{path}")
        expect(page.get_by_role("link", name="Schedules").first).to_be_visible()
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Pause, nightly-report: done.")).to_be_visible()
    assert not complaints
    context.close()


def test_a_schedule_is_made_and_run_without_javascript(
    browser: Browser, live_server: LiveServer, scene: Scene
) -> None:
    context = browser.new_context(java_script_enabled=False)
    sign_in(context, live_server.url)
    page = context.new_page()
    page.goto(f"{live_server.url}/schedules/new")
    page.get_by_label("Name").fill("without-scripts")
    page.get_by_label("At a fixed interval").check()
    page.get_by_label("Every").fill("2")
    page.get_by_label("Unit").select_option("hours")
    expect(page.get_by_label("Cron expression")).to_be_hidden()
    page.get_by_text("Timing in detail").click()
    expect(page.get_by_label("More expressions")).to_be_hidden()  # of cron, too
    page.get_by_label("Days of rest").fill("2040-12-25")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Days of rest")).to_have_value("2040-12-25")
    expect(page.locator("#preview")).to_contain_text("Every 2 hours")
    expect(page.get_by_label("Name")).to_have_value("without-scripts")
    assert not Schedule.objects.exists()
    page.get_by_role("button", name="Create schedule").click()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("heading", name="Run of without-scripts")).to_be_visible()
    page.get_by_role("button", name="Cancel this run").click()
    expect(page.locator("#live .state").first).to_have_text("Cancelled")
    page.locator(".menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()


def test_errors_appear_and_vanish_at_the_field_while_typing(
    browser: Browser, live_server: LiveServer, scene: Scene
) -> None:
    context = browser.new_context()
    sign_in(context, live_server.url)
    page, complaints = _watched(context)
    page.goto(f"{live_server.url}/schedules/new")
    zone = page.get_by_label("Time zone")
    zone.fill("Europe/Berln")
    expect(page.locator("#id_timezone_errors")).to_contain_text("Did you mean 'Europe/Berlin'?")
    expect(zone).to_be_focused()
    zone.fill("Europe/Berlin")
    expect(page.locator("#id_timezone_errors")).to_be_empty()
    expect(page.locator("#preview li")).to_have_count(10)
    assert not complaints
    context.close()


def test_a_run_refreshes_itself_until_it_is_over(
    browser: Browser, live_server: LiveServer, scene: Scene
) -> None:
    run = make_run(make_schedule(scene.acme), State.RUNNING, outcomes=(None,))
    context = browser.new_context()
    sign_in(context, live_server.url)
    page, complaints = _watched(context)
    page.goto(f"{live_server.url}/runs/{run.id}")
    expect(page.locator("#live .state").first).to_have_text("Running")
    Occurrence.objects.filter(due_at=run.due_at, id=run.id).update(
        state=State.SUCCEEDED, finished_at=run.due_at
    )
    expect(page.locator("#live .state").first).to_have_text("Succeeded", timeout=15_000)
    expect(page.locator("#run-status")).to_have_text("Succeeded")
    expect(page.get_by_role("button", name="Cancel this run")).to_have_count(0)
    assert page.locator("#live").get_attribute("hx-get") is None
    assert not complaints
    context.close()


def test_the_keyboard_reaches_everything(browser: Browser, live_server: LiveServer, scene: Scene) -> None:
    make_schedule(scene.acme)
    context = browser.new_context()
    sign_in(context, live_server.url)
    page = context.new_page()
    page.goto(live_server.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.locator(".menu summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Sign out")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    context.close()


def _watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page, and whatever its console has complained about; statuses such as 404 are no complaint."""
    page = context.new_page()
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, complaints
