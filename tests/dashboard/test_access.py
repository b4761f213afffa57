"""Who gets where. Every route of the dashboard is tried; one that is not classified here fails."""

import re
from dataclasses import dataclass
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from scheduler.core.states import State
from scheduler.models import Occurrence, Schedule
from tenants.dashboard.urls import urlpatterns
from tenants.models import AuditEntry, Role
from tenants.operations import set_membership
from tests.support.html import Document
from tests.support.scene import ACTOR, PASSWORD, Scene, make_run, make_schedule, make_user

# Route -> (method, the lowest role that may). None: for everybody who is or is not signed in.
ROUTES: dict[str, tuple[str, Role | None]] = {
    "home": ("GET", Role.VIEWER),
    "sign_in": ("GET", None),
    "sign_out": ("POST", None),
    "switch_tenant": ("POST", Role.VIEWER),
    "create_schedule": ("POST", Role.EDITOR),
    "preview": ("POST", Role.EDITOR),
    "schedule": ("GET", Role.VIEWER),
    "pause": ("POST", Role.OPERATOR),
    "resume": ("POST", Role.OPERATOR),
    "run_now": ("POST", Role.OPERATOR),
    "runs": ("GET", Role.VIEWER),
    "settle_runs": ("POST", Role.OPERATOR),
    "run": ("GET", Role.VIEWER),
    "cancel_run": ("POST", Role.OPERATOR),
    "redrive_run": ("POST", Role.OPERATOR),
    "reconcile_run": ("POST", Role.OPERATOR),
    "dismiss_run": ("POST", Role.OPERATOR),
}
GUARDED = [name for name, (_, role) in ROUTES.items() if role]
POSTED = [name for name, (method, _) in ROUTES.items() if method == "POST"]
FOR_OPERATORS = [name for name, (_, role) in ROUTES.items() if role and role != Role.VIEWER]


@dataclass(frozen=True, kw_only=True)
class Own:
    """What Alice's tenant has."""

    schedule: Schedule
    run: Occurrence

    def url(self, route: str) -> str:
        ids = {"schedule_id": self.schedule.id, "run_id": self.run.id}
        return reverse(f"dashboard:{route}", kwargs={name: ids[name] for name in _parameters(route)})


def _parameters(route: str) -> list[str]:
    (pattern,) = (pattern for pattern in urlpatterns if pattern.name == route)
    return re.findall(r"<uuid:(\w+)>", str(pattern.pattern))


WITH_IDS = [pattern.name for pattern in urlpatterns if "<" in str(pattern.pattern)]


@pytest.fixture
def own(scene: Scene) -> Own:
    schedule = make_schedule(scene.acme)
    return Own(schedule=schedule, run=make_run(schedule, State.PENDING))


def _ask(client: Client, own: Own, route: str, **extra: str) -> object:
    method, _ = ROUTES[route]
    return client.generic(method, own.url(route), **extra)


def test_every_route_is_classified() -> None:
    assert {pattern.name for pattern in urlpatterns} == set(ROUTES)


@pytest.mark.parametrize("route", GUARDED)
def test_strangers_sign_in_first(route: str, own: Own) -> None:
    response = _ask(Client(), own, route)
    assert response.status_code == 302
    assert response.url.startswith("/login?next=/")


def test_a_fragment_sends_the_whole_page_to_sign_in(own: Own) -> None:
    page = f"http://testserver{own.url('run')}"
    response = Client().get(own.url("run"), headers={"HX-Request": "true", "HX-Current-URL": page})
    assert response.headers["HX-Redirect"] == f"/login?next={own.url('run')}"


