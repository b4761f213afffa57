from scheduler.testing.state_machine import document
from tests.support.processes import REPOSITORY


def test_the_page_in_docs_is_the_table_in_core() -> None:
    page = (REPOSITORY / "docs" / "state-machine.md").read_text(encoding="utf-8")
    assert page == document(), "run `manage.py state_machine`"
