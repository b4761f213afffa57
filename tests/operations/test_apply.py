"""`apply_schedules` and `sync_targets`, and the commands that people call them by."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from scheduler.errors import ValidationFailed
from scheduler.models import Schedule, Target
from scheduler.operations import AppliedChange, apply_schedules, create_schedule, sync_targets
from scheduler.worker.registry import JobSpec
from tenants.models import ApiKey, Tenant
from tests import factories
from tests.factories import ACTOR, body, every

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    factories.TargetFactory()
    return factories.TenantFactory(slug="acme")


def apply(
    tenant: Tenant, *drafts: dict[str, Any], dry_run: bool = False, prune: bool = False
) -> dict[str, str]:
    changes = apply_schedules(tenant, drafts, dry_run=dry_run, prune=prune, actor=ACTOR)
    return {change.name: change.action for change in changes}


class TestApply:
    def test_is_idempotent_by_name(self, tenant: Tenant) -> None:
        drafts = [body(name="a"), body(name="b", trigger=every(60))]
        assert apply(tenant, *drafts) == {"a": "created", "b": "created"}
        assert apply(tenant, *drafts) == {"a": "unchanged", "b": "unchanged"}
        assert set(Schedule.objects.values_list("revision", flat=True)) == {1}

    def test_shows_what_an_edit_changes(self, tenant: Tenant) -> None:
        apply(tenant, body(timeout_s=10))
        (change,) = apply_schedules(tenant, [body(overlap="allow")], dry_run=False, prune=False, actor=ACTOR)
        assert change.action == "edited"
        assert {(field.field, field.before, field.after) for field in change.changes} == {
            ("timeout_s", 10, 300),
            ("overlap", "skip", "allow"),
        }

    def test_a_dry_run_tells_the_same_and_does_nothing(self, tenant: Tenant) -> None:
        apply(tenant, body(name="a"), body(name="b"))
        told = apply(tenant, body(name="a", timeout_s=5), body(name="c"), dry_run=True, prune=True)
        assert told == {"a": "edited", "c": "created", "b": "cancelled"}
        assert set(Schedule.objects.values_list("name", "revision", "state")) == {
            ("a", 1, "active"),
            ("b", 1, "active"),
        }

    def test_prunes_what_it_made_itself(self, tenant: Tenant) -> None:
        apply(tenant, body(name="a"), body(name="b"))
        by_hand = create_schedule(tenant, body(name="by hand"), actor=factories.Actor(name="alice"))
        assert apply(tenant, body(name="a"), prune=True) == {"a": "unchanged", "b": "cancelled"}
        by_hand.refresh_from_db()
        assert by_hand.state == "active"

    def test_is_all_or_nothing_and_names_the_place(self, tenant: Tenant) -> None:
        with pytest.raises(ValidationFailed) as caught:
            apply(tenant, body(name="a"), body(name="b", target="nope"), body(name="c", overlap="x"))
        assert [error.field for error in caught.value.errors] == ["schedules.1.target", "schedules.2.overlap"]
        assert not Schedule.objects.exists()

    def test_a_name_may_stand_once(self, tenant: Tenant) -> None:
        with pytest.raises(ValidationFailed):
            apply(tenant, body(name="a"), body(name="a"))

    def test_a_moment_that_has_passed_stays_as_it_is(self, tenant: Tenant) -> None:
        draft = body(trigger={"once": {"at": "2030-01-01T00:00:00Z"}})
        apply(tenant, draft)
        passed = {"once": {"at": "2020-01-01T00:00:00Z"}}
        revision = Schedule.objects.get().revisions.get()
        revision.trigger = passed
        revision.save()
        assert apply(tenant, body(trigger=passed)) == {"nightly-report": "unchanged"}


def spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "reports.build",
        "function": print,
        "retry": {"max_attempts": 2},
        "timeout_s": 60,
        "side_effects": "idempotent",
        "parameters": {"properties": {}},
        "description": "Builds.",
    }
    return JobSpec(**{**values, **changes})


class TestSyncTargets:
    def test_makes_and_updates_targets_for_everyone(self) -> None:
        assert _sync(spec()) == ["created"]
        assert _sync(spec()) == ["unchanged"]
        assert _sync(spec(timeout_s=90)) == ["edited"]
        target = Target.objects.get()
        assert (target.everyone, target.timeout_s, target.retry) == (True, 90, {"max_attempts": 2})

    def test_leaves_alone_whom_an_operator_allows(self) -> None:
        _sync(spec())
        Target.objects.update(everyone=False)
        _sync(spec(timeout_s=90))
        assert not Target.objects.get().everyone


def _sync(*specs: JobSpec) -> list[str]:
    changes: list[AppliedChange] = sync_targets({one.name: one for one in specs}, actor=ACTOR)
    return [change.action for change in changes]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "schedules.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def command(*words: str) -> str:
    output = io.StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


FILE = """
schedules:
  - name: hello
    target: demo.record
    payload: {seconds: 1}
    trigger: {interval: {every_s: 10}}
    start_at: 2026-01-01T00:00:00Z
