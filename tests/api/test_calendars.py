"""A tenant's days of rest over HTTP, and what a change of them does to the schedules that name them."""

from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from scheduler.calendars import MOST_CALENDARS
from scheduler.models import Calendar, Schedule, ScheduleRevision
from tenants.models import AuditEntry, Role, Tenant
from tests import factories
from tests.api.people import client_of

pytestmark = pytest.mark.django_db

CALENDARS = "/api/v1/calendars"
DAILY = {"cron": {"expressions": ["0 9 * * *"], "timezone": "UTC"}}
ICS = "\r\n".join(
    [
        "BEGIN:VCALENDAR",
        "BEGIN:VEVENT",
        "DTSTART;VALUE=DATE:20261225",
        "DTEND;VALUE=DATE:20261227",
        "END:VEVENT",
        "BEGIN:VEVENT",
        "DTSTART;VALUE=DATE:20270101",
        "RRULE:FREQ=YEARLY;COUNT=2",
        "END:VEVENT",
        "END:VCALENDAR",
    ]
)


def create(client: APIClient, name: str = "rest", **body: Any) -> Any:
    answer = client.post(CALENDARS, {"name": name, **(body or {"days": ["2026-12-25"]})})
    assert answer.status_code == 201, answer.content
    return answer


def edit(client: APIClient, url: str, days: Any, *, if_match: str = '"1"') -> Any:
    return client.patch(url, {"days": days}, HTTP_IF_MATCH=if_match)


def resting(tenant: Tenant, **changes: Any) -> Schedule:
    return factories.schedule(tenant, trigger=DAILY, exclusions=[{"calendar": "rest"}], **changes)


class TestCreate:
    def test_answers_with_its_days_its_address_and_its_revision(self, alice: APIClient) -> None:
        days = ["2026-12-25", {"from": "2027-08-01", "to": "2027-08-31"}]
        answer = create(alice, days=days)
        shown = answer.json()
        assert (answer["Location"], answer["ETag"]) == (f"{CALENDARS}/{shown['id']}", '"1"')
        assert (shown["name"], shown["days"], shown["entries"]) == ("rest", days, 2)
        assert (shown["revision"], shown["used_by"]) == (1, [])
        assert alice.get(answer["Location"]).json() == shown

    def test_takes_an_icalendar_file_instead(self, alice: APIClient) -> None:
        days = create(alice, ics=ICS).json()["days"]
        assert days == [{"from": "2026-12-25", "to": "2026-12-26"}, "2027-01-01", "2028-01-01"]

    def test_the_same_key_answers_once(self, alice: APIClient) -> None:
        body = {"name": "rest", "days": ["2026-12-25"]}
        first, second = (alice.post(CALENDARS, body, HTTP_IDEMPOTENCY_KEY="k") for _ in range(2))
        assert (first.status_code, second.json()) == (201, first.json())
        assert Calendar.objects.count() == 1

    def test_a_name_is_taken_once_in_a_tenant(self, alice: APIClient, charlie: APIClient) -> None:
        create(alice)
        create(charlie)
        answer = alice.post(CALENDARS, {"name": "rest", "days": []})
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["field"], error["code"]) == (400, "name", "name_taken")

    @pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
    def test_is_for_editors(self, tenant: Tenant, role: Role) -> None:
        answer = client_of(tenant, role).post(CALENDARS, {"name": "rest", "days": []})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")

    def test_a_tenant_has_a_bounded_number(self, alice: APIClient, tenant: Tenant) -> None:
        now = tenant.created_at
        Calendar.objects.bulk_create(
            Calendar(tenant=tenant, name=str(number), created_at=now, updated_at=now)
            for number in range(MOST_CALENDARS)
        )
        answer = alice.post(CALENDARS, {"name": "rest", "days": []})
        assert (answer.status_code, answer.json()["code"]) == (409, "quota_exceeded")

    @pytest.mark.parametrize(
        ("body", "field", "code"),
        [
            ({"days": []}, "name", "required"),
            ({"name": 7, "days": []}, "name", "invalid_type"),
            ({"name": "a\x00", "days": []}, "name", "invalid_text"),
            ({"name": "x" * 101, "days": []}, "name", "too_long"),
            ({"name": "rest"}, "days", "exactly_one_of"),
            ({"name": "rest", "days": [], "ics": ICS}, "days", "exactly_one_of"),
            ({"name": "rest", "days": "2026-12-25"}, "days", "invalid_type"),
            ({"name": "rest", "days": ["2026-12-25", "25.12.2026"]}, "days.1", "invalid_date"),
            ({"name": "rest", "days": [{"date": "2026-12-25", "till": 1}]}, "days.0.till", "unknown_field"),
            ({"name": "rest", "days": [{"from": "2026-12-25"}]}, "days.0.to", "required"),
            ({"name": "rest", "days": [{"from": "1900-01-01", "to": "2199-12-31"}]}, "days", "never_fires"),
            ({"name": "rest", "days": ["9999-12-31"]}, "days.0", "out_of_range"),
            ({"name": "rest", "ics": "<html>"}, "ics", "invalid_calendar"),
            ({"name": "rest", "ics": 7}, "ics", "invalid_type"),
            ({"name": "rest", "dates": []}, "dates", "unknown_field"),
        ],
    )
    def test_what_is_wrong_is_said_of_its_field_and_nothing_is_stored(
        self, alice: APIClient, body: dict[str, Any], field: str, code: str
    ) -> None:
        answer = alice.post(CALENDARS, body)
        assert answer.status_code == 400, answer.content
        assert [(error["field"], error["code"]) for error in answer.json()["errors"]] == [(field, code)]
        assert not Calendar.objects.exists()


