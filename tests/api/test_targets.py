"""HTTP targets over HTTP: who may have them, what they may be, and that their secrets never come back."""

import json
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from rest_framework.test import APIClient

from scheduler.credentials import Credentials, new_signing_secret
from scheduler.models import Target
from scheduler.orm import database_time, raw_connection
from tenants.models import AuditEntry, IdempotencyRecord, Role, Tenant
from tests import factories
from tests.api.people import client_of

pytestmark = pytest.mark.django_db

TARGETS = "/api/v1/targets"
CANARY = "canary-9d27"


def draft(**changes: Any) -> dict[str, Any]:
    return {"name": "billing", "url": "https://billing.example/hook", **changes}


def created(client: APIClient, **changes: Any) -> dict[str, Any]:
    answer = client.post(TARGETS, draft(**changes), format="json")
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def errors(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.content
    return [(error["field"], error["code"]) for error in answer.json()["errors"]]


def opened(name: str = "billing") -> Credentials:
    return Credentials.open(Target.objects.get(name=name).sealed)


def test_an_admin_registers_one_and_sees_its_secret_once(alice: APIClient, tenant: Tenant) -> None:
    answer = alice.post(TARGETS, draft(headers={"X-Api-Key": CANARY}), format="json")
    body = answer.json()
    assert answer.status_code == 201
    assert answer["Location"] == f"{TARGETS}/{body['id']}"
    assert body["signing_secret"] == opened().signing[0].text
    assert opened().headers == {"X-Api-Key": CANARY}
    again = alice.get(answer["Location"]).json()
    assert "signing_secret" not in again
    assert again == {key: value for key, value in body.items() if key != "signing_secret"}
    assert (again["headers"], again["signing_secrets"]) == (["X-Api-Key"], [{"signs_until": None}])
    target = Target.objects.get(name="billing")
    assert (target.owner, target.everyone, target.kind) == (tenant, False, "http")


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.EDITOR])
def test_nobody_else_does(tenant: Tenant, role: Role) -> None:
    assert client_of(tenant, role).post(TARGETS, draft(), format="json").status_code == 403
    assert Target.objects.count() == 0


def test_a_schedule_may_name_it_and_a_strangers_may_not(alice: APIClient, charlie: APIClient) -> None:
    created(alice)
    body = factories.body(target="billing", payload={"anything": ["goes"]})
    assert alice.post("/api/v1/schedules", body, format="json").status_code == 201
    assert errors(charlie.post("/api/v1/schedules", body, format="json")) == [("target", "unknown_target")]


def test_tenants_may_use_the_same_name(alice: APIClient, charlie: APIClient) -> None:
    created(alice)
    created(charlie)
    assert errors(alice.post(TARGETS, draft(), format="json")) == [("name", "taken")]
    assert errors(alice.post(TARGETS, draft(name="reports.build"), format="json")) == [("name", "taken")]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", "", "invalid_text"),
        ("name", "a b", "invalid_text"),
        ("name", None, "invalid_type"),
        ("kind", "job", "invalid_choice"),
        ("url", None, "invalid_type"),
        ("url", "billing.example", "invalid_url"),
        ("url", "ftp://billing.example/", "invalid_url"),
        ("url", "https:///hook", "invalid_url"),
        ("url", "https://user:word@billing.example/", "invalid_url"),
        ("url", "https://billing.example:0/", "invalid_url"),
        ("url", "https://billing.example:99999/", "invalid_url"),
        ("url", "https://billing.example/#top", "invalid_url"),
        ("url", "https://billing.example/a b", "invalid_url"),
        ("url", "https://bill\u00fcng.example/", "invalid_url"),
        ("url", "https://[fe80::1%25eth0]/", "not_allowed"),
        ("url", "https://bi*ling.example/", "invalid_url"),
        ("url", "https://billing.example/\r\nX-A: b", "invalid_url"),
        ("url", "https://billing.example/" + "x" * 2000, "invalid_url"),
        ("url", "http://127.0.0.1/", "not_allowed"),
        ("url", "http://[::ffff:10.0.0.1]/", "not_allowed"),
        ("url", "http://169.254.169.254/latest/meta-data", "not_allowed"),
        ("side_effects", "none", "invalid_choice"),
        ("timeout_s", 0, "out_of_range"),
        ("timeout_s", True, "invalid_type"),
        ("heartbeat_timeout_s", 10**9, "out_of_range"),
        ("description", "\u0000", "invalid_text"),
        ("signing_secret", "whsec_short", "invalid_secret"),
        ("signing_secret", "c2VjcmV0" * 5, "invalid_secret"),
        ("headers", [], "invalid_type"),
        ("headers", {f"X-{n}": "v" for n in range(21)}, "invalid_type"),
        ("headers", {"X-A": "v", "x-a": "w"}, "repeated"),
        ("headers", {"X A": "v"}, "invalid_header"),
    ],
)
def test_what_cannot_be_is_refused_by_name(alice: APIClient, field: str, value: Any, code: str) -> None:
    assert errors(alice.post(TARGETS, draft(**{field: value}), format="json")) == [(field, code)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "line\r\nbreak"),
        ("X-A", " outer"),
        ("X-A", ""),
        ("X-A", 7),
        ("X-A", "\u00fc"),
        ("Host", "v"),
        ("Content-Length", "0"),
        ("webhook-signature", "v1,x"),
        ("X-Fencepost-Fence", "1"),
        ("Proxy-Authorization", "v"),
    ],
)
def test_headers_that_would_change_the_call_are_refused(alice: APIClient, name: str, value: Any) -> None:
    answer = alice.post(TARGETS, draft(headers={name: value}), format="json")
    (error,) = answer.json()["errors"]
    assert error["field"] == f"headers.{name}"