"""


class TestCommands:
    def test_apply_makes_targets_and_schedules(self, tenant: Tenant, write: Any) -> None:
        path = write(FILE)
        assert "+ schedule hello created" in command("apply", path, "--tenant", "acme")
        assert "= schedule hello unchanged" in command("apply", path)
        assert Target.objects.get(name="demo.record").everyone

    def test_apply_shows_a_diff_without_acting(self, tenant: Tenant, write: Any) -> None:
        command("apply", write(FILE))
        told = command("apply", write(FILE.replace("every_s: 10", "every_s: 20")), "--dry-run")
        assert "~ schedule hello edited" in told
        assert "    trigger: {" in told
        assert Schedule.objects.get().revision == 1

    def test_a_dry_run_into_an_empty_database_leaves_it_empty(self, write: Any) -> None:
        factories.TenantFactory(slug="acme")
        assert "+ schedule hello created" in command("apply", write(FILE), "--dry-run")
        assert not Schedule.objects.exists()
        assert not Target.objects.exists()

    def test_without_a_file_the_targets_alone_are_brought_in_line(self, tenant: Tenant) -> None:
        assert "+ target demo.record created" in command("apply")
        assert not Schedule.objects.exists()
        with pytest.raises(CommandError, match="FILE"):
            command("apply", "--prune")

    def test_the_examples_apply(self, tenant: Tenant) -> None:
        told = command("apply", "examples/schedules.yaml")
        assert "+ schedule hello-every-10-seconds created" in told

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "x",
            "schedules: 1",
            "schedules: [1]",
            "schedules: [{1: 2}]",
            "schedules: []\nmore: 1",
            "a: [",
            "!!python/object:os.x {}",
        ],
    )
    def test_apply_refuses_a_file_of_another_shape(self, tenant: Tenant, write: Any, text: str) -> None:
        with pytest.raises(CommandError):
            command("apply", write(text))

    def test_apply_names_what_is_wrong(self, tenant: Tenant, write: Any) -> None:
        with pytest.raises(CommandError, match=r"schedules\.0\.payload\.secs: .* Did you mean 'seconds'"):
            command("apply", write(FILE.replace("seconds:", "secs:")))

    def test_apply_asks_whose_schedules_they_are(self, tenant: Tenant, write: Any) -> None:
        factories.TenantFactory(slug="other")
        with pytest.raises(CommandError, match="--tenant"):
            command("apply", write(FILE))
        with pytest.raises(CommandError, match="create_tenant nope"):
            command("apply", write(FILE), "--tenant", "nope")

    def test_create_tenant_and_key(self) -> None:
        assert "Tenant acme" in command("create_tenant", "acme", "--name", "Acme & Sons")
        issued = json.loads(command("create_api_key", "acme", "--role", "editor", "--json"))
        key = ApiKey.objects.get()
        assert issued["api_key"].startswith(f"fp_{key.prefix}_")
        assert (issued["tenant"], issued["role"], key.tenant.name) == ("acme", "editor", "Acme & Sons")
        plain = command("create_api_key", "acme", "--role", "viewer", "--days", "7").strip()
        assert plain.startswith("fp_")
        assert ApiKey.objects.get(role="viewer").expires_at is not None

    def test_create_refuses_what_cannot_be(self) -> None:
        command("create_tenant", "acme")
        for words in (["acme"], ["a b"], [""], ["x" * 51]):
            with pytest.raises(CommandError):
                command("create_tenant", *words)
        with pytest.raises(CommandError):
            command("create_api_key", "nope", "--role", "viewer")
        with pytest.raises(CommandError):
            command("create_api_key", "acme", "--role", "king")
