"""Models are imported inside the fixtures: this file is read before Django is set up."""

from typing import Any

import pytest


@pytest.fixture
def tenant(db: None) -> Any:
    from tests import factories

    return factories.TenantFactory()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The database's clock as operations, ticks and explanations read it."""
    from scheduler import orm
    from tests.core.cases import instant
    from tests.support.timetravel import Clock

    made = Clock(now=instant("2026-12-01T00:00:00Z"))
    monkeypatch.setattr(orm, "database_now", lambda connection: made.now)
    return made
