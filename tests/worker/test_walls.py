"""Calls from a network of its own, where inner addresses do listen and the names are an attacker's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import NETWORK
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.networks
PATIENCE_S = 3.0  # beyond the deadline of a call, on a busy machine


def told_from_within(folder: Path, script: str, *arguments: str, mounts: bool = False) -> Any:
    """What the script says as JSON, run in a network namespace; with `mounts` it may replace files too."""
    path = folder / "house.py"
    path.write_text(script)
    done = subprocess.run(
        [*NETWORK, *(["--mount"] if mounts else []), sys.executable, str(path), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_EVERY_KIND_OF_ADDRESS = """
import json, subprocess, sys
from contextlib import ExitStack
from scheduler.core.networks import networks_of
from scheduler.worker.outbound import Client, Denied
from tests.support.endpoints import endpoint

def reached(client, server):
    try:
        return client.post(server.url, {}, b"{}", timeout_s=5).status
    except Denied:
        return "denied"

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for address in sys.argv[1:]:
    flags = ["nodad"] if ":" in address else []
    subprocess.run(["ip", "address", "add", address, "dev", "lo", *flags], check=True)
told = {}
with ExitStack() as stack:
    for address in sys.argv[1:]:
        server = stack.enter_context(endpoint(host=address))
        denied, connections = reached(Client(), server), server.connections
        opened = reached(Client(allowed=networks_of("0.0.0.0/0,::/0")), server)
        told[address] = [denied, connections, opened]
print(json.dumps(told))
"""


def test_listeners_at_every_kind_of_denied_address_hear_nothing(tmp_path: Path) -> None:
    """In a network namespace that has all of them. An operator who opens everything does reach them."""
    addresses = [
        *("0.0.0.5", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.9", "168.63.129.16"),
        *("169.254.169.254", "172.16.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
        *("198.18.0.1", "198.51.100.1", "203.0.113.1", "::2", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1"),
        *("2001::1", "2001:db8::1", "2002:a00:1::1", "3fff::1", "fd00:ec2::254", "fec0::1"),
    ]
    told = told_from_within(tmp_path, _EVERY_KIND_OF_ADDRESS, *addresses)
    assert told == {address: ["denied", 0, 200] for address in addresses}


_NAMES_OF_AN_ATTACKER = """
import json, subprocess, sys, time
from contextlib import ExitStack
from scheduler.worker.outbound import Client, Denied, NoAnswer, NotSent
from tests.support import nameserver
from tests.support.endpoints import endpoint
from tests.support.nameserver import addresses, in_turn

PUBLIC, INNER = "93.184.215.14", ["10.1.2.3", "169.254.169.254", "127.0.0.1", "fd00::1"]
folder = sys.argv[1]
for name in ("resolv.conf", "nsswitch.conf"):
    subprocess.run(["mount", "--bind", f"{folder}/{name}", f"/etc/{name}"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for address in (PUBLIC, *INNER[:2], INNER[3]):
    flags = ["nodad"] if ":" in address else []
    subprocess.run(["ip", "address", "add", address, "dev", "lo", *flags], check=True)

names = {
    "honest.test": addresses(PUBLIC),
    "rebinds.test": in_turn(addresses(PUBLIC), addresses(*INNER)),
    "alias.test": addresses("metadata.test", "169.254.169.254"),
    "mixed.test": addresses(*INNER, PUBLIC),
    "mapped.test": addresses("::ffff:10.1.2.3", "64:ff9b::a01:203"),
    "many.test": addresses(*[f"10.1.2.{last}" for last in range(1, 30)]),
    "nobody.test": addresses(),
    "nonsense.test": nameserver.nonsense,
    "silent.test": nameserver.silence,
}
told, took = {}, {}
with ExitStack() as stack:
    served = stack.enter_context(nameserver.nameserver(names))
    public = stack.enter_context(endpoint(host=PUBLIC))
    inner = [stack.enter_context(endpoint(host=host)) for host in INNER]
    for name in (*names, "rebinds.test"):
        outcomes = []
        for port in (public.port, *[one.port for one in inner]):
            began = time.monotonic()
            try:
                outcomes.append(Client().post(f"http://{name}:{port}/", {}, b"{}", timeout_s=2).status)
            except (Denied, NotSent, NoAnswer) as error:
                outcomes.append(type(error).__name__)
            took[name] = max(took.get(name, 0), time.monotonic() - began)
        told.setdefault(name, []).append(outcomes)
    reached = [one.connections for one in inner]
print(json.dumps([told, took, reached, sorted(set(served.asked))]))
"""


def test_a_real_resolver_that_answers_as_the_attacker_likes(tmp_path: Path) -> None:
    """The machine's own resolver asks it, in a namespace with a public and inner addresses, all listening."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:5 attempts:2\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    told, took, reached, asked = told_from_within(tmp_path, _NAMES_OF_AN_ATTACKER, str(tmp_path), mounts=True)
    assert reached == [0, 0, 0, 0]
    refused = ["NotSent"] * 5  # at the public address nobody listens on the others' ports
    assert told == {
        "honest.test": [[200, *refused[1:]]],
        "rebinds.test": [[200, *["Denied"] * 4], ["Denied"] * 5],
        "alias.test": [["Denied"] * 5],
        "mixed.test": [[200, *refused[1:]]],
        "mapped.test": [["Denied"] * 5],
        "many.test": [["Denied"] * 5],
        "nobody.test": [refused],
        "nonsense.test": [refused],
        "silent.test": [refused],
    }
    assert max(took.values()) < 2 + PATIENCE_S
    assert asked == sorted(told)
