"""API keys: what they prove, and when they stop."""

from datetime import timedelta

import pytest
from rest_framework.test import APIClient

from tenants.models import ApiKey, Role, Tenant
from tenants.operations import revoke_api_key
from tests import factories

pytestmark = pytest.mark.django_db

SCHEDULES = "/api/v1/schedules"


def status(header: str) -> int:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    return client.get(SCHEDULES).status_code


def test_a_key_lets_in_and_its_use_is_noted(tenant: Tenant) -> None:
    text = factories.api_key(tenant, Role.VIEWER)
    assert status(f"Bearer {text}") == 200
    assert status(f"bearer {text}") == 200
    assert ApiKey.objects.get().last_used_at is not None


def test_only_the_hash_of_a_key_is_stored(tenant: Tenant) -> None:
    text = factories.api_key(tenant)
    _, prefix, secret = text.split("_", 2)
    key = ApiKey.objects.get()
    assert key.prefix == prefix
    assert secret not in str(vars(key))


def test_a_revoked_key_is_refused(tenant: Tenant) -> None:
    text = factories.api_key(tenant)
    revoke_api_key(tenant, ApiKey.objects.get().id, actor=factories.ACTOR)
    assert status(f"Bearer {text}") == 401


def test_an_expired_key_is_refused(tenant: Tenant) -> None:
    assert status(f"Bearer {factories.api_key(tenant, expires_in=timedelta(minutes=1))}") == 200
    assert status(f"Bearer {factories.api_key(tenant, expires_in=timedelta(seconds=-1))}") == 401


@pytest.mark.parametrize("spoil", [lambda key: key[:-1], lambda key: key + "x", lambda key: key.swapcase()])
def test_a_key_that_is_not_quite_right_is_refused(tenant: Tenant, spoil: object) -> None:
    assert callable(spoil)
    assert status(f"Bearer {spoil(factories.api_key(tenant))}") == 401


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer fp_x_y", "Basic YTpi", "Bearer fp_é_é", "Bearer \x00"]
)
def test_anything_else_is_refused(tenant: Tenant, header: str) -> None:
    assert status(header) == 401


def test_a_bad_key_is_not_made_good_by_a_session(tenant: Tenant) -> None:
    client = APIClient()
    client.force_login(factories.MembershipFactory(tenant=tenant).user)
    client.credentials(HTTP_AUTHORIZATION="Bearer fp_x_y")
    assert client.get(SCHEDULES).status_code == 401
