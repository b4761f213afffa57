"""The admin console: state is read there and moves by operations only, each confirmed and audited."""

import html
import json
import re
from uuid import UUID

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from scheduler.core.states import State
from scheduler.credentials import Credentials
from scheduler.models import Occurrence, Schedule, ScheduleState, Target
from tenants.keys import authenticate
from tenants.models import ApiKey, AuditEntry, Membership, Tenant
from tests.support.html import Document
from tests.support.scene import Scene, database_time, make_run, make_schedule

SCHEDULES = "/admin/scheduler/schedule/"
RUNS = "/admin/scheduler/occurrence/"
TARGETS = "/admin/scheduler/target/"
KEYS = "/admin/tenants/apikey/"
OURS = ["schedule", "occurrence", "target", "tenant", "membership", "apikey", "auditentry", "user"]


def _lists() -> list[str]:
    return [
        f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        for model in admin.site._registry
        if model._meta.model_name in OURS
    ]


def test_all_of_ours_is_there() -> None:
    assert len(_lists()) == len(OURS)


def test_people_who_are_not_staff_sign_in_first(scene: Scene) -> None:
    client = Client()
    client.force_login(scene.alice)
    for url in ("/admin/", SCHEDULES, RUNS):
        assert client.get(url).status_code == 302


# Lists ------------------------------------------------------------------------------------------


def test_lists_never_count(scene: Scene, operator: Client) -> None:
    run = make_run(make_schedule(scene.acme))
    ours = [url for url in _lists() if "/auth/" not in url]
    for url in [
        *ours,
        f"{SCHEDULES}?q=acme/",
        f"{RUNS}?q=acme",
        f"{RUNS}?state=SUCCEEDED",
        f"{RUNS}?q={run.id}",
    ]:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert operator.get(url).status_code == 200, url
        assert not [query["sql"] for query in queries if "COUNT(" in query["sql"].upper()], url


def test_a_run_is_found_in_one_partition(scene: Scene, operator: Client) -> None:
    run = make_run(make_schedule(scene.acme))
    with CaptureQueriesContext(connection) as queries:
        assert operator.get(f"{RUNS}{run.id}/change/").status_code == 200
    reads = [query["sql"] for query in queries if 'FROM "occurrence"' in query["sql"]]
    assert reads
    assert all('"due_at"' in sql.split("WHERE")[-1] for sql in reads)


def test_lists_cost_the_same_queries_however_long(scene: Scene, operator: Client) -> None:
    def cost(url: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            operator.get(url)
        return len(queries)

    make_run(make_schedule(scene.acme))
    before = [cost(url) for url in (SCHEDULES, RUNS)]
    for number in range(8):
        make_run(make_schedule(scene.acme, f"schedule-{number}"))
    assert [cost(url) for url in (SCHEDULES, RUNS)] == before


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("acme/", {"nightly-report", "nightly-import"}),
        ("acme/nightly-r", {"nightly-report"}),
        ("umbrella", {"nightly-report"}),
        ("nobody/", set()),
    ],
)
def test_schedules_are_found_by_tenant_and_name(
    query: str, names: set[str], scene: Scene, operator: Client
) -> None:
    for tenant, name in (
        (scene.acme, "nightly-report"),
        (scene.acme, "nightly-import"),
        (scene.other, "nightly-report"),
    ):
        make_schedule(tenant, name)
    page = Document.of(operator.get(SCHEDULES, {"q": query}))
    links = {text for text in page.texts("a") if text.startswith("nightly-")}
    assert links == names


