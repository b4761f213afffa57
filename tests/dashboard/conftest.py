from typing import TYPE_CHECKING

import pytest
from django.test import Client

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from tests.support.scene import Scene


@pytest.fixture
def scene(db: None) -> "Scene":
    from tests.support.scene import make_scene  # models: only once Django is set up

    return make_scene()


@pytest.fixture
def alice(scene: "Scene") -> Client:
    """Admin of `acme`."""
    return _signed_in(scene.alice)


@pytest.fixture
def bob(scene: "Scene") -> Client:
    """Viewer of `acme`."""
    return _signed_in(scene.bob)


@pytest.fixture
def charlie(scene: "Scene") -> Client:
    """Admin of another tenant."""
    return _signed_in(scene.charlie)


def _signed_in(user: "User") -> Client:
    client = Client()
    client.force_login(user)
    return client
