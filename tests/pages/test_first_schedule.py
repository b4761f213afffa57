"""A tenant's first schedule, in a browser, on real servers with every process running."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.conftest import Site, sign_in

BERLIN = ZoneInfo("Europe/Berlin")
RUN_TAKES_AT_MOST_MS = 60_000


@pytest.mark.chromium
def test_create_read_the_instants_run_now_see_it_succeed_pause(
    browser: Browser, broker_url: str, site: Site
) -> None:
    for name in ("tick", "relay", "sweep", "worker"):
        site.launch(name)
    context = browser.new_context()
    sign_in(context, site.url)
    page = context.new_page()
    page.goto(site.url)

    _fill_in(page)
    before = datetime.now(UTC)
    expect(page.locator("#preview li")).to_have_count(10)
    expect(page.locator("#preview")).to_contain_text("At 09:00, Monday through Friday")
    expect(page.locator("#preview")).to_contain_text("CE")  # CET or CEST: Berlin's, no longer UTC
    assert _instants(page, "#preview") == weekdays_at_nine_in_berlin(before, 10)

    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_role("heading", name="morning-report")).to_be_visible()
    assert _instants(page, ".instants") == weekdays_at_nine_in_berlin(before, 5)

    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("heading", name="Run of morning-report")).to_be_visible()
    expect(page.locator("#live .state").first).to_have_text("Succeeded", timeout=RUN_TAKES_AT_MOST_MS)
    expect(page.locator(".timeline")).to_contain_text("Attempt 1: succeeded")
    expect(page.get_by_role("button", name="Cancel this run")).to_have_count(0)

    page.get_by_role("link", name="morning-report").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".title-line .state")).to_have_text("Paused")
    expect(page.locator(".instants")).to_have_count(0)
    context.close()


def _fill_in(page: Page) -> None:
    page.get_by_role("link", name="Make the first one").click()
    page.get_by_label("Name").fill("morning-report")
    page.get_by_label("Target").select_option("demo.record")
    page.get_by_label("Payload").fill('{"seconds": 0.1}')
    page.get_by_label("Cron expression").fill("0 9 * * 1-5")
    page.get_by_label("Time zone").fill("Europe/Berlin")


def _instants(page: Page, within: str) -> list[datetime]:
    texts = page.locator(f"{within} time").evaluate_all("times => times.map(time => time.dateTime)")
    return [datetime.fromisoformat(text) for text in texts]


def weekdays_at_nine_in_berlin(after: datetime, count: int) -> list[datetime]:
    """Worked out from the calendar alone."""
    days = (after.astimezone(BERLIN).date() + timedelta(days=number) for number in range(3 * count))
    mornings = (datetime(day.year, day.month, day.day, 9, tzinfo=BERLIN) for day in days if day.weekday() < 5)
    return [morning.astimezone(UTC) for morning in mornings if morning > after][:count]
