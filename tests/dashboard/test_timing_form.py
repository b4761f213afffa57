"""The folded part of the form: what it fills in, where its errors go, and that it may be left alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from scheduler.calendars import create_calendar
from scheduler.models import Schedule, ScheduleRevision
from tests.dashboard.test_schedule_pages import errors, form
from tests.support.html import Document
from tests.support.scene import ACTOR, Scene

NEW = "/schedules/new"


@pytest.fixture(autouse=True)
def calendars(scene: Scene) -> None:
    create_calendar(scene.acme, "office", days=["2040-12-25"], actor=ACTOR)
    create_calendar(scene.other, "theirs", days=["2040-12-26"], actor=ACTOR)


def stored(scene: Scene) -> ScheduleRevision:
    return ScheduleRevision.objects.get(schedule__tenant=scene.acme)


def test_all_that_the_api_knows_of_time_can_be_filled_in(scene: Scene, alice: Client) -> None:
    filled: dict[str, Any] = {
        "more_crons": "0 18 * * SAT\n\n 30 7 1 * * ",
        "day_match": "both",
        "start_at": "2040-01-01T00:00",
        "end_at": "2040-07-01T00:00",
        "exclusions": "2040-12-24\n2040-12-27 to 2040-12-31",
        "calendars": ["office"],
        "on_excluded": "next_business_day",
        "max_occurrences": "7",
        "flexible_window_s": "120",
        "overlap": "buffer_all",
        "buffer_limit": "5",
        "catch_up": "run_all",
        "catch_up_after_s": "90",
        "catch_up_limit": "10",
        "catch_up_window_s": "3600",
    }
    response = alice.post(NEW, {**form(), **filled})
    assert response.status_code == 302, Document.of(response).texts("ul", class_="errorlist")
    revision = stored(scene)
    assert revision.trigger["cron"]["expressions"] == ["0 9 * * 1-5", "0 18 * * SAT", "30 7 1 * *"]
    assert revision.trigger["cron"]["day_match"] == "both"
    assert (revision.start_at, revision.end_at) == (
        datetime(2039, 12, 31, 23, tzinfo=UTC),  # midnight in Berlin: one hour before it in winter,
        datetime(2040, 6, 30, 22, tzinfo=UTC),  # and two in summer
    )
    assert revision.exclusions == [
        {"date": "2040-12-24"},
        {"from": "2040-12-27", "to": "2040-12-31"},
        {"calendar": "office"},
    ]
    plain = ("on_excluded", "overlap", "catch_up")
    assert [getattr(revision, name) for name in plain] == ["next_business_day", "buffer_all", "run_all"]
    counts = ("max_occurrences", "flexible_window_s", "buffer_limit")
    assert [getattr(revision, name) for name in counts] == [7, 120, 5]
    assert (revision.catch_up_after_s, revision.catch_up_limit, revision.catch_up_window_s) == (90, 10, 3600)


def test_a_delay_from_the_end_of_the_last_run(scene: Scene, alice: Client) -> None:
    alice.post(NEW, form(kind="interval", mode="fixed_delay", start_at="2040-01-01T00:00"))
    revision = stored(scene)
    assert (revision.mode, revision.start_at) == ("fixed_delay", datetime(2040, 1, 1, tzinfo=UTC))


def test_left_alone_it_says_nothing(scene: Scene, alice: Client) -> None:
    """As a browser sends it: empty texts, and the first choice of each list."""
    page = Document.of(alice.get(NEW))
    assert "open" not in page.all("details", class_="more")[0].attributes
    chosen = {"day_match": "classic", "on_excluded": "skip", "mode": "fixed_rate"}
    empty = dict.fromkeys(["more_crons", "start_at", "end_at", "exclusions", "max_occurrences"], "")
    alice.post(NEW, form(**chosen, **empty))
    revision = stored(scene)
    assert revision.trigger == {"cron": {"expressions": ["0 9 * * 1-5"], "timezone": "Europe/Berlin"}}
    assert (revision.exclusions, revision.start_at, revision.max_occurrences) == ([], None, None)
    assert (revision.catch_up_limit, revision.catch_up_after_s, revision.buffer_limit) == (100, 60, 1000)


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"more_crons": "0 18 * * SAT\n61 * * * *"}, "more_crons", "Line 2: "),
        ({"more_crons": "\n".join(["0 1 * * *"] * 10)}, "more_crons", "10"),
        ({"day_match": "neither"}, "day_match", "Select a valid choice."),
        ({"start_at": "soon"}, "start_at", "such as 2026-12-24T09:00"),
        ({"start_at": "2040-01-01T00:00+02:00"}, "start_at", "Leave the offset out"),
        ({"start_at": "2040-01-02T00:00", "end_at": "2040-01-01T00:00"}, "end_at", "before start_at"),
        ({"end_at": "2020-01-01T00:00"}, "end_at", "never fire"),
        ({"exclusions": "2040-01-01\nChristmas and after"}, "exclusions", "Line 2: write"),
        ({"exclusions": "2040-01-01\n2040-02-30"}, "exclusions", "Line 2: "),
        ({"exclusions": "2040-01-02 to 2040-01-01"}, "exclusions", "Line 1: "),
        ({"calendars": "theirs"}, "calendars", "Select a valid choice."),
        ({"max_occurrences": "0"}, "max_occurrences", ""),
        ({"flexible_window_s": "-1"}, "flexible_window_s", ""),
        ({"catch_up_limit": "1001"}, "catch_up_limit", "1000"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_in_the_open(
    changes: dict[str, str], field: str, said: str, scene: Scene, alice: Client
) -> None:
    response = alice.post(NEW, form(**changes))
    document = Document.of(response)
    (shown,) = errors(document, field)
    assert (response.status_code, said.lower() in shown.lower()) == (422, True), shown
    timing, policies = document.all("details", class_="more")
    assert "open" in (policies if field == "catch_up_limit" else timing).attributes
    assert not Schedule.objects.exists()


def test_the_calendars_of_the_tenant_are_offered_and_no_others(scene: Scene, alice: Client) -> None:
    offered = Document.of(alice.get(NEW)).all("input", name="calendars")
    assert [box["value"] for box in offered] == ["office"]


def test_a_preview_rests_and_ends_as_filled_in_and_keeps_what_was_typed(scene: Scene, alice: Client) -> None:
    day = (datetime.now(UTC) + timedelta(days=2)).date()
    rests, end = f"{day}", f"{day + timedelta(days=2)}T00:00"
    filled = form(cron="0 9 * * *", exclusions=rests, end_at=end, preview="1")
    document = Document.of(alice.post(NEW, filled))
    days = [element["datetime"][:10] for element in document.all("time")]
    assert days
    assert max(days) == f"{day + timedelta(days=1)}"
    assert rests not in days
    assert document.texts("textarea", name="exclusions") == [rests]
    assert document.all("input", name="end_at")[0]["value"] == end
    assert "open" in document.all("details", class_="more")[0].attributes


def test_the_live_preview_sets_and_clears_these_errors_too(scene: Scene, alice: Client) -> None:
    for text, is_wrong in (("2040-02-30", True), ("2040-02-28", False)):
        response = alice.post("/schedules/preview", form(exclusions=text), headers={"HX-Request": "true"})
        (holder,) = Document.of(response).all("div", id="id_exclusions_errors")
        assert bool("".join(holder.text).strip()) is is_wrong
