"""Named places where a test may kill, stop, delay or fail a process. Inert unless armed by the environment.

`FENCEPOST_FAULT=name:n:KILL|STOP|SLEEP=seconds|RAISE` acts at the n-th pass, and only when
`FENCEPOST_ALLOW_FAULTS=1`. Several are separated by commas. Whoever arms one can see that it was reached:
the process first appends `name pid` to the file named by `FENCEPOST_FAULT_LOG`.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

POINTS = frozenset(
    f"{process}.{point}"
    for process, points in {
        "tick": ("before_lease after_lease after_select after_advance after_commit"),
        "relay": "after_lock published_unconfirmed after_confirm after_delete after_commit",
        "release": "after_queued",
        "worker": (
            "received after_claim_sql after_claim_commit before_ack mid_body after_effect"
            " after_complete_sql after_complete_commit"
        ),
        "http": "after_send after_record",
        "sweep": "after_select after_update before_commit after_commit",
    }.items()
    for point in points.split()
)


class InjectedFault(RuntimeError):
    """What RAISE raises."""


@dataclass(kw_only=True)
class _Armed:
    name: str
    passes_left: int
    act: Callable[[], None]


def _parse(text: str) -> _Armed:
    name, passes, action = text.strip().split(":", 2)
    if name not in POINTS:
        raise ValueError(f"FENCEPOST_FAULT: no fault point is called {name!r}")
    return _Armed(name=name, passes_left=int(passes), act=_action(action, name))


def _action(action: str, name: str) -> Callable[[], None]:
    if action == "KILL":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if action == "STOP":
        return lambda: os.kill(os.getpid(), signal.SIGSTOP)
    if action.startswith("SLEEP="):
        return lambda: time.sleep(float(action[6:]))
    if action == "RAISE":
        return lambda: _raise(name)
    raise ValueError(f"FENCEPOST_FAULT: {action!r} is none of KILL, STOP, SLEEP=seconds, RAISE")


def _raise(name: str) -> None:
    raise InjectedFault(name)


def _from_environment() -> list[_Armed]:
    text = os.environ.get("FENCEPOST_FAULT", "")
    if not text:
        return []
    if os.environ.get("FENCEPOST_ALLOW_FAULTS") != "1":
        raise ValueError("FENCEPOST_FAULT is refused unless FENCEPOST_ALLOW_FAULTS=1")
    return [_parse(piece) for piece in text.split(",")]


_armed = _from_environment()
_lock = Lock()


def fault_point(name: str) -> None:
    """Mark a place in production code. Costs one look at an empty list."""
    if not _armed:
        return
    for armed in _armed:
        if armed.name == name and _is_last_pass(armed):
            _report(name)
            armed.act()


def _is_last_pass(armed: _Armed) -> bool:
    with _lock:
        armed.passes_left -= 1
        return armed.passes_left == 0


def _report(name: str) -> None:
    path = os.environ.get("FENCEPOST_FAULT_LOG")
    if path:
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"{name} {os.getpid()}\n")
            log.flush()
            os.fsync(log.fileno())