def test_unknown_and_missing_fields_are_named(alice: APIClient) -> None:
    assert errors(alice.post(TARGETS, {}, format="json")) == [("name", "required"), ("url", "required")]
    assert errors(alice.post(TARGETS, draft(secrt="x"), format="json")) == [("secrt", "unknown_field")]


class TestEditing:
    def test_given_fields_replace_the_old_ones(self, alice: APIClient) -> None:
        made = created(alice, headers={"X-Old": "old", "X-Kept": "kept"})
        changes = {"timeout_s": 20, "headers": {"x-old": None, "X-New": "new"}}
        edited = alice.patch(f"{TARGETS}/{made['id']}", changes, format="json").json()
        assert (edited["timeout_s"], edited["headers"]) == (20, ["X-Kept", "X-New"])
        assert opened().headers == {"X-Kept": "kept", "X-New": "new"}

    @pytest.mark.parametrize("url", ["https://evil.example/hook", "http://billing.example/hook"])
    def test_secrets_do_not_follow_to_another_host(self, alice: APIClient, url: str) -> None:
        """Whoever may edit the address must not learn what nobody may read."""
        made = created(alice, headers={"X-Api-Key": CANARY})
        alice.patch(f"{TARGETS}/{made['id']}", {"url": url, "headers": {"X-B": "b"}}, format="json")
        assert opened().headers == {"X-B": "b"}

    def test_they_stay_on_another_path(self, alice: APIClient) -> None:
        made = created(alice, headers={"X-Api-Key": CANARY})
        alice.patch(f"{TARGETS}/{made['id']}", {"url": "https://billing.example/other"}, format="json")
        assert opened().headers == {"X-Api-Key": CANARY}

    def test_switched_off_no_schedule_may_name_it(self, alice: APIClient) -> None:
        made = created(alice)
        for _ in range(2):
            assert alice.delete(f"{TARGETS}/{made['id']}").status_code == 204
        assert not alice.get(f"{TARGETS}/{made['id']}").json()["enabled"]
        answer = alice.post("/api/v1/schedules", factories.body(target="billing"), format="json")
        assert errors(answer) == [("target", "unknown_target")]
        alice.patch(f"{TARGETS}/{made['id']}", {"enabled": True}, format="json")
        assert (
            alice.post("/api/v1/schedules", factories.body(target="billing"), format="json").status_code
            == 201
        )

    def test_the_platforms_are_read_and_not_changed(self, alice: APIClient, target: Target) -> None:
        url = f"{TARGETS}/{target.id}"
        assert alice.get(url).json()["own"] is False
        for answer in (alice.patch(url, {}, format="json"), alice.delete(url)):
            assert answer.status_code == 403


