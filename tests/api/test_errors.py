"""Bad input is a 4xx that names the field and stores nothing; every error is a problem document."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import InternalError, OperationalError
from rest_framework.test import APIClient

from scheduler import operations, queries
from scheduler.models import Schedule, ScheduleRevision, Target
from tenants.models import AuditEntry
from tests.factories import body, every

pytestmark = pytest.mark.django_db

SCHEDULES = "/api/v1/schedules"
BERLIN = {"timezone": "Europe/Berlin"}
PAST = "2020-01-01T00:00:00Z"
FAR = (datetime.now(UTC) + timedelta(days=3700)).isoformat()


def cron(*expressions: Any, **more: Any) -> dict[str, Any]:
    return {"cron": {"expressions": list(expressions), **BERLIN, **more}}


def nested(levels: int) -> Any:
    document: Any = "x"
    for _ in range(levels):
        document = [document]
    return document


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"trigger": cron("0 9 * * *", timezone="Europe/Berln")}, "trigger.cron.timezone", "unknown_timezone"),
    ({"trigger": cron("0 0 31 2 *")}, "trigger.cron.expressions.0", "never_fires"),
    ({"trigger": {**cron("0 9 * * *"), **every(5)}}, "trigger", "exactly_one_kind"),
    ({"trigger": {}}, "trigger", "exactly_one_kind"),
    ({"trigger": "daily"}, "trigger", "invalid_type"),
    ({"trigger": None}, "trigger", "required"),
    ({"trigger": every(0)}, "trigger.interval.every_s", "out_of_range"),
    ({"trigger": {"once": {"at": PAST}}}, "trigger.once.at", "in_the_past"),
    ({"trigger": {"once": {"at": FAR}}}, "trigger.once.at", "too_far"),
    ({"trigger": {"once": {"at": "2030-01-01T00:00:00"}}}, "trigger.once.at", "offset_required"),
    ({"end_at": PAST}, "end_at", "never_fires"),
    ({"start_at": "2030-01-02T00:00:00Z", "end_at": "2030-01-01T00:00:00Z"}, "end_at", "out_of_range"),
    ({"start_at": "soon"}, "start_at", "invalid_timestamp"),
    ({"target": "reports.biuld"}, "target", "unknown_target"),
    ({"target": "a\x00b"}, "target", "unknown_target"),
    ({"target": 7}, "target", "invalid_type"),
    ({"target": None}, "target", "required"),
    ({"name": None}, "name", "required"),
    ({"name": ""}, "name", "invalid_text"),
    ({"name": " x"}, "name", "invalid_text"),
    ({"name": "a\nb"}, "name", "invalid_text"),
    ({"name": "x" * 201}, "name", "too_long"),
    ({"name": "\ud800"}, "name", "invalid_text"),
    ({"payload": {"knd": "daily"}}, "payload.knd", "unknown_field"),
    ({"payload": {"kind": 5}}, "payload.kind", "invalid_type"),
    ({"payload": {"pages": True}}, "payload.pages", "invalid_type"),
    ({"payload": []}, "payload", "invalid_type"),
    ({"payload": {"kind": "a\x00b"}}, "payload.kind", "invalid_text"),
    ({"payload": {"kind": "\udc00"}}, "payload.kind", "invalid_text"),
    ({"payload": {"kind\x00": "a"}}, "payload", "invalid_text"),
    ({"payload": {"kind": nested(64)}}, "payload", "too_deep"),
    ({"payload": {"kind": "x" * 70_000}}, "payload", "too_long"),
    ({"payload": {"pages": 10**200}}, "payload.pages", "invalid_number"),
    ({"payload": {"pages": 1e200}}, "payload.pages", "invalid_number"),
    ({"timeout_s": 0}, "timeout_s", "out_of_range"),
    ({"timeout_s": "10"}, "timeout_s", "invalid_type"),
    ({"timeout_s": True}, "timeout_s", "invalid_type"),
    ({"timeout_s": 1.5}, "timeout_s", "invalid_type"),
    ({"catch_up_after_s": 10**30}, "catch_up_after_s", "out_of_range"),
    ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "out_of_range"),
    ({"retry": {"max_attemps": 3}}, "retry.max_attemps", "unknown_field"),
    ({"retry": {"deadline_s": 0}}, "retry.deadline_s", "out_of_range"),
    ({"retry": {"deadline_s": "60"}}, "retry.deadline_s", "invalid_type"),
    ({"retry": []}, "retry", "invalid_type"),
    ({"tags": ["a", "a"]}, "tags", "invalid_tags"),
    ({"tags": "a"}, "tags", "invalid_type"),
    ({"overlap": "skp"}, "overlap", "invalid_choice"),
    ({"overlap": "buffer_two"}, "overlap", "invalid_choice"),
    ({"catch_up": "run_some"}, "catch_up", "invalid_choice"),
    ({"catch_up_window_s": 0}, "catch_up_window_s", "out_of_range"),
    ({"catch_up_limit": 1001}, "catch_up_limit", "out_of_range"),
    ({"buffer_limit": 0}, "buffer_limit", "out_of_range"),
    ({"max_occurrences": 0}, "max_occurrences", "out_of_range"),
    ({"max_occurrences": 2**31}, "max_occurrences", "out_of_range"),
    ({"exclusions": [{"date": "2026-13-24"}]}, "exclusions.0.date", "out_of_range"),
    ({"exclusions": {"date": "2026-12-24"}}, "exclusions", "invalid_type"),
    ({"exclusions": ["2026-12-24"]}, "exclusions.0", "invalid_type"),
    ({"exclusions": [{"calendar": "none"}]}, "exclusions.0.calendar", "unknown_calendar"),
    ({"on_excluded": "next_day"}, "on_excluded", "invalid_choice"),
    ({"flexible_window_s": -1}, "flexible_window_s", "out_of_range"),
    ({"flexible_window_s": False}, "flexible_window_s", "invalid_type"),
    ({"mode": "fixed"}, "mode", "invalid_choice"),
    ({"schedule_to_start_s": 0}, "schedule_to_start_s", "out_of_range"),
    ({"heartbeat_timeout_s": 300}, "heartbeat_timeout_s", "out_of_range"),
    ({"heartbeat_timeout_s": 10, "timeout_s": 10}, "heartbeat_timeout_s", "out_of_range"),
    ({"schedule_to_start_s": 1.5}, "schedule_to_start_s", "invalid_type"),
    ({"priority": "high"}, "priority", "not_supported_yet"),
    ({"on_failure": {"pause_after": 0}}, "on_failure.pause_after", "out_of_range"),
    ({"on_failure": {"pause_after": True}}, "on_failure.pause_after", "invalid_type"),
    ({"on_failure": {"pause_afer": 3}}, "on_failure.pause_afer", "unknown_field"),
    ({"on_failure": 3}, "on_failure", "invalid_type"),
    ({"tenant": "charlies"}, "tenant", "unknown_field"),
    ({"descripton": "x"}, "descripton", "unknown_field"),
    ({"\ud800": "x"}, "?", "unknown_field"),
    ({"retry": {"\ud800": 1}}, "retry.?", "unknown_field"),
    ({"payload": {"\ud800": 1}}, "payload", "invalid_text"),
    ({"trigger": {"\ud800": {}}}, "trigger.?", "unknown_field"),
    ({"trigger": cron("\ud800")}, "trigger.cron.expressions.0", "invalid_character"),
]


@pytest.mark.parametrize(("changes", "field", "code"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_fault_is_named_and_nothing_is_stored(
    alice: APIClient, changes: dict[str, Any], field: str, code: str
) -> None:
    text = json.dumps(body(**changes))
    answer = alice.generic("POST", SCHEDULES, text, content_type="application/json")
    assert answer.status_code == 400, answer.content
    problem = answer.json()
    assert problem["code"] == "validation"
    assert (field, code) in [(error["field"], error["code"]) for error in problem["errors"]]
    assert problem["detail"].startswith(f"{problem['errors'][0]['field']}: ")
    assert not Schedule.objects.exists()
    assert not AuditEntry.objects.filter(action="schedule.create").exists()


def test_all_faults_are_told_at_once_with_a_hint(alice: APIClient) -> None:
    answer = alice.post(SCHEDULES, body(target="reports.biuld", descripton="x", timeout_s=0))
    details = {error["field"]: error["detail"] for error in answer.json()["errors"]}
    assert set(details) == {"target", "descripton", "timeout_s"}
    assert details["target"].endswith("Did you mean 'reports.build'?")
    assert details["descripton"].endswith("Did you mean 'description'?")


def test_what_is_known_is_told_where_nothing_comes_close(alice: APIClient) -> None:
    misnamed, none = alice.get(SCHEDULES + "?zzz=1").json(), alice.get(SCHEDULES + "?serch=1").json()
    assert misnamed["errors"][0]["detail"].endswith("Known are: cursor, page_size, search, state.")
    assert none["errors"][0]["detail"].endswith("Did you mean 'search'?")


def test_a_field_that_the_function_needs_is_named(alice: APIClient, target: Target) -> None:
    target.parameters = {**target.parameters, "required": ["kind"]}
    target.save()
    error = alice.post(SCHEDULES, body()).json()["errors"][0]
    assert (error["field"], error["code"]) == ("payload.kind", "required")


def test_a_target_of_others_is_unknown(alice: APIClient, target: Target) -> None:
    target.everyone = False
    target.save()
    assert alice.post(SCHEDULES, body()).json()["errors"][0]["code"] == "unknown_target"


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ('{"name": "a",', 400, "malformed_json"),
        ("", 400, "validation"),
        ("[]", 400, "malformed_json"),
        ('"x"', 400, "malformed_json"),
        ('{"name": "a", "name": "b"}', 400, "malformed_json"),
        ('{"payload": {"kind": NaN}}', 400, "malformed_json"),
        ('{"payload": {"kind": -Infinity}}', 400, "malformed_json"),
        ('{"payload": {"pages": 1e999}}', 400, "validation"),
        ('{"payload": {"pages": ' + "9" * 5000 + "}}", 400, "malformed_json"),
        ("[" * 100_000, 400, "malformed_json"),
        ('{"a": ' * 50_000 + "1" + "}" * 50_000, 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_an_object_in_json(alice: APIClient, text: Any, status: int, code: str) -> None:
    answer = alice.generic("POST", SCHEDULES, text, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("action", ["pause", "resume", "trigger"])
@pytest.mark.parametrize(
    "text", ['{"\\ud800": 1}', '{"note": "\\ud800"}', '{"note": "\\u0000"}', '{"resume": "\\ud800"}']
)
def test_odd_characters_in_an_action_are_refused(alice: APIClient, action: str, text: str) -> None:
    schedule_id = alice.post(SCHEDULES, body()).json()["id"]
    url = f"{SCHEDULES}/{schedule_id}/{action}"
    assert alice.generic("POST", url, text, content_type="application/json").status_code == 400


def test_a_stored_trigger_that_cannot_be_read_any_more_is_named(alice: APIClient) -> None:
    schedule_id = alice.post(SCHEDULES, body()).json()["id"]
    ScheduleRevision.objects.update(trigger={"cron": {"expressions": ["x"], "timezone": "UTC"}})
    answer = alice.get(f"{SCHEDULES}/{schedule_id}/preview")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "trigger.cron.expressions.0")


class TestSize:
    def test_one_mebibyte_is_read_and_judged(self, alice: APIClient) -> None:
        answer = alice.generic("POST", SCHEDULES, _padded(1024 * 1024), content_type="application/json")
        assert answer.status_code == 400

    def test_one_byte_more_is_too_large(self, alice: APIClient) -> None:
        answer = alice.generic("POST", SCHEDULES, _padded(1024 * 1024 + 1), content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert not Schedule.objects.exists()


def _padded(size: int) -> bytes:
    start, end = b'{"description": "', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


class TestExchange:
    def test_another_media_type(self, alice: APIClient) -> None:
        answer = alice.generic("POST", SCHEDULES, "name=x", content_type="application/x-www-form-urlencoded")
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    def test_another_method(self, alice: APIClient) -> None:
        answer = alice.put(SCHEDULES, {})
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert "POST" in answer["Allow"]

    def test_another_form_of_answer(self, alice: APIClient) -> None:
        answer = alice.get(SCHEDULES, HTTP_ACCEPT="text/csv")
        assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")

    @pytest.mark.parametrize("path", ["/api/v1/nope", "/api/v1/schedules/", "/api/v1/schedules/7", "/api/"])
    def test_an_unknown_path(self, alice: APIClient, path: str) -> None:
        answer = alice.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert answer["Content-Type"] == "application/problem+json"

    def test_a_refused_host(self, alice: APIClient) -> None:
        answer = alice.get(SCHEDULES, HTTP_HOST="evil.example")
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")

    def test_the_request_id_comes_back(self, alice: APIClient) -> None:
        answer = alice.get(SCHEDULES + "/x", HTTP_X_REQUEST_ID="trace-1.a_b")
        assert answer["X-Request-ID"] == answer.json()["request_id"] == "trace-1.a_b"

    @pytest.mark.parametrize("given", ["", "a b", "x" * 65, "<script>", "a\tb"])
    def test_a_request_id_that_could_harm_is_replaced(self, alice: APIClient, given: str) -> None:
        answer = alice.get(SCHEDULES, HTTP_X_REQUEST_ID=given)
        assert len(answer["X-Request-ID"]) == 32

    def test_an_error_of_ours_shows_nothing_of_the_inside(
        self, alice: APIClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("the password is hunter2")

        monkeypatch.setattr(queries, "schedules", fail)
        answer = alice.get(SCHEDULES)
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert b"hunter2" not in answer.content
        assert answer.json()["request_id"] == answer["X-Request-ID"]

    @pytest.mark.parametrize(
        ("error", "cause"),
        [
            (OperationalError, psycopg.OperationalError),
            (InternalError, psycopg.errors.ReadOnlySqlTransaction),
        ],
    )
    def test_a_database_that_is_away_is_a_503(
        self,
        error: type[Exception],
        cause: type[Exception],
        alice: APIClient,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def away(*args: Any, **kwargs: Any) -> Any:
            raise error("server closed the connection") from cause()

        monkeypatch.setattr(operations, "create_schedule", away)
        answer = alice.post(SCHEDULES, body())
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer["Retry-After"] == "2"
        assert b"server closed" not in answer.content
