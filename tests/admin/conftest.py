from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

if TYPE_CHECKING:
    from tests.support.scene import Scene


@pytest.fixture
def scene(db: None) -> "Scene":
    from tests.support.scene import make_scene  # models: only once Django is set up

    return make_scene()


@pytest.fixture
def operator(scene: "Scene") -> Client:
    """A platform operator, who may everything."""
    from tests.support.scene import make_user

    return _signed_in(make_user("operator", is_staff=True, is_superuser=True))


@pytest.fixture
def reader(scene: "Scene") -> Client:
    """Staff who may look at schedules and runs, and nothing else."""
    from django.contrib.auth.models import Permission

    from tests.support.scene import make_user

    user = make_user("reader", is_staff=True)
    names = ["view_schedule", "view_occurrence", "view_target", "view_tenant"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return _signed_in(user)


def _signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client
