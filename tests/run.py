"""Runs the suite in two lanes at once: what one of them does is mostly waiting for processes.

    python -m tests.run [PYTEST OPTIONS]

Each lane is a pytest of its own, with its own servers and databases. The first one's output is shown as it
comes, the second one's after it. Options go to both; with paths among them there is one lane, pytest itself.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent
WAITING = ("acceptance",)
NO_TESTS_LEFT = 5  # pytest's exit code, where options such as -k leave a lane without any


def main(options: Sequence[str]) -> int:
    if any(not option.startswith("-") for option in options):
        return _start([*options]).wait()
    waiting = [str(TESTS / name) for name in WAITING]
    others = [str(path) for path in rooms() if path.name not in WAITING]
    with tempfile.TemporaryFile() as output:
        first, second = _start([*options, *others]), _start([*options, *waiting], output=output.fileno())
        codes = {first.wait(), second.wait()}
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    return max(codes - {NO_TESTS_LEFT}, default=NO_TESTS_LEFT)


def rooms() -> list[Path]:
    """The folders of `tests` that have tests."""
    return sorted(path for path in TESTS.iterdir() if any(path.glob("test_*.py")))


def _start(arguments: Sequence[str], output: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
