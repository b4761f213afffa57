"""Schedules over HTTP: the contract of 06-api.md, as far as one request at a time shows it."""

import base64
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from scheduler.models import Schedule, ScheduleRevision
from tenants.models import AuditEntry, Tenant
from tests import factories
from tests.factories import body, every

pytestmark = pytest.mark.django_db

SCHEDULES = "/api/v1/schedules"

# In UTC this instant lies in the year 0. A cursor is base64 that anybody can write.
_MOMENT = f'[false, "0001-01-01T00:00:00+23:59", "{uuid4()}"]'
BEYOND_THE_CALENDAR = f"cursor={base64.urlsafe_b64encode(_MOMENT.encode()).decode()}"


def create(client: APIClient, **changes: Any) -> Any:
    answer = client.post(SCHEDULES, body(**changes))
    assert answer.status_code == 201, answer.content
    return answer


def url(created: Any, action: str = "") -> str:
    return f"{SCHEDULES}/{created.json()['id']}{action}"


class TestCreate:
    def test_answers_with_the_whole_schedule_its_address_and_its_revision(self, alice: APIClient) -> None:
        answer = create(alice)
        shown = answer.json()
        assert answer["Location"] == f"{SCHEDULES}/{shown['id']}"
        assert answer["ETag"] == '"1"'
        assert shown["state"] == "active"
        assert shown["overlap"] == "skip"
        assert shown["retry"]["max_attempts"] == 5
        assert shown["next_due_at"].endswith("Z")
        assert shown["next_instants"][0]["utc"] == shown["next_due_at"]
        assert "T09:00:00+0" in shown["next_instants"][0]["local"]
        assert shown["runs_url"].endswith(f"/schedules/{shown['id']}/runs")
        assert (shown["last_run"], shown["counts_by_state"], shown["health"]) == (None, {}, "ok")

    def test_a_body_that_was_read_can_be_sent_again(self, alice: APIClient) -> None:
        shown = create(alice).json()
        fields = {name: shown[name] for name in shown if name in _body_fields()}
        again = alice.post(SCHEDULES, {**fields, "name": "copy"})
        assert again.status_code == 201, again.content

    def test_takes_defaults_from_the_target(self, alice: APIClient) -> None:
        factories.TargetFactory(name="slow.job", timeout_s=900, retry={"max_attempts": 2}, parameters={})
        shown = create(alice, target="slow.job").json()
        assert shown["timeout_s"] == 900
        assert shown["retry"]["max_attempts"] == 2
        assert shown["retry"]["backoff"] == 2.0

    def test_an_interval_keeps_the_second_of_its_creation_as_anchor(self, alice: APIClient) -> None:
        created = create(alice, trigger=every(3600))
        anchor = created.json()["trigger"]["interval"]["anchor"]
        assert anchor.endswith("Z")
        assert "." not in anchor
        edited = alice.patch(url(created), {"trigger": every(1800)}, HTTP_IF_MATCH='"1"').json()
        assert edited["trigger"]["interval"]["anchor"] == anchor

    def test_is_for_editors(self, bob: APIClient) -> None:
        answer = bob.post(SCHEDULES, body())
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert not Schedule.objects.exists()

    def test_a_name_is_taken_once_and_free_again_after_cancelling(
        self, alice: APIClient, charlie: APIClient
    ) -> None:
        first = create(alice)
        second = alice.post(SCHEDULES, body())
        assert second.status_code == 400
        assert second.json()["errors"][0] == {
            "field": "name",
            "code": "name_taken",
            "detail": "a schedule is called 'nightly-report' already.",
        }
        create(charlie)
        alice.delete(url(first))
        create(alice)

    def test_stops_at_the_quota(self, alice: APIClient, tenant: Tenant) -> None:
        tenant.max_schedules = 1
        tenant.save()
        create(alice)
        answer = alice.post(SCHEDULES, body(name="second"))
        assert (answer.status_code, answer.json()["code"]) == (409, "quota_exceeded")

    def test_leaves_an_audit_entry(self, alice: APIClient) -> None:
        create(alice)
        entry = AuditEntry.objects.get(action="schedule.create")
        assert entry.actor.startswith("key admin (")
        assert entry.address == "127.0.0.1"
        assert entry.after["name"] == "nightly-report"


