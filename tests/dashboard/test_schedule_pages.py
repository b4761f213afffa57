"""Making, reading and steering schedules, without a line of JavaScript."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.test import Client

from scheduler import operations
from scheduler.core.states import State
from scheduler.jobs import run_now
from scheduler.models import Occurrence, Schedule, ScheduleRevision, ScheduleState
from tests.support.html import Document
from tests.support.scene import ACTOR, Scene, make_run, make_schedule

BERLIN = ZoneInfo("Europe/Berlin")

FORM = {
    "name": "nightly-report",
    "target": "reports.build",
    "kind": "cron",
    "cron": "0 9 * * 1-5",
    "timezone": "Europe/Berlin",
    "every": "15",
    "unit": "minutes",
    "payload": '{"kind": "daily"}',
    "overlap": "skip",
    "catch_up": "run_latest_only",
    "max_attempts": "",
    "timeout_s": "",
    "description": "",
}


def form(**changes: str) -> dict[str, str]:
    return {**FORM, **changes}


def errors(document: Document, field: str) -> list[str]:
    return document.texts("ul", id=f"id_{field}_error")


# Making -----------------------------------------------------------------------------------------


def test_a_cron_schedule_is_stored_as_filled_in(scene: Scene, alice: Client) -> None:
    response = alice.post("/schedules/new", form(max_attempts="3", timeout_s="60", overlap="allow"))
    schedule = Schedule.objects.get(tenant=scene.acme)
    revision = ScheduleRevision.objects.get(schedule=schedule)
    assert response.url == f"/schedules/{schedule.id}"
    assert revision.trigger == {"cron": {"expressions": ["0 9 * * 1-5"], "timezone": "Europe/Berlin"}}
    assert (revision.payload, revision.target_name) == ({"kind": "daily"}, "reports.build")
    assert (revision.retry["max_attempts"], revision.timeout_s, revision.overlap) == (3, 60, "allow")
    assert revision.created_by == "alice@example.com"


def test_an_interval_schedule_counts_its_unit(scene: Scene, alice: Client) -> None:
    alice.post("/schedules/new", form(kind="interval", every="2", unit="hours"))
    revision = ScheduleRevision.objects.get(schedule__tenant=scene.acme)
    assert revision.trigger["interval"]["every_s"] == 7200


def test_what_is_wrong_with_the_other_kind_of_trigger_does_not_matter(scene: Scene, alice: Client) -> None:
    alice.post("/schedules/new", form(name="by-the-clock", every="soon"))
    alice.post("/schedules/new", form(name="by-the-hour", kind="interval", cron="never", timezone="Nowhere"))
    assert Schedule.objects.count() == 2


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"name": ""}, "name", "This field is required."),
        ({"name": "a\x00b"}, "name", "Null characters are not allowed."),
        ({"target": "reports.bild"}, "target", "Select a valid choice."),
        ({"cron": "0 9 * *"}, "cron", "five fields"),
        ({"cron": ""}, "cron", ""),
        ({"cron": "0 0 31 2 *"}, "cron", "never fires"),
        ({"timezone": "Europe/Berln"}, "timezone", "Did you mean 'Europe/Berlin'?"),
        ({"kind": "interval", "every": "0"}, "every", ""),
        ({"kind": "interval", "every": ""}, "every", ""),
        ({"kind": "interval", "every": "soon"}, "every", "Enter a whole number."),
        ({"payload": "{kind: daily}"}, "payload", "not JSON"),
        ({"payload": "[1]"}, "payload", "must be a JSON object"),
        ({"payload": "[" * 100_000}, "payload", "not JSON"),
        ({"payload": '{"kind": 7}'}, "payload", "Kind: "),
        ({"payload": '{"knid": "daily"}'}, "payload", "knid"),
        ({"max_attempts": "0"}, "max_attempts", ""),
        ({"timeout_s": "0"}, "timeout_s", ""),
        ({"deadline_s": "0"}, "deadline_s", ""),
        ({"pause_after": "0"}, "pause_after", ""),
        ({"schedule_to_start_s": "0"}, "schedule_to_start_s", ""),
        ({"heartbeat_timeout_s": "300"}, "heartbeat_timeout_s", ""),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    changes: dict[str, str], field: str, said: str, scene: Scene, alice: Client
) -> None:
    response = alice.post("/schedules/new", form(**changes))
    assert response.status_code == 422
    (shown,) = errors(Document.of(response), field)
    assert said.lower() in shown.lower()
    assert not Schedule.objects.exists()


def test_what_was_typed_comes_back_with_the_errors(scene: Scene, alice: Client) -> None:
    document = Document.of(alice.post("/schedules/new", form(timezone="Mars/Olympus")))
    assert document.all("input", name="timezone")[0]["value"] == "Mars/Olympus"
    assert document.all("input", name="timezone")[0]["aria-invalid"] == "true"
    assert "id_timezone_error" in document.all("input", name="timezone")[0]["aria-describedby"]


def test_a_name_that_is_taken_is_refused(scene: Scene, alice: Client) -> None:
    make_schedule(scene.acme, "nightly-report")
    response = alice.post("/schedules/new", form())
    assert response.status_code == 422
    assert "nightly-report" in Document.of(response).texts("div", class_="panel")[0]
    assert Schedule.objects.count() == 1


def test_the_button_preview_shows_the_instants_and_stores_nothing(scene: Scene, alice: Client) -> None:
    response = alice.post("/schedules/new", form(name="", preview="1"))
    document = Document.of(response)
    assert response.status_code == 200
    assert not errors(document, "name")
    assert len(_instants(document)) == 10
    assert all(instant.astimezone(UTC) > datetime.now(UTC) for instant in _instants(document))
    assert not Schedule.objects.exists()


def test_a_preview_of_what_cannot_be_says_so_at_the_field(scene: Scene, alice: Client) -> None:
    document = Document.of(alice.post("/schedules/new", form(cron="61 * * * *", preview="1")))
    assert errors(document, "cron")
    assert "Correct what is marked" in document.texts("div", id="preview")[0]


def test_the_live_preview_is_a_fragment_that_also_sets_and_clears_errors(scene: Scene, alice: Client) -> None:
    wrong = alice.post("/schedules/preview", form(timezone="Nowhere"), headers={"HX-Request": "true"})
    right = alice.post("/schedules/preview", form(), headers={"HX-Request": "true"})
    assert "<html" not in wrong.content.decode()
    for response, is_wrong in ((wrong, True), (right, False)):
        (holder,) = Document.of(response).all("div", id="id_timezone_errors")
        assert holder["hx-swap-oob"] == "innerHTML"
        assert bool("".join(holder.text).strip()) is is_wrong
    assert "At 09:00, Monday through Friday" in right.content.decode()


def test_clock_changes_are_noted_beside_their_instants(scene: Scene, alice: Client) -> None:
    sundays_in_march = form(cron="30 2 * 3 SUN", preview="1")  # the last of them has no 02:30
    document = Document.of(alice.post("/schedules/new", sundays_in_march))
    assert document.texts("span", class_="note")
    shifted = [instant for instant in _instants(document) if instant.astimezone(BERLIN).minute == 0]
    assert shifted
    assert all(instant.astimezone(BERLIN).hour == 3 for instant in shifted)


# Reading ----------------------------------------------------------------------------------------


def test_the_list_shows_state_last_run_and_next_instant(scene: Scene, alice: Client) -> None:
    first = make_schedule(scene.acme, "first")
    make_run(first, State.FAILED, outcomes=("failed",))
    second = make_schedule(scene.acme, "second")
    operations.pause_schedule(scene.acme, second.id, actor=ACTOR)
    rows = Document.of(alice.get("/")).texts("tr", role="row")[1:]
    assert [row.split()[0] for row in rows] == ["second", "first"]
    assert "Paused" in rows[0]
    assert "None yet" in rows[0]
    assert "Active" in rows[1]
    assert "Failed" in rows[1]
    assert "09:00 CE" in rows[1]


def test_the_list_says_what_failed_and_what_comes_next(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme, "every-minute", trigger={"interval": {"every_s": 60}})
    make_run(schedule, State.DEAD_LETTERED, outcomes=("failed",))
    make_run(schedule, State.FAILED, ago=timedelta(days=2), outcomes=("failed",))
    attention, next_up = Document.of(alice.get("/")).texts("ul", class_="brief")
    assert attention.count("every-minute") == 1
    assert "Dead-lettered" in attention
    assert next_up.startswith("every-minute in ")


def test_the_list_says_what_is_late(scene: Scene, alice: Client) -> None:
    make_run(make_schedule(scene.acme, "on-time"), State.QUEUED, ago=timedelta(seconds=10))
    make_run(make_schedule(scene.acme, "overdue"), State.QUEUED, ago=timedelta(minutes=5))
    rows = Document.of(alice.get("/")).texts("tr", role="row")[1:]
    assert [(row.split()[0], "Late" in row) for row in rows] == [("overdue", True), ("on-time", False)]


def test_a_calm_day_and_an_empty_tenant_say_so(scene: Scene, alice: Client) -> None:
    assert "No schedules yet" in alice.get("/").content.decode()
    make_schedule(scene.acme)
    assert "Nothing failed in the last 24 hours." in alice.get("/").content.decode()


def test_long_lists_have_pages(scene: Scene, alice: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.dashboard.views.schedules.PAGE", 2)
    for number in range(3):
        make_schedule(scene.acme, f"schedule-{number}")
    first, second = (Document.of(alice.get(f"/?page={number}")) for number in (1, 2))
    assert first.texts("a", class_="name") == ["schedule-2", "schedule-1"]
    assert second.texts("a", class_="name") == ["schedule-0"]
    assert (first.texts("a", href="?page=2"), second.texts("a", href="?page=1")) == (["Older"], ["Newer"])


@pytest.mark.parametrize("page", ["0", "-1", "x", "٣", "9" * 30])
def test_a_page_that_cannot_be_is_the_first(page: str, scene: Scene, alice: Client) -> None:
    make_schedule(scene.acme)
    assert "nightly-report" in alice.get("/", {"page": page}).content.decode()


def test_a_list_costs_the_same_queries_however_long(
    scene: Scene, alice: Client, django_assert_max_num_queries: object
) -> None:
    for number in range(12):
        make_run(make_schedule(scene.acme, f"schedule-{number}"))
    with django_assert_max_num_queries(14):
        alice.get("/")


def test_a_schedules_page_shows_its_definition_instants_and_runs(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme, payload={"kind": "daily"}, description="For finance.")
    runs = [make_run(schedule, ago=timedelta(minutes=number)) for number in (1, 2)]
    document = Document.of(alice.get(f"/schedules/{schedule.id}"))
    text = document.texts("main")[0]
    for expected in ("For finance.", "At 09:00, Monday through Friday", "Europe/Berlin", '"kind": "daily"'):
        assert expected in text
    assert len(_instants(document)) == 5
    links = [link["href"] for link in document.all("a") if link["href"].startswith("/runs/")]
    assert links == [f"/runs/{run.id}" for run in (*runs[::-1], *runs)]


# Steering ---------------------------------------------------------------------------------------


def test_pause_and_resume(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    page = f"/schedules/{schedule.id}"
    paused = Document.of(alice.post(f"{page}/pause", follow=True))
    assert Schedule.objects.get().state == ScheduleState.PAUSED
    assert "Paused. Nothing starts until you resume it." in paused.texts("p", class_="message")
    assert paused.texts("button", class_="button") == ["Run now", "Resume"]
    resumed = Document.of(alice.post(f"{page}/resume", follow=True))
    assert Schedule.objects.get().state == ScheduleState.ACTIVE
    assert resumed.texts("button", class_="button") == ["Run now", "Pause"]


def test_run_now_leads_to_its_run_and_a_double_click_to_the_same(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    document = Document.of(alice.get(f"/schedules/{schedule.id}"))
    key = document.all("input", name="request_key")[0]["value"]
    urls = {alice.post(f"/schedules/{schedule.id}/run", {"request_key": key}).url for _ in range(2)}
    run = Occurrence.objects.get()
    assert urls == {f"/runs/{run.id}"}
    assert "Asked for" in alice.get(f"/runs/{run.id}").content.decode()


def test_once_a_run_shows_the_page_has_a_new_key(scene: Scene, alice: Client) -> None:
    """Somebody who comes back to the page and asks again wants another run."""
    page = f"/schedules/{make_schedule(scene.acme).id}"
    document = Document.of(alice.get(page))
    live, key = (
        document.all("div", id="live")[0]["hx-get"],
        document.all("input", id="request-key")[0]["value"],
    )
    assert alice.get(live, headers={"HX-Request": "true"}).status_code == 204
    alice.post(f"{page}/run", {"request_key": key})
    update = Document.of(alice.get(live, headers={"HX-Request": "true"}))
    fresh = update.all("input", id="request-key")[0]
    assert fresh["hx-swap-oob"] == "true"
    alice.post(f"{page}/run", {"request_key": fresh["value"]})
    assert Occurrence.objects.count() == 2


def test_run_now_with_a_broken_key_still_runs(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    alice.post(f"/schedules/{schedule.id}/run", {"request_key": "x"})
    assert Occurrence.objects.count() == 1


def test_a_cancelled_schedule_offers_nothing_and_refuses_with_a_sentence(scene: Scene, alice: Client) -> None:
    schedule = make_schedule(scene.acme)
    operations.delete_schedule(scene.acme, schedule.id, actor=ACTOR)
    page = f"/schedules/{schedule.id}"
    assert "Run now" not in alice.get(page).content.decode()
    for action in ("run", "pause", "resume"):
        response = alice.post(f"{page}/{action}", {"request_key": str(uuid4())}, follow=True)
        assert Document.of(response).texts("p", class_="error"), action


def _instants(document: Document) -> list[datetime]:
    times = [element for element in document.all("time") if element["datetime"]]
    inside = document.texts("ol", class_="instants")[0]
    return [datetime.fromisoformat(t["datetime"]) for t in times if "".join(t.text) in inside]


def test_what_holds_runs_on_request_says_so(scene: Scene, alice: Client) -> None:
    run = Occurrence.objects.get(id=run_now("reports.build", {"kind": "daily"}, tenant=scene.acme))
    for address, words in [
        (f"/schedules/{run.schedule_id}", "When code asks for it"),
        (f"/schedules/{run.schedule_id}", "Each run is asked for by code, with a payload of its own."),
        ("/", "When code asks for it"),
        ("/", "On request</span>"),
    ]:
        assert words in alice.get(address).content.decode()