class TestRotation:
    def test_the_old_secret_signs_on_for_a_day(self, alice: APIClient) -> None:
        made = created(alice)
        answer = alice.post(f"{TARGETS}/{made['id']}/rotate-secret", {}, format="json").json()
        first, second = answer["signing_secrets"]
        assert first["signs_until"] is None
        now = database_time()
        assert opened().valid_at(now) == [answer["signing_secret"], made["signing_secret"]]
        assert opened().valid_at(now + timedelta(hours=25)) == [answer["signing_secret"]]
        assert second["signs_until"] > now.isoformat()

    def test_ones_own_secret_and_overlap(self, alice: APIClient) -> None:
        made, own = created(alice), new_signing_secret()
        body = {"signing_secret": own, "overlap_s": 0}
        answer = alice.post(f"{TARGETS}/{made['id']}/rotate-secret", body, format="json").json()
        assert answer["signing_secret"] == own
        assert opened().valid_at(database_time()) == [own]

    @pytest.mark.parametrize("body", [{"overlap_s": -1}, {"overlap_s": "1"}, {"overlap": 1}])
    def test_what_cannot_be_is_refused(self, alice: APIClient, body: Any) -> None:
        made = created(alice)
        assert alice.post(f"{TARGETS}/{made['id']}/rotate-secret", body, format="json").status_code == 400


class TestSecrets:
    """One canary in a header, one as signing secret, one in the query: looked for wherever anybody reads."""

    def test_they_are_nowhere_to_be_read(
        self, alice: APIClient, bob: APIClient, caplog: pytest.LogCaptureFixture, capsys: Any
    ) -> None:
        caplog.set_level(0)
        secret = new_signing_secret()
        kept = {"Idempotency-Key": "once"}
        made = alice.post(
            TARGETS,
            draft(headers={"X-Api-Key": CANARY}, signing_secret=secret, url="https://b.example/?t=" + CANARY),
            format="json",
            headers=kept,
        ).json()
        url = f"{TARGETS}/{made['id']}"
        alice.post(f"{url}/rotate-secret", {"signing_secret": new_signing_secret()}, format="json")
        answers = [who.get(address) for who in (bob,) for address in (TARGETS, url)]
        answers += [alice.patch(url, {"headers": {"X-Other": "v"}}, format="json"), alice.get(url)]
        answers += [alice.patch(url, {"headers": {"X-Other": f"{CANARY}\n"}}, format="json")]
        told = [answer.content.decode().replace(f"?t={CANARY}", "") for answer in answers[2:]]
        told += [answer.content.decode() for answer in answers[:2]]
        told += [repr(Target.objects.get(name="billing")), repr(opened()), caplog.text, *capsys.readouterr()]
        told += [json.dumps(entry, default=str) for entry in AuditEntry.objects.values()]
        told += [str(row) for row in IdempotencyRecord.objects.values()]
        with raw_connection().cursor() as cursor:
            rows = cursor.execute("SELECT target::text FROM target").fetchall()
        told += [str(row).replace(f"?t={CANARY}", "") for row in rows]
        assert len(rows) == 2
        for text in told:
            assert CANARY not in text
            assert secret not in text

    def test_a_key_that_was_lost_is_said_and_shows_nothing(
        self, alice: APIClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = created(alice)
        monkeypatch.setattr(settings, "FENCEPOST", replace(settings.FENCEPOST, secrets_keys=("x" * 32,)))
        url = f"{TARGETS}/{made['id']}"
        assert alice.get(url).json()["headers"] is None
        answer = alice.post(f"{url}/rotate-secret", {}, format="json")
        assert (answer.status_code, answer.json()["code"]) == (409, "unreadable_credentials")

    def test_all_are_put_under_a_new_key_or_none(
        self, alice: APIClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def under(*keys: str) -> None:
            monkeypatch.setattr(settings, "FENCEPOST", replace(settings.FENCEPOST, secrets_keys=keys))

        old, new = settings.FENCEPOST.secrets_keys[0], "n" * 32
        created(alice, headers={"X-Api-Key": CANARY})
        before = Target.objects.get(name="billing").sealed
        under(new)
        with pytest.raises(CommandError, match="nothing was changed"):
            call_command("reseal")
        assert Target.objects.get(name="billing").sealed == before
        under(new, old)
        call_command("reseal", stdout=StringIO())
        under(new)
        assert opened().headers == {"X-Api-Key": CANARY}