def test_runs_are_found_by_id_schedule_and_tenant(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    run, other = make_run(schedule), make_run(make_schedule(scene.other))
    for query in (str(run.id), str(schedule.id), "acme"):
        page = operator.get(RUNS, {"q": query}).content.decode()
        assert f"{RUNS}{run.id}/" in page
        assert f"{RUNS}{other.id}/" not in page


# Read-only --------------------------------------------------------------------------------------


def test_nothing_of_the_ledger_can_be_added_edited_or_deleted(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    run = make_run(schedule, State.QUEUED)
    for url, row in ((SCHEDULES, schedule), (RUNS, run)):
        assert operator.get(f"{url}add/").status_code == 403
        assert operator.post(f"{url}add/", {}).status_code == 403
        assert operator.post(f"{url}{row.pk}/change/", {"state": "SUCCEEDED", "name": "x"}).status_code == 403
        assert operator.get(f"{url}{row.pk}/delete/").status_code == 403
        assert operator.post(f"{url}{row.pk}/delete/", {"post": "yes"}).status_code == 403
        page = Document.of(operator.get(f"{url}{row.pk}/change/"))
        assert not [box["name"] for box in page.all("input") if box["type"] in ("text", "checkbox", "number")]
    run.refresh_from_db()
    assert run.state == State.QUEUED


def test_a_run_shows_why_and_its_attempts_as_text(scene: Scene, operator: Client) -> None:
    error = {"type": "ValueError", "message": "<b>bad</b>"}
    outcomes = ("lost", "failed")
    run = make_run(make_schedule(scene.acme), State.DEAD_LETTERED, outcomes=outcomes, attempt_error=error)
    page = operator.get(f"{RUNS}{run.id}/change/").content.decode()
    assert "All 2 attempts are used up." in page
    assert str(run.fence) in page
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "<b>bad</b>" not in page


def test_a_schedule_shows_its_definition_instants_and_runs(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme, "<i>markup</i>", description="<i>markup</i>")
    run = make_run(schedule)
    page = operator.get(f"{SCHEDULES}{schedule.id}/change/").content.decode()
    assert "0 9 * * 1-5" in page
    assert f"{RUNS}{run.id}/change/" in page
    assert "<i>markup</i>" not in page


@pytest.mark.parametrize("key", ["x", "01a22dc0-2f97-7304-8388-da9582c905f5", "f" * 32])
def test_a_run_that_is_not_there_redirects_with_a_message(key: str, scene: Scene, operator: Client) -> None:
    assert operator.get(f"{RUNS}{key}/change/").status_code == 302


# Operations -------------------------------------------------------------------------------------


def test_an_operation_asks_first_and_a_link_changes_nothing(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    asked = operator.get(f"{SCHEDULES}{schedule.id}/pause/")
    assert "Pause these schedules?" in asked.content.decode()
    assert Schedule.objects.get().state == ScheduleState.ACTIVE
    operator.get(f"{SCHEDULES}{schedule.id}/pause/", {"confirmed": "1"})
    assert Schedule.objects.get().state == ScheduleState.ACTIVE


@pytest.mark.parametrize(
    ("operation", "state"),
    [("pause", "paused"), ("cancel", "cancelled"), ("run", "active"), ("resume", "active")],
)
def test_operations_from_a_schedules_page(operation: str, state: str, scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    response = operator.post(f"{SCHEDULES}{schedule.id}/{operation}/", {"confirmed": "1"})
    assert response.url == f"{SCHEDULES}{schedule.id}/change/"
    assert Schedule.objects.get().state == state
    assert Occurrence.objects.count() == (1 if operation == "run" else 0)
    if operation != "resume":  # of what was not paused: nothing changed, nothing to note
        assert AuditEntry.objects.latest("id").actor == "operator@example.com"


def test_operations_on_a_selection_reach_that_selection_only(scene: Scene, operator: Client) -> None:
    schedules = [make_schedule(scene.acme, f"schedule-{number}") for number in range(3)]
    selection = {
        "action": "pause",
        "index": "0",
        "select_across": "1",  # "all that match": ignored on purpose
        "_selected_action": [str(schedule.id) for schedule in schedules[:2]],
    }
    asked = Document.of(operator.post(SCHEDULES, selection))
    assert len(asked.all("input", name="_selected_action")) == 2
    response = operator.post(SCHEDULES, {**selection, "confirmed": "1"})
    assert response.url == SCHEDULES
    states = dict(Schedule.objects.values_list("name", "state"))
    assert states == {"schedule-0": "paused", "schedule-1": "paused", "schedule-2": "active"}


def test_runs_are_cancelled_and_refusals_are_told(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    waiting, over = make_run(schedule, State.QUEUED), make_run(schedule)
    selection = {"action": "cancel", "index": "0", "_selected_action": [str(waiting.id), str(over.id)]}
    response = operator.post(RUNS, {**selection, "confirmed": "1"}, follow=True)
    told = [str(message) for message in response.context["messages"]]
    assert len(told) == 2
    assert sum("done" in message for message in told) == 1
    waiting.refresh_from_db()
    assert waiting.state == State.CANCELLED


def test_failed_runs_are_dismissed_and_redriven(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    failed = [make_run(schedule, State.DEAD_LETTERED, outcomes=("failed",)) for _ in range(2)]
    for verb in ("dismiss", "redrive"):
        selection = {"action": verb, "index": "0", "_selected_action": [str(run.id) for run in failed]}
        operator.post(RUNS, {**selection, "confirmed": "1"})
        assert AuditEntry.objects.filter(action=f"run.{verb}").count() == 2
    for run in failed:
        run.refresh_from_db()
    assert {run.state for run in failed} == {State.PENDING}


@pytest.mark.parametrize(
    ("verb", "state"),
    [("succeeded", State.SUCCEEDED), ("failed", State.FAILED), ("retry", State.PENDING)],
)
def test_unknown_outcomes_are_reconciled(verb: str, state: State, scene: Scene, operator: Client) -> None:
    run = make_run(make_schedule(scene.acme), State.UNKNOWN, outcomes=("lost",))
    operator.post(f"{RUNS}{run.pk}/{verb}/", {"confirmed": "1"})
    run.refresh_from_db()
    assert run.state == state
    entry = AuditEntry.objects.get(action="run.reconcile")
    assert (entry.before, entry.after["state"]) == ({"state": "UNKNOWN"}, state)


def test_read_only_staff_look_and_do_not_touch(scene: Scene, reader: Client) -> None:
    schedule = make_schedule(scene.acme)
    run = make_run(schedule, State.QUEUED)
    for url, row, operation in ((SCHEDULES, schedule, "pause"), (RUNS, run, "cancel")):
        assert reader.get(url).status_code == 200
        page = reader.get(f"{url}{row.pk}/change/")
        assert page.status_code == 200
        assert f"/{operation}/" not in page.content.decode()
        assert reader.post(f"{url}{row.pk}/{operation}/", {"confirmed": "1"}).status_code == 403
        selection = {"action": operation, "index": "0", "_selected_action": [str(row.pk)], "confirmed": "1"}
        reader.post(url, selection)
    assert Schedule.objects.get().state == ScheduleState.ACTIVE
    assert not AuditEntry.objects.filter(actor="reader@example.com").exists()


def test_operations_need_a_token(scene: Scene, operator: Client) -> None:
    schedule = make_schedule(scene.acme)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="operator@example.com"))
    assert strict.post(f"{SCHEDULES}{schedule.id}/pause/", {"confirmed": "1"}).status_code == 403


# Accounts ---------------------------------------------------------------------------------------


def test_a_tenant_is_made_and_edited_with_audit(scene: Scene, operator: Client) -> None:
    made = {"slug": "wayne", "name": "Wayne", "payload_max_bytes": "1000", "max_schedules": "5"}
    assert operator.post("/admin/tenants/tenant/add/", made).status_code == 302
    tenant = Tenant.objects.get(slug="wayne")
    operator.post(
        f"/admin/tenants/tenant/{tenant.pk}/change/", {**made, "slug": "other", "max_schedules": "6"}
    )
    tenant.refresh_from_db()
    assert (tenant.slug, tenant.max_schedules) == ("wayne", 6)
    created, edited = AuditEntry.objects.filter(tenant=tenant).order_by("id")
    assert (created.action, edited.action) == ("tenant.create", "tenant.edit")
    assert (edited.before, edited.after) == ({"max_schedules": 5}, {"max_schedules": 6})
    assert operator.post(f"/admin/tenants/tenant/{tenant.pk}/delete/", {"post": "yes"}).status_code == 403


def test_members_come_and_go_with_audit(scene: Scene, operator: Client) -> None:
    member = {"user": scene.charlie.pk, "tenant": str(scene.acme.pk), "role": "viewer"}
    assert operator.post("/admin/tenants/membership/add/", member).status_code == 302
    membership = Membership.objects.get(user=scene.charlie, tenant=scene.acme)
    page = f"/admin/tenants/membership/{membership.pk}"
    operator.post(f"{page}/change/", {"role": "operator"})
    membership.refresh_from_db()
    assert membership.role == "operator"
    operator.post(f"{page}/delete/", {"post": "yes"})
    assert not Membership.objects.filter(pk=membership.pk).exists()
    actions = (
        AuditEntry.objects.filter(actor="operator@example.com")
        .order_by("id")
        .values_list("action", flat=True)
    )
    assert list(actions) == ["membership.set", "membership.set", "membership.remove"]


def test_an_api_key_is_shown_once_and_revoked_for_good(scene: Scene, operator: Client) -> None:
    made = {"tenant": str(scene.acme.pk), "name": "deploys", "role": "editor"}
    shown = operator.post(f"{KEYS}add/", made)
    (text,) = re.findall(r"fp_[0-9a-f]{12}_[\w-]{43}", shown.content.decode())
    assert "no-store" in shown.headers["Cache-Control"]
    assert not any(text in str(cookie) for cookie in operator.cookies.values())
    key = ApiKey.objects.get()
    assert authenticate(text, now=database_time()) == key
    for url in (KEYS, f"{KEYS}{key.pk}/change/"):
        page = operator.get(url).content.decode()
        assert key.prefix in page
        assert text not in page
        assert key.secret_hash not in page
    operator.post(f"{KEYS}{key.pk}/revoke/", {"confirmed": "1"})
    assert authenticate(text, now=database_time()) is None


def test_a_target_is_given_to_tenants_with_audit(scene: Scene, operator: Client) -> None:
    edit = {"description": "Reports", "enabled": "on", "tenants": [str(scene.acme.pk)], "name": "renamed"}
    assert operator.post(f"{TARGETS}{scene.target.pk}/change/", edit).status_code == 302
    target = Target.objects.get()
    assert (target.name, target.everyone, target.enabled) == ("reports.build", False, True)
    assert list(target.tenants.all()) == [scene.acme]
    entry = AuditEntry.objects.latest("id")
    assert (entry.before["everyone"], entry.after["everyone"], entry.after["tenants"]) == (
        True,
        False,
        ["acme"],
    )


def test_the_class_of_an_existing_task_is_the_operators_to_choose(scene: Scene, operator: Client) -> None:
    Target.objects.update(kind="task")
    edit = {"description": "", "enabled": "on", "everyone": "on", "side_effects": "unsafe_external"}
    assert operator.post(f"{TARGETS}{scene.target.pk}/change/", edit).status_code == 302
    assert Target.objects.get().side_effects == "unsafe_external"
    entry = AuditEntry.objects.get(action="target.edit")
    assert (entry.before["side_effects"], entry.after["side_effects"]) == ("idempotent", "unsafe_external")
    Target.objects.update(kind="job", side_effects="idempotent")
    operator.post(f"{TARGETS}{scene.target.pk}/change/", edit)
    assert Target.objects.get().side_effects == "idempotent", "a job declares its own"


def test_an_http_target_is_made_and_its_secret_shown_once(scene: Scene, operator: Client) -> None:
    form = {
        "name": "billing", "url": "https://billing.example/hook", "side_effects": "idempotent",
        "secret_headers": "X-Api-Key: canary-77\nX-Old: old", "everyone": "on",
    }  # fmt: skip
    shown = operator.post(f"{TARGETS}add/", form)
    (secret,) = re.findall(r"whsec_[\w+/=]+", html.unescape(shown.content.decode()))
    assert "no-store" in shown.headers["Cache-Control"]
    target = Target.objects.get(name="billing")
    assert (target.everyone, target.owner, target.kind) == (True, None, "http")
    assert Credentials.open(target.sealed).headers == {"X-Api-Key": "canary-77", "X-Old": "old"}

    page = f"{TARGETS}{target.pk}/change/"
    edit = {**form, "secret_headers": "X-Old:", "timeout_s": "20", "enabled": "on"}
    assert operator.post(page, edit).status_code == 302
    target.refresh_from_db()
    opened = Credentials.open(target.sealed)
    assert (target.timeout_s, opened.headers) == (20, {"X-Api-Key": "canary-77"})
    assert opened.signing[0].text == secret
    for url in (TARGETS, page):
        text = html.unescape(operator.get(url).content.decode())
        assert "canary-77" not in text
        assert secret not in text
        assert target.sealed not in text
    told = json.dumps([[entry.before, entry.after] for entry in AuditEntry.objects.all()])
    assert "canary-77" not in told
    assert secret not in told


def test_a_refused_target_is_told_at_its_field(scene: Scene, operator: Client) -> None:
    form = {
        "name": "billing",
        "url": "http://127.0.0.1/",
        "side_effects": "idempotent",
        "secret_headers": "Host: x",
    }
    page = operator.post(f"{TARGETS}add/", form)
    assert page.status_code == 200
    assert "127.0.0.1 is loopback" in page.content.decode()
    assert "this header is Fencepost" in page.content.decode()
    assert not Target.objects.filter(name="billing").exists()


def test_the_audit_log_is_read_only(scene: Scene, operator: Client) -> None:
    entry = AuditEntry.objects.latest("id")
    page = f"/admin/tenants/auditentry/{entry.pk}"
    assert operator.get(f"{page}/change/").status_code == 200
    assert operator.post(f"{page}/change/", {"actor": "x"}).status_code == 403
    assert operator.post(f"{page}/delete/", {"post": "yes"}).status_code == 403


# Policy -----------------------------------------------------------------------------------------


def test_only_the_console_may_evaluate_and_nothing_may_run_inline(scene: Scene, operator: Client) -> None:
    console = operator.get("/admin/").headers["Content-Security-Policy"]
    scripts = next(part for part in console.split(";") if part.strip().startswith("script-src"))
    assert "'unsafe-eval'" in scripts
    assert "'unsafe-inline'" not in scripts
    assert "unsafe" not in Client().get("/login").headers["Content-Security-Policy"]


def test_ids_of_schedules_and_runs_differ_in_kind(scene: Scene) -> None:
    """The search for runs tells them apart by that."""
    schedule = make_schedule(scene.acme)
    assert (UUID(str(schedule.id)).version, make_run(schedule).id.version) == (4, 7)
