"""A pytest plugin for applications: what is due runs inside the test, without a broker or a worker.

In the application's top conftest.py:

    pytest_plugins = ["scheduler.testing.plugin"]

and in a test:

    def test_the_report_of_the_night(fencepost):
        build_report.schedule(cron("0 2 * * *", timezone="UTC"), name="nightly", tenant=fencepost.tenant())
        fencepost.advance(days=1)
        (ran,) = fencepost.run_due()
        assert ran.state == "SUCCEEDED"
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the plugin is read before Django has its settings
    from scheduler.testing.due import Fencepost


@pytest.fixture
def fencepost(db: None) -> Iterator["Fencepost"]:
    """The ledger of this test, with a clock of its own. Needs pytest-django and a migrated test database."""
    from scheduler.testing.due import Fencepost

    made = Fencepost()
    yield made
    made.leave()
