"""Alice, Bob and Charlie as clients of the API, each by a key of their own.

Imports stand inside: this file is read before Django is set up when a run names this folder.
"""

from typing import Any

import pytest


@pytest.fixture
def tenant(db: None) -> Any:
    """Alice's."""
    from tests.factories import TenantFactory

    return TenantFactory(slug="acme")


@pytest.fixture
def target(db: None) -> Any:
    from tests.factories import TargetFactory

    return TargetFactory()


@pytest.fixture
def alice(tenant: Any, target: Any) -> Any:
    """Owner of the tenant."""
    from tests.api.people import client_of

    return client_of(tenant)


@pytest.fixture
def bob(tenant: Any, target: Any) -> Any:
    """A member of it with the role of viewer."""
    from tenants.models import Role
    from tests.api.people import client_of

    return client_of(tenant, Role.VIEWER)


@pytest.fixture
def charlie(target: Any) -> Any:
    """Owner of another tenant."""
    from tests.api.people import client_of
    from tests.factories import TenantFactory

    return client_of(TenantFactory(slug="charlies"))