class TestRead:
    def test_lists_the_newest_first_in_pages(self, alice: APIClient, charlie: APIClient) -> None:
        for number in range(5):
            create(alice, name=f"schedule-{number}")
        create(charlie, name="not mine")
        names, link = [], f"{SCHEDULES}?page_size=2"
        while link:
            page = alice.get(link).json()
            names += [row["name"] for row in page["results"]]
            link = page["next"]
        assert names == [f"schedule-{number}" for number in (4, 3, 2, 1, 0)]

    def test_pages_lead_back(self, alice: APIClient) -> None:
        for number in range(5):
            create(alice, name=f"schedule-{number}")
        first = alice.get(f"{SCHEDULES}?page_size=2").json()
        second = alice.get(first["next"]).json()
        assert first["previous"] is None
        assert alice.get(second["previous"]).json()["results"] == first["results"]

    def test_narrows_by_state_and_name(self, alice: APIClient) -> None:
        create(alice, name="daily sales")
        paused = create(alice, name="weekly sales")
        alice.post(url(paused, "/pause"))
        by_state = alice.get(f"{SCHEDULES}?state=paused").json()["results"]
        by_name = alice.get(f"{SCHEDULES}?search=SALES").json()["results"]
        assert [row["name"] for row in by_state] == ["weekly sales"]
        assert len(by_name) == 2

    @pytest.mark.parametrize(
        "query",
        [
            "cursor=x",
            "cursor=W10",
            BEYOND_THE_CALENDAR,
            "page_size=0",
            "page_size=201",
            "page_size=x",
            "stat=paused",
            "state=x",
        ],
    )
    def test_refuses_a_query_that_it_does_not_understand(self, alice: APIClient, query: str) -> None:
        answer = alice.get(f"{SCHEDULES}?{query}")
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] == query.split("=")[0]

    def test_costs_the_same_number_of_queries_however_long_the_page(
        self, alice: APIClient, django_assert_max_num_queries: Any
    ) -> None:
        for number in range(6):
            create(alice, name=f"schedule-{number}")
        with django_assert_max_num_queries(9):
            assert len(alice.get(SCHEDULES).json()["results"]) == 6


class TestEdit:
    def test_makes_a_revision(self, alice: APIClient) -> None:
        created = create(alice)
        answer = alice.patch(url(created), {"payload": {"kind": "weekly"}}, HTTP_IF_MATCH='"1"')
        assert answer.status_code == 200, answer.content
        assert answer["ETag"] == '"2"'
        assert answer.json()["payload"] == {"kind": "weekly"}
        assert answer.json()["next_due_at"] == created.json()["next_due_at"]
        numbers = ScheduleRevision.objects.order_by("number").values_list("number", flat=True)
        assert list(numbers) == [1, 2]

    def test_asks_for_if_match(self, alice: APIClient) -> None:
        answer = alice.patch(url(create(alice)), {"payload": {}})
        assert (answer.status_code, answer.json()["code"]) == (428, "precondition_required")

    def test_refuses_a_stale_revision_and_names_the_current_one(self, alice: APIClient) -> None:
        created = create(alice)
        alice.patch(url(created), {"description": "first"}, HTTP_IF_MATCH='"1"')
        answer = alice.patch(url(created), {"description": "second"}, HTTP_IF_MATCH='"1"')
        assert answer.status_code == 412
        assert (answer.json()["code"], answer.json()["revision"]) == ("stale_revision", 2)
        assert answer["ETag"] == '"2"'
        assert alice.get(url(created)).json()["description"] == "first"

    @pytest.mark.parametrize("text", ["1", 'W/"1"', '"1", "2"', '"x"', '"\u0661"'])
    def test_refuses_what_is_no_etag_of_ours(self, alice: APIClient, text: str) -> None:
        answer = alice.patch(url(create(alice)), {"payload": {}}, HTTP_IF_MATCH=text)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_if_match")

    def test_a_star_edits_whatever_is_there(self, alice: APIClient) -> None:
        assert alice.patch(url(create(alice)), {"description": "x"}, HTTP_IF_MATCH="*").status_code == 200

    def test_what_changes_nothing_makes_no_revision(self, alice: APIClient) -> None:
        created = create(alice)
        answer = alice.patch(url(created), {"overlap": "skip"}, HTTP_IF_MATCH='"1"')
        assert (answer.status_code, answer["ETag"]) == (200, '"1"')

    def test_true_is_not_one(self, alice: APIClient) -> None:
        factories.TargetFactory(name="any.job", parameters={})
        created = create(alice, target="any.job", payload={"n": 1})
        same = alice.patch(url(created), {"payload": {"n": 1.0}}, HTTP_IF_MATCH='"1"')
        other = alice.patch(url(created), {"payload": {"n": True}}, HTTP_IF_MATCH='"1"')
        assert (same["ETag"], other["ETag"]) == ('"1"', '"2"')

    def test_null_gives_a_field_its_default(self, alice: APIClient) -> None:
        created = create(alice, timeout_s=10)
        edited = alice.patch(url(created), {"timeout_s": None}, HTTP_IF_MATCH='"1"').json()
        assert edited["timeout_s"] == 300

    def test_a_bad_edit_stores_nothing(self, alice: APIClient) -> None:
        created = create(alice)
        answer = alice.patch(url(created), {"timeout_s": 5, "overlap": "skp"}, HTTP_IF_MATCH='"1"')
        assert answer.status_code == 400
        assert alice.get(url(created))["ETag"] == '"1"'


