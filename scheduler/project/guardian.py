"""Runs the embedded Postgres as its child and does not let it outlive the process that asked for it.

    python -m scheduler.project.guardian UID:GID|- POSTGRES -D DATA ...

SIGTERM, SIGINT, or the death of the parent: a fast shutdown, and an immediate one when that takes
too long (the next start then recovers from the log; nothing committed is lost).
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from scheduler.project.supervisor import end_with_parent

FAST_SHUTDOWN_S = 1.0
LEFTOVER_S = 15.0
POLL_S = 0.1


def main(owner: str, *postgres: str) -> int:
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    end_with_parent(signal.SIGTERM)
    clear_way(Path(postgres[postgres.index("-D") + 1]))
    server = _start(owner, postgres)
    while server.poll() is None and os.getppid() == parent:
        if stop.wait(POLL_S):
            break
    return _shut_down(server) if server.poll() is None else 1


def clear_way(data: Path) -> None:
    """Deal with a ``postmaster.pid`` left behind.

    Postgres itself removes the file of a process that is gone. What it cannot tell apart is a live
    process that merely took over the number: then the file goes here. And when it is a server of
    ours that was orphaned and is still stopping, we wait for it.
    """
    lock = data / "postmaster.pid"
    waiter = threading.Event()
    for attempt in range(round(LEFTOVER_S / POLL_S)):
        pid = _first_number(lock)
        if pid is None or not _alive(pid):
            return
        if str(data) not in _command_line(pid):
            lock.unlink(missing_ok=True)
            return
        if attempt == 0:
            os.kill(pid, signal.SIGINT)
        waiter.wait(POLL_S)


def _start(owner: str, postgres: tuple[str, ...]) -> subprocess.Popen[bytes]:
    uid, _, gid = owner.partition(":")
    identity: dict[str, Any] = {"user": int(uid), "group": int(gid), "extra_groups": []} if gid else {}
    server: subprocess.Popen[bytes] = subprocess.Popen(
        postgres,
        cwd="/",
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(
            signal.SIGINT
        ),  # the guardian itself killed: still a fast shutdown
        **identity,
    )
    return server


def _shut_down(server: subprocess.Popen[bytes]) -> int:
    for number, patience_s in ((signal.SIGINT, FAST_SHUTDOWN_S), (signal.SIGQUIT, FAST_SHUTDOWN_S)):
        server.send_signal(number)
        try:
            server.wait(patience_s)
            return 0
        except subprocess.TimeoutExpired:
            continue
    server.kill()
    server.wait()
    return 0


def _first_number(lock: Path) -> int | None:
    try:
        return int(lock.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _command_line(pid: int) -> str:
    proc = Path(f"/proc/{pid}/cmdline")
    if proc.exists():
        return proc.read_text().replace("\0", " ")
    answer = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
    return answer.stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
