from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Queues
from tests.support.installation import Installation
from tests.support.processes import Launcher


@pytest.fixture
def installation(broker_url: str, launch: Launcher, tmp_path: Path) -> Iterator[Installation]:
    """On a database and a vhost of its own, with a tenant and no process yet."""
    made = Installation(launch, tmp_path)
    made.make_tenant()
    yield made
    made.ledger.connection.close()


@pytest.fixture
def queues(broker_url: str) -> Queues:
    return Queues(broker_url)
