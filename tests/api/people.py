"""Clients of the API."""

from rest_framework.test import APIClient

from tenants.models import Role, Tenant
from tests import factories


def client_of(tenant: Tenant, role: Role = Role.ADMIN) -> APIClient:
    """Sends JSON under a new key, and shows server errors as the answers that they are."""
    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {factories.api_key(tenant, role)}")
    client.default_format = "json"
    return client