class TestActions:
    def test_pause_and_resume(self, alice: APIClient) -> None:
        created = create(alice)
        paused = alice.post(url(created, "/pause"), {"note": "maintenance"})
        assert paused.status_code == 200
        shown = paused.json()
        assert (shown["state"], shown["state_note"], shown["next_due_at"]) == ("paused", "maintenance", None)
        assert alice.post(url(created, "/pause")).status_code == 200
        resumed = alice.post(url(created, "/resume")).json()
        assert resumed["state"] == "active"
        assert resumed["next_due_at"] == created.json()["next_due_at"]

    def test_resume_by_catching_up_is_refused(self, alice: APIClient) -> None:
        created = create(alice)
        answer = alice.post(url(created, "/resume"), {"resume": "catch_up"})
        assert answer.json()["errors"][0]["code"] == "not_supported_yet"

    def test_delete_twice_and_read_on(self, alice: APIClient) -> None:
        created = create(alice)
        assert alice.delete(url(created)).status_code == 204
        assert alice.delete(url(created)).status_code == 204
        assert alice.get(url(created)).json()["state"] == "cancelled"
        assert alice.get(SCHEDULES).json()["results"] == []

    @pytest.mark.parametrize("action", ["/pause", "/resume", "/trigger"])
    def test_a_cancelled_schedule_is_a_conflict(self, alice: APIClient, action: str) -> None:
        created = create(alice)
        alice.delete(url(created))
        answer = alice.post(url(created, action))
        assert (answer.status_code, answer.json()["state"]) == (409, "cancelled")

    def test_trigger_gives_a_run(self, alice: APIClient) -> None:
        created = create(alice)
        answer = alice.post(url(created, "/trigger"))
        assert answer.status_code == 202
        run = alice.get(f"/api/v1/runs/{answer.json()['run_id']}").json()
        assert (run["origin"], run["state"], run["reason"]) == ("trigger", "PENDING", "due")
        assert alice.get(url(created)).json()["last_run"]["id"] == run["id"]

    def test_a_paused_schedule_can_be_triggered(self, alice: APIClient) -> None:
        created = create(alice)
        alice.post(url(created, "/pause"))
        assert alice.post(url(created, "/trigger")).status_code == 202

    @pytest.mark.parametrize(
        ("overlap", "code"), [("sometimes", "invalid_choice"), ("Skip", "invalid_choice")]
    )
    def test_trigger_refuses_an_overlap_it_cannot_honour(
        self, alice: APIClient, overlap: str, code: str
    ) -> None:
        answer = alice.post(url(create(alice), "/trigger"), {"overlap": overlap})
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, code)

    @pytest.mark.parametrize("action", ["/pause", "/resume", "/trigger"])
    def test_misspelt_fields_are_refused(self, alice: APIClient, action: str) -> None:
        answer = alice.post(url(create(alice), action), {"nte": "x"})
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "unknown_field")


class TestPreview:
    def test_of_a_draft_stores_nothing(self, bob: APIClient) -> None:
        trigger = {"cron": {"expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"}}
        answer = bob.post(f"{SCHEDULES}/preview?count=2&from=2026-03-28T00:00:00Z", {"trigger": trigger})
        first, second = answer.json()["instants"]
        assert (first["utc"], first["notes"]) == ("2026-03-28T01:30:00Z", [])
        assert second["local"] == "2026-03-29T03:00:00+02:00"
        assert second["notes"], "the moved instant says so"
        assert not Schedule.objects.exists()

    def test_of_a_saved_one(self, alice: APIClient) -> None:
        created = create(alice)
        asked = url(created, "/preview?from=2027-01-01T00:00:00Z&count=3")
        instants = [instant["utc"] for instant in alice.get(asked).json()["instants"]]
        assert instants == [f"2027-01-0{day}T08:00:00Z" for day in (1, 2, 3)]

    def test_names_the_field_of_a_bad_draft(self, alice: APIClient) -> None:
        answer = alice.post(f"{SCHEDULES}/preview", {"trigger": {"cron": {"expressions": ["61 * * * *"]}}})
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"].startswith("trigger.cron")

    def test_may_begin_before_all_time(self, alice: APIClient) -> None:
        answer = alice.get(url(create(alice), "/preview?from=0001-01-01T00:00:00Z&count=1"))
        assert len(answer.json()["instants"]) == 1

    @pytest.mark.parametrize("query", ["count=0", "count=101", "from=yesterday", "form=2026-01-01T00:00:00Z"])
    def test_refuses_a_bad_question(self, alice: APIClient, query: str) -> None:
        answer = alice.get(url(create(alice), f"/preview?{query}"))
        assert answer.json()["errors"][0]["field"] == query.split("=")[0]


def test_an_id_that_nobody_has_is_not_found(alice: APIClient) -> None:
    assert alice.get(f"{SCHEDULES}/{uuid4()}").status_code == 404


def _body_fields() -> frozenset[str]:
    from scheduler.definitions import FIELDS

    return FIELDS
