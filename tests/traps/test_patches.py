"""That each patch still fits the code: whether its test sees the race is for `make traps` to say."""

import subprocess

import pytest

from tests.support.processes import REPOSITORY
from tests.traps.run import Trap, traps


@pytest.mark.parametrize("trap", traps(), ids=lambda trap: trap.name)
def test_the_patch_applies_and_its_test_is_there(trap: Trap) -> None:
    command = ["git", "apply", "--check", str(trap.patch)]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    path, _, name = trap.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (REPOSITORY / path).read_text(encoding="utf-8")