class TestList:
    def test_pages_hold_them_without_their_days(self, alice: APIClient) -> None:
        for number in range(3):
            create(alice, f"rest-{number}")
        first = alice.get(f"{CALENDARS}?page_size=2").json()
        second = alice.get(first["next"]).json()
        names = [row["name"] for row in first["results"] + second["results"]]
        assert (names, second["next"]) == (["rest-2", "rest-1", "rest-0"], None)
        assert "days" not in first["results"][0]

    def test_a_misspelt_parameter_is_refused(self, alice: APIClient) -> None:
        assert alice.get(f"{CALENDARS}?page=2").status_code == 400


class TestEdit:
    def test_moves_the_future_of_the_schedules_that_name_it(self, alice: APIClient, tenant: Tenant) -> None:
        url = create(alice)["Location"]
        schedule = resting(tenant)
        bystander = factories.schedule(tenant, name="bystander", trigger=DAILY)
        next_due_at = schedule.next_due_at
        assert next_due_at is not None
        answer = edit(alice, url, [f"{next_due_at:%Y-%m-%d}"])
        assert (answer.status_code, answer["ETag"]) == (200, '"2"')
        assert answer.json()["schedules"] == [{"name": schedule.name, "action": "edited"}]
        assert answer.json()["used_by"] == [schedule.name]
        schedule.refresh_from_db()
        bystander.refresh_from_db()
        assert schedule.next_due_at == next_due_at + timedelta(days=1)
        assert (schedule.revision, bystander.revision) == (2, 1)
        kept = ScheduleRevision.objects.get(schedule=schedule, number=1).calendars
        assert kept == {"rest": ["2026-12-25"]}

    def test_the_same_days_change_nothing(self, alice: APIClient, tenant: Tenant) -> None:
        url = create(alice)["Location"]
        schedule = resting(tenant)
        answer = edit(alice, url, ["2026-12-25"])
        assert (answer.status_code, answer["ETag"], answer.json()["schedules"]) == (200, '"1"', [])
        schedule.refresh_from_db()
        assert schedule.revision == 1

    def test_is_all_or_nothing(self, alice: APIClient, tenant: Tenant) -> None:
        """One schedule needs a business day within a year: it is named, and nobody follows."""
        url = create(alice)["Location"]
        first = resting(tenant, name="a")
        resting(tenant, name="b", on_excluded="next_business_day")
        answer = edit(alice, url, [{"from": "2027-01-01", "to": "2028-12-31"}])
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["field"], error["code"]) == (400, "days", "out_of_range")
        assert "schedule 'b'" in error["detail"]
        first.refresh_from_db()
        assert (first.revision, Calendar.objects.get().days) == (1, ["2026-12-25"])

    def test_asks_for_the_revision_that_was_read(self, alice: APIClient) -> None:
        url = create(alice)["Location"]
        assert alice.patch(url, {"days": []}).status_code == 428
        assert edit(alice, url, []).status_code == 200
        stale = edit(alice, url, ["2027-01-01"])
        assert (stale.status_code, stale.json()["revision"], stale["ETag"]) == (412, 2, '"2"')
        assert edit(alice, url, ["2027-01-01"], if_match="*").status_code == 200

    def test_the_name_stays(self, alice: APIClient) -> None:
        url = create(alice)["Location"]
        answer = alice.patch(url, {"name": "other"}, HTTP_IF_MATCH='"1"')
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["field"], error["code"]) == (400, "name", "unknown_field")

    def test_follows_a_file(self, alice: APIClient) -> None:
        url = create(alice)["Location"]
        answer = alice.patch(url, {"ics": ICS}, HTTP_IF_MATCH='"1"')
        assert (answer.status_code, answer.json()["entries"]) == (200, 3)


class TestDelete:
    def test_is_refused_with_the_names_while_schedules_name_it(
        self, alice: APIClient, tenant: Tenant
    ) -> None:
        url = create(alice)["Location"]
        schedules = [resting(tenant, name=name) for name in ("b", "a")]
        answer = alice.delete(url)
        assert (answer.status_code, answer.json()["code"]) == (409, "calendar_in_use")
        assert answer.json()["used_by"] == ["a", "b"]
        for schedule in schedules:
            alice.delete(f"/api/v1/schedules/{schedule.id}")
        assert alice.delete(url).status_code == 204
        assert alice.get(url).status_code == 404

    def test_a_schedule_that_names_it_no_longer_is_no_hindrance(
        self, alice: APIClient, tenant: Tenant
    ) -> None:
        url = create(alice)["Location"]
        schedule = resting(tenant)
        alice.patch(f"/api/v1/schedules/{schedule.id}", {"exclusions": []}, HTTP_IF_MATCH='"1"')
        assert alice.delete(url).status_code == 204


def test_each_action_leaves_one_audit_entry_of_what_came_and_went(alice: APIClient) -> None:
    url = create(alice, days=["2026-12-25", "2026-12-26"])["Location"]
    edit(alice, url, ["2026-12-25", "2027-01-01"])
    alice.delete(url)
    entries = AuditEntry.objects.filter(subject_kind="calendar").order_by("at", "id")
    assert [(entry.action, entry.before, entry.after) for entry in entries] == [
        ("calendar.create", None, {"name": "rest", "days": ["2026-12-25", "2026-12-26"]}),
        (
            "calendar.edit",
            {"name": "rest", "days": ["2026-12-26"]},
            {"name": "rest", "days": ["2027-01-01"]},
        ),
        ("calendar.delete", {"name": "rest", "days": ["2026-12-25", "2027-01-01"]}, None),
    ]
    assert {str(entry.subject_id) for entry in entries} == {url.rsplit("/", 1)[1]}
