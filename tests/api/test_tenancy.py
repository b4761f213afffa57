"""Another tenant's id is a 404 on every route, with every verb. The list is the resolver's own."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from rest_framework.test import APIClient

from scheduler.calendars import create_calendar
from scheduler.models import Calendar, Occurrence, Schedule, Target
from scheduler.operations import trigger_schedule
from scheduler.orm import database_time, raw_connection
from scheduler.targets import create_target
from tenants.models import Membership, Tenant
from tests import factories
from tests.api.people import client_of

pytestmark = pytest.mark.django_db

# Routes without an id: what they show is the caller's own, or nobody's.
OF_THE_CALLER = {"schedules", "draft-preview", "runs", "calendars", "targets"}
PUBLIC = {"schema", "docs"}
# What is refused, to its owner too, unless the run failed for good, or nobody knows whether it did.
OF_ACCEPTED_RUNS = {"run-heartbeat", "run-complete"}
OF_FAILED_RUNS = {"run-redrive": "FAILED", "run-dismiss": "FAILED", "run-reconcile": "UNKNOWN"}


def api_routes() -> list[URLPattern]:
    def walk(patterns: Any, prefix: str) -> Iterator[tuple[str, URLPattern]]:
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, path)
            else:
                yield path, pattern

    return [pattern for path, pattern in walk(get_resolver().url_patterns, "") if path.startswith("api/")]


def ids_of(route: URLPattern) -> set[str]:
    return set(route.pattern.converters)


def verbs_of(route: URLPattern) -> list[str]:
    return sorted(route.callback.cls.roles)


# What a route needs to be let through; the others take an empty body.
BODIES = {
    "schedule-backfill": '{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}',
    "calendar": '{"days": ["2026-12-26"]}',
    "run-reconcile": '{"outcome": "failed"}',
    "run-heartbeat": '{"fence": 1}',
    "run-complete": '{"fence": 1, "outcome": "succeeded"}',
}

WITH_ID = [route for route in api_routes() if ids_of(route)]
CALLS = [(route.name, verb) for route in WITH_ID for verb in verbs_of(route)]


@pytest.fixture
def schedule(tenant: Tenant, target: Any) -> Schedule:
    return factories.schedule(tenant)


@pytest.fixture
def calendar(tenant: Tenant) -> Calendar:
    return create_calendar(tenant, "rest", days=["2026-12-25"], actor=factories.ACTOR)


@pytest.fixture
def own_target(tenant: Tenant) -> Target:
    """Of Alice's tenant, and not the one that her schedule names."""
    body = {"name": "billing", "url": "https://billing.example/hook"}
    return create_target(tenant, body, actor=factories.ACTOR).target


@pytest.fixture
def url_of(tenant: Tenant, schedule: Schedule, calendar: Calendar, own_target: Target) -> Any:
    """The address of a named route about Alice's schedule, a run of it, her calendar or her target."""
    run_id = trigger_schedule(tenant, schedule.id, request_key=schedule.id, actor=factories.ACTOR)

    def url(name: str) -> str:
        route = next(route for route in WITH_ID if route.name == name)
        known = {
            "schedule_id": schedule.id,
            "run_id": run_id,
            "calendar_id": calendar.id,
            "target_id": own_target.id,
        }
        return reverse(name, kwargs={key: known[key] for key in ids_of(route)})

    return url


def fail_the_run(state: str) -> None:
    """As its last attempt leaves it."""
    runs, now = Occurrence.objects.all(), database_time()
    runs.update(state="QUEUED", wait_reason=None, generation=1, queued_at=now)
    runs.update(state="RUNNING", fence=1, attempt_count=1, started_at=now)
    runs.update(state=state, finished_at=None if state == "UNKNOWN" else now)


def accept_the_run() -> None:
    """As its endpoint has it after a 202."""
    runs, now = Occurrence.objects.all(), database_time()
    Target.objects.filter(name="reports.build").update(kind="http", url="https://reports.example/")
    runs.update(state="QUEUED", wait_reason=None, generation=1, queued_at=now)
    runs.update(state="RUNNING", fence=1, attempt_count=1, started_at=now)
    with raw_connection().cursor() as cursor:
        cursor.execute(
            "INSERT INTO lease (run_id, due_at, session_id, fence, claim_id, granted_at, ends_by, expires_at)"
            " SELECT id, due_at, '00000000-0000-0000-0000-000000000000', 1, gen_random_uuid(), now(),"
            " now() + interval '1 hour', now() + interval '1 minute' FROM occurrence"
        )


def test_every_route_is_classified() -> None:
    without_id = {route.name for route in api_routes() if not ids_of(route)}
    assert without_id == OF_THE_CALLER | PUBLIC
    assert {key for route in WITH_ID for key in ids_of(route)} <= {
        "schedule_id",
        "run_id",
        "calendar_id",
        "target_id",
    }
    assert all(verbs_of(route) for route in api_routes() if route.name not in PUBLIC)


