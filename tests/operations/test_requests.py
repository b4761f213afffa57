"""Runs that code asks for, inside a transaction of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from scheduler import targets
from scheduler.errors import Conflict, ValidationFailed
from scheduler.jobs import cron, every, run_now, schedule, schedule_at
from scheduler.models import Occurrence, Schedule, ScheduleRevision, Target
from scheduler.operations import delete_schedule, sync_targets, trigger_schedule
from scheduler.worker import registry
from scheduler.worker.registry import JobSpec
from tenants.models import AuditEntry, Tenant
from tests import factories
from tests.factories import ACTOR, PARAMETERS

NEEDY = {"type": "object", "properties": {"invoice": {"type": "integer"}}, "required": ["invoice"]}


@pytest.fixture
def tenant(db: None) -> Tenant:
    factories.TargetFactory()
    return factories.TenantFactory(slug="acme")


def agenda(run_id: UUID) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT dispatch_at, generation FROM outbox WHERE run_id = %s", [run_id])
        return cursor.fetchall()


class TestARequest:
    def test_is_a_run_that_is_due_and_announced(self, tenant: Tenant) -> None:
        before = timezone.now()
        run = Occurrence.objects.get(id=run_now("reports.build", {"kind": "daily"}, tenant="acme"))
        assert (run.state, run.origin, run.payload) == ("PENDING", "trigger", {"kind": "daily"})
        assert before - timedelta(seconds=1) <= run.due_at <= timezone.now()
        assert agenda(run.id) == [(run.due_at, 1)]

    def test_has_the_terms_of_its_target(self, tenant: Tenant) -> None:
        Target.objects.update(timeout_s=7, retry={"max_attempts": 2})
        run = Occurrence.objects.get(id=run_now("reports.build", tenant=tenant))
        revision = ScheduleRevision.objects.get(schedule=run.schedule_id, number=run.revision)
        assert (revision.timeout_s, revision.retry["max_attempts"], revision.overlap) == (7, 2, "allow")

    def test_follows_a_target_that_changes(self, tenant: Tenant) -> None:
        run_now("reports.build", tenant=tenant)
        spec = JobSpec(
            name="reports.build",
            function=print,
            retry=None,
            timeout_s=11,
            side_effects="idempotent",
            parameters=PARAMETERS,
            description="",
        )
        sync_targets({"reports.build": spec}, actor=ACTOR)
        run = Occurrence.objects.get(id=run_now("reports.build", tenant=tenant))
        revision = ScheduleRevision.objects.get(schedule=run.schedule_id, number=run.revision)
        assert (revision.number, revision.timeout_s) == (2, 11)
        assert Schedule.objects.count() == 1

    def test_follows_an_endpoint_that_is_edited(self, tenant: Tenant) -> None:
        body = {"name": "billing", "url": "https://billing.example/", "timeout_s": 20}
        made = targets.create_target(tenant, body, actor=ACTOR).target
        run_now("billing", {"invoice": 7}, tenant=tenant)
        targets.edit_target(tenant, made.pk, {"timeout_s": 9}, actor=ACTOR)
        run = Occurrence.objects.get(id=run_now("billing", {"invoice": 8}, tenant=tenant))
        assert ScheduleRevision.objects.get(schedule=run.schedule_id, number=run.revision).timeout_s == 9

    def test_may_be_for_later(self, tenant: Tenant) -> None:
        when = datetime.now(UTC).replace(microsecond=0) + timedelta(days=400)
        run = Occurrence.objects.get(id=schedule_at(when, "reports.build", tenant=tenant))
        assert run.due_at == run.dispatch_at == when
        assert agenda(run.id) == [(when, 1)]

    def test_leaves_the_accounts_balanced(self, tenant: Tenant) -> None:
        run_now("reports.build", tenant=tenant)
        held = Schedule.objects.get()
        assert (held.state, held.next_due_at, held.name) == ("completed", None, "reports.build on request")

    def test_is_on_the_audit_log_with_the_code_that_asked(self, tenant: Tenant) -> None:
        run_id = run_now("reports.build", tenant=tenant, key="k")
        entry = AuditEntry.objects.get(action="run.request")
        assert (entry.actor, entry.after["run"]) == ("code of reports.build", str(run_id))

    def test_of_a_job_with_needs_is_held_against_them_each_time(self, tenant: Tenant) -> None:
        factories.TargetFactory(name="needy", parameters=NEEDY)
        with pytest.raises(ValidationFailed) as failure:
            run_now("needy", {"invoice": "seven"}, tenant=tenant)
        assert [error.field for error in failure.value.errors] == ["payload.invoice"]
        assert Occurrence.objects.get(id=run_now("needy", {"invoice": 7}, tenant=tenant)).payload == {
            "invoice": 7
        }

    @pytest.mark.parametrize(
        ("ask", "field"),
        [
            (lambda: run_now("reports.biuld", tenant="acme"), "target"),
            (lambda: run_now("reports.build", {"knid": "daily"}, tenant="acme"), "payload.knid"),
            (lambda: run_now("reports.build", {"kind": "x" * 70_000}, tenant="acme"), "payload"),
            (lambda: run_now("reports.build", tenant="amce"), "tenant"),
            (lambda: run_now("reports.build", tenant="acme", key=""), "key"),
            (lambda: run_now("reports.build", tenant="acme", key=7), "key"),
            (lambda: run_now("reports.build", tenant=7), "tenant"),
            (lambda: run_now("reports.build", tenant="a\x00"), "tenant"),
            (lambda: run_now("reports.build", tenant=None), "tenant"),
            (lambda: run_now(None, tenant="acme"), "target"),
            (lambda: run_now("reports.build", ["daily"], tenant="acme"), "payload"),
            (lambda: run_now("reports.build", 5, tenant="acme"), "payload"),
            (lambda: run_now("reports.build", {"kind": date(2030, 1, 1)}, tenant="acme"), "payload.kind"),
            (lambda: run_now("reports.build", {7: "daily"}, tenant="acme"), "payload"),
            (lambda: run_now("reports.build", {"kind": ("daily",)}, tenant="acme"), "payload.kind"),
            (lambda: schedule_at(date(2030, 1, 1), "reports.build", tenant="acme"), "at"),
            (lambda: schedule_at("2030-01-01T00:00:00Z", "reports.build", tenant="acme"), "at"),
            (lambda: schedule_at(datetime(2020, 1, 1, tzinfo=UTC), "reports.build", tenant="acme"), "at"),
            (lambda: schedule_at(datetime(2040, 1, 1), "reports.build", tenant="acme"), "at"),  # noqa: DTZ001 - the fault
            (lambda: schedule_at(datetime(2090, 1, 1, tzinfo=UTC), "reports.build", tenant="acme"), "at"),
        ],
    )
    def test_that_cannot_be_names_the_field_and_leaves_nothing(
        self, tenant: Tenant, ask: Any, field: str
    ) -> None:
        with pytest.raises(ValidationFailed) as failure:
            ask()
        assert [error.field for error in failure.value.errors] == [field]
        assert not Occurrence.objects.exists()

    def test_of_a_job_that_was_never_applied_says_what_to_do(
        self, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "jobs", lambda: {"reports.new": None})
        asked: list[Any] = [
            lambda: run_now("reports.new", tenant=tenant),
            lambda: schedule(every(60), "reports.new", name="new", tenant=tenant),
        ]
        for ask in asked:
            with pytest.raises(ValidationFailed, match=r"`manage\.py apply` makes it one") as failure:
                ask()
            assert [error.field for error in failure.value.errors] == ["target"]

    def test_of_a_target_of_others_is_refused(self, tenant: Tenant) -> None:
        factories.TargetFactory(name="theirs", everyone=False)
        with pytest.raises(ValidationFailed, match="unknown target 'theirs'"):
            run_now("theirs", tenant=tenant)

    def test_finds_its_schedule_s_name_taken_and_says_so(self, tenant: Tenant) -> None:
        factories.schedule(tenant, name="reports.build on request")
        with pytest.raises(ValidationFailed, match=r"is called 'reports\.build on request'"):
            run_now("reports.build", tenant=tenant)

    def test_by_a_person_s_button_is_held_against_the_target_as_well(self, tenant: Tenant) -> None:
        factories.TargetFactory(name="needy", parameters=NEEDY)
        held = Occurrence.objects.get(id=run_now("needy", {"invoice": 7}, tenant=tenant)).schedule_id
        with pytest.raises(ValidationFailed, match=r"payload\.invoice: this field is required by 'needy'"):
            trigger_schedule(tenant, held, request_key=uuid4(), actor=ACTOR)
        assert Occurrence.objects.count() == 1

    def test_after_somebody_deleted_what_held_them_has_a_new_one(self, tenant: Tenant) -> None:
        first = Occurrence.objects.get(id=run_now("reports.build", tenant=tenant))
        delete_schedule(tenant, first.schedule_id, actor=ACTOR)
        second = Occurrence.objects.get(id=run_now("reports.build", tenant=tenant))
        first.refresh_from_db()
        assert (first.state, second.state) == ("CANCELLED", "PENDING")
        assert second.schedule_id != first.schedule_id


class TestAKey:
    def test_makes_one_run_of_many_requests(self, tenant: Tenant) -> None:
        assert len({run_now("reports.build", tenant=tenant, key="invoice-7") for _ in range(3)}) == 1
        assert run_now("reports.build", tenant=tenant, key="invoice-8") != run_now(
            "reports.build", tenant=tenant, key="invoice-7"
        )

    def test_holds_for_runs_that_lie_ahead(self, tenant: Tenant) -> None:
        when = timezone.now() + timedelta(days=3)
        assert schedule_at(when, "reports.build", tenant=tenant, key="k") == schedule_at(
            when, "reports.build", tenant=tenant, key="k"
        )

    def test_is_refused_for_something_else(self, tenant: Tenant) -> None:
        run_now("reports.build", {"kind": "a"}, tenant=tenant, key="k")
        with pytest.raises(Conflict, match="'k' was used for another request"):
            run_now("reports.build", {"kind": "b"}, tenant=tenant, key="k")

    def test_of_another_tenant_is_another_key(self, tenant: Tenant) -> None:
        other = factories.TenantFactory()
        assert run_now("reports.build", tenant=tenant, key="k") != run_now(
            "reports.build", tenant=other, key="k"
        )


class TestASchedule:
    def test_is_made_once_and_then_brought_in_line(self, tenant: Tenant) -> None:
        trigger = cron("0 9 * * MON-FRI", timezone="Europe/Berlin")
        first = schedule(trigger, "reports.build", name="daily", tenant="acme", payload={"kind": "daily"})
        again = schedule(every(60), "reports.build", name="daily", tenant="acme", overlap="allow")
        assert first == again
        found = Schedule.objects.get(id=first)
        revision = found.revisions.get(number=found.revision)
        assert (found.revision, revision.overlap, revision.payload) == (2, "allow", {})
        assert revision.trigger["interval"]["every_s"] == 60

    def test_takes_times_as_python_has_them(self, tenant: Tenant) -> None:
        begin, end = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
        made = schedule(
            every(60, anchor=begin), "reports.build", name="daily", tenant="acme", start_at=begin, end_at=end
        )
        revision = ScheduleRevision.objects.get(schedule=made)
        assert (revision.start_at, revision.end_at) == (begin, end)
        assert revision.trigger["interval"]["anchor"] == "2030-01-01T00:00:00+00:00"

    def test_is_taken_back_with_the_transaction(self, tenant: Tenant) -> None:
        with transaction.atomic():
            schedule(every(60), "reports.build", name="daily", tenant="acme")
            transaction.set_rollback(True)
        assert not Schedule.objects.exists()


class TestATriggerInTheTable:
    """By whatever road it comes there: a form, the API, an ORM's create or bulk_create, a fixture."""

    @pytest.mark.parametrize(
        "trigger",
        [
            {},
            [],
            None,
            {"cron": {}, "interval": {}},
            {"every": {}},
            {"cron": {}, "every": {}},
            {"once": {}, "cron": {}, "rrule": {}},
        ],
    )
    @pytest.mark.parametrize("road", ["create", "bulk_create", "update"])
    def test_has_exactly_one_kind(self, tenant: Tenant, trigger: Any, road: str) -> None:
        made = factories.schedule(tenant).revisions.get()
        made.pk, made.number, kept = None, 2, made.pk
        made.trigger = trigger
        roads = {
            "create": lambda: made.save(force_insert=True),
            "bulk_create": lambda: ScheduleRevision.objects.bulk_create([made]),
            "update": lambda: ScheduleRevision.objects.filter(pk=kept).update(trigger=trigger),
        }
        with pytest.raises(IntegrityError, match=r"revision_trigger|null value"):
            roads[road]()

    @pytest.mark.parametrize("kind", ["once", "cron", "interval", "rrule"])
    def test_may_have_any_one_of_them(self, tenant: Tenant, kind: str) -> None:
        made = factories.schedule(tenant).revisions.get()
        made.pk, made.number, made.trigger = None, 2, {kind: {}}
        made.save(force_insert=True)
        assert ScheduleRevision.objects.filter(trigger={kind: {}}).count() == 1


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
class TestAtTheSameInstant:
    @pytest.fixture(autouse=True)
    def _empty_ledger(self, transactional_db: None) -> Iterator[None]:
        yield
        factories.empty_ledger()

    @staticmethod
    def at_once(*actions: Any) -> list[Any]:
        def call(action: Any) -> Any:
            try:
                return action()
            finally:
                connection.close()

        with ThreadPoolExecutor(len(actions)) as pool:
            return [future.result(60) for future in [pool.submit(call, action) for action in actions]]

    def test_the_first_requests_make_one_schedule(self, tenant: Tenant) -> None:
        runs = self.at_once(*[lambda: run_now("reports.build", tenant="acme") for _ in range(8)])
        assert len(set(runs)) == 8
        assert Schedule.objects.count() == 1

    def test_requests_under_one_key_are_one_run(self, tenant: Tenant) -> None:
        runs = self.at_once(*[lambda: run_now("reports.build", tenant="acme", key="k")] * 8)
        assert len(set(runs)) == 1
        assert Occurrence.objects.count() == 1

    def test_a_transaction_that_stays_open_keeps_nobody_waiting(self, tenant: Tenant) -> None:
        run_now("reports.build", tenant=tenant)

        def impatient() -> UUID:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '2s'")
            return run_now("reports.build", tenant="acme", key="other")

        with transaction.atomic():
            mine = run_now("reports.build", tenant=tenant, key="mine")
            (theirs,) = self.at_once(impatient)
        assert mine != theirs

    def test_nothing_is_seen_before_the_commit_and_nothing_is_left_by_a_rollback(
        self, tenant: Tenant
    ) -> None:
        count = [lambda: Occurrence.objects.count()]
        with transaction.atomic():
            run_now("reports.build", tenant=tenant)
            assert self.at_once(*count) == [0]
            transaction.set_rollback(True)
        assert self.at_once(*count) == [0]
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM outbox")
            assert cursor.fetchone() == (0,)
        assert not Schedule.objects.exists()
        assert not AuditEntry.objects.exists()