@pytest.mark.parametrize("route", WITH_IDS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_tenants_id_is_not_found(route: str, method: str, own: Own, charlie: Client) -> None:
    allowed, _ = ROUTES[route]
    response = charlie.generic(method, own.url(route))
    assert response.status_code == (404 if method == allowed else 405)
    unknown = Own(schedule=Schedule(id=uuid4()), run=Occurrence(id=uuid4()))
    assert charlie.generic(method, unknown.url(route)).status_code == response.status_code


def test_another_tenants_filter_is_not_found(own: Own, charlie: Client) -> None:
    assert charlie.get(f"/runs?schedule={own.schedule.id}").status_code == 404


def test_another_tenants_lists_are_empty(own: Own, charlie: Client) -> None:
    for url in ("/", "/runs"):
        assert own.schedule.name not in charlie.get(url).content.decode()


@pytest.mark.parametrize("route", FOR_OPERATORS)
def test_a_viewer_is_refused_and_nothing_is_written(route: str, own: Own, bob: Client) -> None:
    entries = AuditEntry.objects.count()
    response = _ask(bob, own, route)
    assert response.status_code == 403
    assert "Your role does not allow this" in response.content.decode()
    assert AuditEntry.objects.count() == entries


def test_a_viewer_sees_no_buttons(own: Own, alice: Client, bob: Client) -> None:
    for url, label in (("/", "New schedule"), (own.url("schedule"), "Run now"), (own.url("run"), "Cancel")):
        assert label in alice.get(url).content.decode()
        assert label not in bob.get(url).content.decode()


def test_an_operator_runs_but_does_not_create(scene: Scene, own: Own) -> None:
    user = make_user("olivia")
    set_membership(scene.acme, user, Role.OPERATOR, actor=ACTOR)
    client = _client(user)
    assert _ask(client, own, "pause").status_code == 302
    assert _ask(client, own, "create_schedule").status_code == 403
    assert client.get("/schedules/new").status_code == 403


@pytest.mark.parametrize("route", POSTED)
def test_posts_without_a_token_are_refused(route: str, scene: Scene, own: Own) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(scene.alice)
    response = _ask(client, own, route)
    assert response.status_code == 403
    assert "This form is no longer valid" in response.content.decode()


@pytest.mark.parametrize("route", ["home", "schedule", "run", "runs"])
def test_pages_are_kept_by_no_cache(route: str, own: Own, alice: Client) -> None:
    assert "no-store" in alice.get(own.url(route)).headers["Cache-Control"]


def test_a_user_without_a_tenant_is_told_so(db: None) -> None:
    response = _client(make_user("nora")).get("/")
    assert response.status_code == 403
    assert "You belong to no tenant yet" in response.content.decode()


# Signing in and out, several tenants ---------------------------------------------------------------


def test_sign_in_by_email_and_out_again(scene: Scene) -> None:
    client = Client()
    form = {"username": "alice@example.com", "password": PASSWORD, "next": "/runs"}
    assert client.post("/login", form).url == "/runs"
    assert client.get("/login").url == "/"
    assert client.post("/logout").url == "/login"
    assert client.get("/").status_code == 302


def test_sign_in_goes_to_no_foreign_site(scene: Scene) -> None:
    form = {"username": "alice@example.com", "password": PASSWORD, "next": "https://evil.example/"}
    assert Client().post("/login", form).url == "/"


def test_a_wrong_password_is_said_beside_no_field(scene: Scene) -> None:
    response = Client().post("/login", {"username": "alice@example.com", "password": "wrong"})
    assert "correct username and password" in Document.of(response).texts("div", role="alert")[0]


def test_a_member_of_two_tenants_switches(scene: Scene, alice: Client) -> None:
    set_membership(scene.other, scene.alice, Role.VIEWER, actor=ACTOR)
    make_schedule(scene.other, "umbrella-report")
    assert "umbrella-report" not in alice.get("/").content.decode()
    assert alice.post("/tenant", {"tenant": "umbrella"}).status_code == 302
    page = alice.get("/").content.decode()
    assert "umbrella-report" in page
    assert "New schedule" not in page


@pytest.mark.parametrize("slug", ["umbrella", "no-such-tenant", ""])
def test_nobody_switches_to_a_tenant_that_is_not_theirs(slug: str, scene: Scene, alice: Client) -> None:
    assert alice.post("/tenant", {"tenant": slug}).status_code == 404


def _client(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