@pytest.mark.parametrize(("name", "verb"), CALLS)
def test_a_stranger_finds_nothing_and_changes_nothing(
    charlie: APIClient,
    url_of: Any,
    schedule: Schedule,
    calendar: Calendar,
    own_target: Target,
    name: str,
    verb: str,
) -> None:
    answer = charlie.generic(verb, url_of(name), "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    schedule.refresh_from_db()
    assert (schedule.state, schedule.revision) == ("active", 1)
    assert list(Occurrence.objects.values_list("state", flat=True)) == ["PENDING"]
    calendar.refresh_from_db()
    assert (calendar.revision, calendar.days) == (1, ["2026-12-25"])
    before = own_target.sealed
    own_target.refresh_from_db()
    assert (own_target.enabled, own_target.sealed) == (True, before)


@pytest.mark.parametrize(("name", "verb"), CALLS)
def test_what_a_stranger_sends_is_not_even_looked_at(
    charlie: APIClient, url_of: Any, name: str, verb: str
) -> None:
    answer = charlie.generic(verb, url_of(name), "{", content_type="application/json")
    assert answer.status_code == 404


@pytest.mark.parametrize(("name", "verb"), CALLS)
def test_a_viewer_reads_and_does_no_more(bob: APIClient, url_of: Any, name: str, verb: str) -> None:
    answer = bob.generic(verb, url_of(name), "{}", content_type="application/json")
    assert answer.status_code == (200 if verb == "GET" else 403)


@pytest.mark.parametrize(("name", "verb"), CALLS)
def test_the_owner_is_let_through(alice: APIClient, url_of: Any, name: str, verb: str) -> None:
    if name in OF_FAILED_RUNS:
        fail_the_run(OF_FAILED_RUNS[name])
    if name in OF_ACCEPTED_RUNS:
        accept_the_run()
    sent = BODIES.get(name, "{}")
    answer = alice.generic(verb, url_of(name), sent, content_type="application/json", HTTP_IF_MATCH='"1"')
    assert answer.status_code < 300, answer.content


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        *CALLS,
        *(
            (route.name, verb)
            for route in api_routes()
            if route.name in OF_THE_CALLER
            for verb in verbs_of(route)
        ),
    ],
)
def test_nobody_gets_in_without_a_key(url_of: Any, name: str, verb: str) -> None:
    url = reverse(name) if name in OF_THE_CALLER else url_of(name)
    answer = APIClient().generic(verb, url, "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
    assert answer["WWW-Authenticate"] == 'Bearer realm="fencepost"'


def test_lists_hold_the_callers_own(
    alice: APIClient, bob: APIClient, charlie: APIClient, url_of: Any
) -> None:
    for name in ("schedules", "runs", "calendars"):
        assert len(alice.get(reverse(name)).json()["results"]) == 1
        assert len(bob.get(reverse(name)).json()["results"]) == 1
        assert charlie.get(reverse(name)).json()["results"] == []
    seen = [[row["name"] for row in who.get("/api/v1/targets").json()["results"]] for who in (alice, charlie)]
    assert seen == [["billing", "reports.build"], ["reports.build"]]


def test_a_run_filter_by_a_foreign_schedule_is_empty(
    charlie: APIClient, url_of: Any, schedule: Schedule
) -> None:
    assert charlie.get(f"/api/v1/runs?schedule={schedule.id}").json()["results"] == []


class TestSessions:
    """Members signed in to the dashboard use the API under their membership."""

    def test_a_member_reads(self, tenant: Tenant, schedule: Schedule) -> None:
        assert len(_signed_in(tenant).get("/api/v1/schedules").json()["results"]) == 1

    def test_what_changes_something_needs_the_csrf_token(self, tenant: Tenant, url_of: Any) -> None:
        client = _signed_in(tenant)
        refused = client.post(url_of("schedule-pause"), {}, format="json")
        assert refused.status_code == 403
        token = "x" * 32
        client.cookies["csrftoken"] = token
        allowed = client.post(url_of("schedule-pause"), {}, format="json", HTTP_X_CSRFTOKEN=token)
        assert allowed.status_code == 200

    def test_a_user_without_membership_is_refused(self, schedule: Schedule) -> None:
        client = APIClient(enforce_csrf_checks=True)
        client.force_login(factories.UserFactory())
        answer = client.get("/api/v1/schedules")
        assert (answer.status_code, answer["Content-Type"]) == (403, "application/problem+json")

    def test_a_member_of_several_uses_the_chosen_tenant(self, tenant: Tenant, schedule: Schedule) -> None:
        client = _signed_in(tenant)
        user = Membership.objects.get().user
        other = factories.MembershipFactory(user=user, tenant__slug="aaa").tenant
        assert client.get("/api/v1/schedules").json()["results"] == []  # the first by slug
        session = client.session
        session["tenant"] = str(tenant.id)
        session.save()
        assert len(client.get("/api/v1/schedules").json()["results"]) == 1
        session["tenant"] = str(factories.TenantFactory().id)
        session.save()
        assert client.get("/api/v1/schedules").json()["results"] == [], other


def _signed_in(tenant: Tenant) -> APIClient:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(factories.MembershipFactory(tenant=tenant).user)
    return client


def test_two_keys_of_one_tenant_see_the_same(tenant: Tenant, alice: APIClient, schedule: Schedule) -> None:
    assert client_of(tenant).get(f"/api/v1/schedules/{schedule.id}").status_code == 200
