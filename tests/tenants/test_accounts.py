"""Roles, scoping, and the operations on accounts."""

from typing import Any

import pytest
from django.test import Client

from scheduler import queries
from scheduler.errors import NotFound, ValidationFailed
from scheduler.models import Schedule
from tenants.access import UnscopedQuery, allows, scoped
from tenants.models import AuditEntry, Membership, Role, Tenant
from tenants.operations import create_api_key, create_tenant, revoke_api_key, set_membership
from tests import factories
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db

ROLES = [Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN]


@pytest.mark.parametrize("held", ROLES)
@pytest.mark.parametrize("needed", ROLES)
def test_each_role_includes_the_ones_before_it(held: Role, needed: Role) -> None:
    assert allows(held, needed) is (ROLES.index(held) >= ROLES.index(needed))


class TestScoping:
    @pytest.mark.parametrize("tenant", [None, "acme", 7])
    def test_rows_without_a_tenant_are_an_error(self, tenant: Any) -> None:
        with pytest.raises(UnscopedQuery):
            scoped(Schedule.objects.all(), tenant)

    @pytest.mark.parametrize("read", [queries.schedules, queries.runs])
    def test_so_are_reads_of_them(self, read: Any) -> None:
        with pytest.raises(UnscopedQuery):
            read(None)

    def test_targets_are_those_of_everyone_and_ones_own(self) -> None:
        alice, charlie = factories.TenantFactory(), factories.TenantFactory()
        factories.TargetFactory(name="everyones")
        factories.TargetFactory(name="nobodys", everyone=False)
        factories.TargetFactory(name="disabled", enabled=False)
        factories.TargetFactory(name="alices", everyone=False).tenants.add(alice)
        assert [target.name for target in queries.targets(alice)] == ["alices", "everyones"]
        assert [target.name for target in queries.targets(charlie)] == ["everyones"]


class TestOperations:
    def test_a_slug_is_taken_once(self) -> None:
        create_tenant("acme", actor=ACTOR)
        with pytest.raises(ValidationFailed):
            create_tenant("acme", actor=ACTOR)
        assert Tenant.objects.count() == 1

    def test_a_membership_is_made_and_changed_with_an_entry_each(self) -> None:
        tenant, user = factories.TenantFactory(), factories.UserFactory()
        set_membership(tenant, user, Role.VIEWER, actor=ACTOR)
        set_membership(tenant, user, Role.EDITOR, actor=ACTOR)
        assert Membership.objects.get().role == Role.EDITOR
        before = list(AuditEntry.objects.order_by("id").values_list("before", flat=True))
        assert before == [None, {"user": user.username, "role": "viewer"}]

    @pytest.mark.parametrize("role", ["king", "", "Viewer"])
    def test_there_are_four_roles(self, role: str) -> None:
        tenant = factories.TenantFactory()
        with pytest.raises(ValidationFailed):
            create_api_key(tenant, name="x", role=role, actor=ACTOR)
        with pytest.raises(ValidationFailed):
            set_membership(tenant, factories.UserFactory(), role, actor=ACTOR)

    def test_another_tenants_key_is_not_found(self) -> None:
        alice, charlie = factories.TenantFactory(), factories.TenantFactory()
        key = create_api_key(alice, name="x", role=Role.VIEWER, actor=ACTOR).key
        with pytest.raises(NotFound):
            revoke_api_key(charlie, key.id, actor=ACTOR)

    def test_a_key_is_revoked_once(self) -> None:
        tenant = factories.TenantFactory()
        key = create_api_key(tenant, name="x", role=Role.VIEWER, actor=ACTOR).key
        first = revoke_api_key(tenant, key.id, actor=ACTOR).revoked_at
        assert revoke_api_key(tenant, key.id, actor=ACTOR).revoked_at == first
        assert AuditEntry.objects.filter(action="api_key.revoke").count() == 1

    def test_the_audit_log_never_holds_a_secret(self) -> None:
        issued = create_api_key(factories.TenantFactory(), name="x", role=Role.VIEWER, actor=ACTOR)
        secret = issued.text.split("_", 2)[2]
        assert secret not in str(list(AuditEntry.objects.values()))


class TestMiddleware:
    def test_a_page_knows_its_members_tenant(self, client: Client) -> None:
        membership = factories.MembershipFactory(role=Role.VIEWER)
        client.force_login(membership.user)
        request: Any = client.get("/").wsgi_request
        assert (request.tenant, request.membership) == (membership.tenant, membership)

    def test_a_stranger_has_none(self, client: Client) -> None:
        request: Any = client.get("/login").wsgi_request
        assert (request.tenant, request.membership) == (None, None)
