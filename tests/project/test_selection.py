"""What a machine lacks is counted, never silently left out; under CI it fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import run
from tests.support.processes import REPOSITORY, product_environ

NEEDS_CHROMIUM = """
import pytest

def test_plain(): pass

@pytest.mark.chromium
def test_in_a_browser(): pass
"""
SKIPS = """
import pytest

def test_plain(): pass

@pytest.mark.skip(reason="tired")
def test_skipped(): pass
"""


@pytest.mark.parametrize(
    ("content", "ci", "code", "line"),
    [
        (NEEDS_CHROMIUM, "false", 0, "deselected: 1 tests need chromium, which this machine lacks"),
        (NEEDS_CHROMIUM, "true", 4, "CI=true, and this machine lacks what tests need: {'chromium': 1}"),
        (SKIPS, "false", 0, "1 passed, 1 skipped"),
        (SKIPS, "true", 1, "CI=true: a skipped test is a failure"),
    ],
)
def test_lack_is_counted_and_fails_under_ci(
    tmp_path: Path, content: str, ci: str, code: int, line: str
) -> None:
    (tmp_path / "test_content.py").write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", str(tmp_path)],
        cwd=REPOSITORY,
        env=product_environ(CI=ci, PATH="/nowhere", PYTHONPATH=str(REPOSITORY)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert line in done.stdout + done.stderr


def test_the_two_lanes_have_every_test_file_between_them() -> None:
    rooms = {path.name for path in run.rooms()}
    files = (REPOSITORY / "tests").rglob("test_*.py")
    assert {path.relative_to(REPOSITORY / "tests").parts[0] for path in files} == rooms
    assert set(run.WAITING) < rooms
