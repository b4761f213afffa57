"""Takes one cure after the other out of the code and demands that the test which guards it then fails.

    python -m tests.traps.run [NAME ...]

The design names races that were reproduced before they were cured. Each patch in this folder undoes the cure
of one of them; its first lines say which race comes back, and which test must see it. A patch that no longer
applies, a test that passes without the cure, and one that fails with it in place all fail this run.
Patches are applied to a clone of HEAD: what is not committed is not tried.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler.project import embedded
from tests.support.processes import REPOSITORY, product_environ
from tests.support.servers import embedded_postgres

FOLDER = Path(__file__).parent
TEST_ENDS_WITHIN_S = "60"  # some races show as a test that waits for ever
TESTS_FAILED = 1  # pytest's exit code; others say that no test was run


@dataclass(frozen=True, kw_only=True)
class Trap:
    """`test` is the pytest id of the test that must see the race."""

    name: str
    patch: Path
    race: str
    test: str


def traps() -> list[Trap]:
    return [_read(path) for path in sorted(FOLDER.glob("*.patch"))]


def _read(path: Path) -> Trap:
    head = path.read_text(encoding="utf-8").partition("\ndiff ")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return Trap(name=path.stem, patch=path, race=fields["Race"], test=fields["Test"])


def main(names: Sequence[str]) -> int:
    wanted = [trap for trap in traps() if not names or trap.name in names]
    if not wanted:
        print(f"no such trap; there are {', '.join(trap.name for trap in traps())}", file=sys.stderr)
        return 2
    with _clone() as clone, _server() as server:
        sound = _pytest(clone, server, *dict.fromkeys(trap.test for trap in wanted))
        if sound.returncode != 0:
            print(f"with all cures in place:\n{sound.stdout}{sound.stderr}", file=sys.stderr)
            return 1
        missed = [trap for trap in wanted if not _is_caught(trap, clone, server)]
    print(f"{len(wanted) - len(missed)} of {len(wanted)} traps are caught")
    return 1 if missed else 0


def _is_caught(trap: Trap, clone: Path, server: str) -> bool:
    began = time.monotonic()
    _git(clone, "apply", str(trap.patch))
    seen = _pytest(clone, server, trap.test)
    _git(clone, "checkout", "--quiet", ".")
    caught = seen.returncode == TESTS_FAILED and " error" not in seen.stdout.splitlines()[-1]
    print(f"{'caught' if caught else 'MISSED'}  {trap.name}: {trap.race}  ({time.monotonic() - began:.0f} s)")
    if not caught:
        print(seen.stdout + seen.stderr)
    return caught


@contextmanager
def _clone() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fencepost-traps-") as folder:
        _git(REPOSITORY, "clone", "--quiet", "--shared", str(REPOSITORY), f"{folder}/clone")
        yield Path(folder) / "clone"


@contextmanager
def _server() -> Iterator[str]:
    """One server for all runs: starting it is most of what a small test costs."""
    with tempfile.TemporaryDirectory(prefix="fencepost-traps-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root, the server runs under another account
        embedded.settle(folder)
        with embedded_postgres(folder) as url:
            yield url


def _pytest(clone: Path, server: str, *tests: str) -> subprocess.CompletedProcess[str]:
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--timeout", TEST_ENDS_WITHIN_S]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=clone,
        env=product_environ(FENCEPOST_TEST_DATABASE_URL=server),
        capture_output=True,
        text=True,
    )


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
