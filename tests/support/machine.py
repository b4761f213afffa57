"""What this machine offers to tests, and the marker of the tests that need it."""

import functools
import glob
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit


def rabbitmq_url() -> str:
    """The server on which a run may make vhosts of its own."""
    return os.environ.get("FENCEPOST_TEST_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672")


def find_free_port() -> int:
    """A TCP port on loopback that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts_connections(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@functools.cache
def rabbitmq_usable() -> bool:
    parts = urlsplit(rabbitmq_url())
    if not accepts_connections(parts.hostname or "127.0.0.1", parts.port or 5672):
        return False
    return bool(shutil.which("rabbitmqctl")) and rabbitmqctl("list_vhosts").returncode == 0


def rabbitmqctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["rabbitmqctl", "--quiet", *arguments], capture_output=True, text=True, timeout=60)


@functools.cache
def rabbitmq_programs() -> Path | None:
    """Where rabbitmq-server and rabbitmqctl lie. Debian's own in /usr/sbin would serve its one node alone."""
    debian, found = Path("/usr/lib/rabbitmq/bin"), shutil.which("rabbitmq-server")
    if (debian / "rabbitmq-server").exists():
        return debian
    return Path(found).parent if found else None


@functools.cache
def chromium_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@functools.cache
def libfaketime_path() -> str | None:
    """The library to preload into a process whose clock a test moves."""
    patterns = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    return found[0] if found else None


NETWORK = ("unshare", "--user", "--map-root-user", "--net")
NAMESPACE = ("unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def namespaces_usable() -> bool:
    """Whether a process may be started as the first of a machine of its own, as in a container."""
    return bool(shutil.which("unshare")) and subprocess.run([*NAMESPACE, "true"], check=False).returncode == 0


@functools.cache
def networks_usable() -> bool:
    """Whether a process may have a network of its own, with addresses as it likes."""
    tools = shutil.which("unshare") and shutil.which("ip")
    return (
        bool(tools)
        and subprocess.run([*NETWORK, "ip", "link", "set", "lo", "up"], check=False).returncode == 0
    )


NEEDS: dict[str, Callable[[], bool]] = {
    "rabbitmq": rabbitmq_usable,
    "rabbitmq_node": lambda: rabbitmq_programs() is not None,
    "chromium": lambda: chromium_path() is not None,
    "namespaces": namespaces_usable,
    "networks": networks_usable,
    "faketime": lambda: libfaketime_path() is not None,
}


def absent(markers: set[str]) -> set[str]:
    """Which of ``markers`` name something that this machine does not have."""
    return {name for name in markers & NEEDS.keys() if not NEEDS[name]()}
