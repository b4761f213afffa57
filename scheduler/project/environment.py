"""The process environment, read once, checked and typed.

Nothing else in the code base looks at ``os.environ`` for configuration: `load` turns it into one
frozen `Environment`, or raises `ConfigurationError` with a line for every variable that is wrong.
No Django here, so that the check can run before settings exist.
"""

import difflib
import re
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from scheduler.core.networks import Network, networks_of
from scheduler.project import embedded

REPOSITORY = Path(__file__).resolve().parents[2]
SECRET_LENGTH = 32
LOCAL_HOSTS = "127.0.0.1,localhost,[::1]"

KNOWN_NAMES = frozenset(
    "FENCEPOST_" + name
    for name in (
        "ALLOW_FAULTS",
        "BREAKER",
        "CASES",
        "CATCH_UP_BUDGET",
        "DISPATCH_GRACE_S",
        "EFFECTS",
        "FAULT",
        "FAULT_LOG",  # read by scheduler/faultpoints.py: who reached an armed point
        "HOME",
        "HTTP_ALLOW_NETWORKS",
        "HTTP_SHARE",
        "HTTPS",
        "IGNORE_OWNERSHIP",
        "JOBS",
        "LOOK_AHEAD_S",
        "PARENT_PID",  # set by `up` for its children, taken by supervisor.watch_parent
        "SECRETS_KEY",
        "SESSION_S",
        "SHARDS",
        "SHARD_LEASE_S",
        "SWEEP_RATE",
        "TASKS",
        "TEST_BROKER_URL",  # read by tests/conftest.py only
        "TEST_DATABASE_URL",
        "TICK_BATCH",
    )
)

_FAULT = re.compile(r"[a-z0-9_.]+:[1-9][0-9]*:(KILL|STOP|RAISE|SLEEP=[0-9]+(\.[0-9]+)?)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Value = TypeVar("Value")


class ConfigurationError(ValueError):
    """One or more environment variables cannot be used; ``problems`` has a sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("The environment is not valid:\n" + "\n".join(f"  - {line}" for line in problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Every configured value, typed. Names ending in ``_s`` are seconds; rates are per second."""

    home: Path
    embedded_database: bool
    embedded_broker: bool
    database_url: str
    engine_database_url: str
    admin_database_url: str
    broker_url: str
    bind: str
    port: int
    secret_key: str
    allowed_hosts: tuple[str, ...]
    debug: bool
    https: bool
    shards: int
    look_ahead_s: float
    tick_batch: int
    shard_lease_s: float
    session_s: float
    dispatch_grace_s: float
    sweep_rate: float
    breaker: float
    catch_up_budget: float
    http_allow_networks: tuple[Network, ...]
    http_share: float
    secrets_keys: tuple[str, ...] = field(repr=False)
    effects: Path
    cases: Path
    jobs: tuple[str, ...]
    tasks: tuple[str, ...]
    allow_faults: bool
    ignore_ownership: bool
    fault: str | None


class _Reader:
    """Takes values out of a mapping and collects what is wrong instead of stopping at the first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def read(self, name: str, default: Value, parse: Callable[[str], Value], expected: str) -> Value:
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            self.problems.append(f"{name}={text!r} is not valid: it must be {expected}.")
            return default

    def text(self, name: str, default: str = "") -> str:
        return self.read(name, default, str, "text")

    def path(self, name: str, default: Path) -> Path:
        return self.read(name, default, lambda text: Path(text).expanduser().absolute(), "a path")

    def flag(self, name: str) -> bool:
        return self.read(name, False, _parse_flag, "1 or 0")

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        expected = f"a whole number from {low} to {high}"
        return self.read(name, default, lambda text: _within(int(text), low, high), expected)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        expected = f"a number from {low:g} to {high:g}"
        return self.read(name, default, lambda text: _within(float(text), low, high), expected)

    def database(self, name: str, default: str) -> str:
        return self.read(name, default, _parse_database_url, "a URL such as postgresql://user@host:5432/name")

    def secrets(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Several with commas between them. What is wrong is told without showing them."""
        keys = tuple(key.strip() for key in self.environ.get(name, "").split(",") if key.strip())
        if any(len(key) < SECRET_LENGTH for key in keys):
            self.problems.append(
                f"{name} is not valid: it must be random texts of at least {SECRET_LENGTH} characters with "
                f"commas between them, the one that encrypts first."
            )
        return keys or default

    def require(self, name: str, value: str, advice: str) -> str:
        if not value:
            self.problems.append(f"{name} is required: {advice}.")
        return value


def load(environ: Mapping[str, str]) -> Environment:
    """Read and check ``environ``. Raises `ConfigurationError` that names every bad variable."""
    reader = _Reader(environ)
    reader.problems += _unknown_names(environ)
    home = reader.path("FENCEPOST_HOME", REPOSITORY / ".fencepost")
    database_url = reader.database("DATABASE_URL", embedded.database_url(home))
    allow_faults = reader.flag("FENCEPOST_ALLOW_FAULTS")
    secret_key = _secret_key(reader, home)
    environment = Environment(
        home=home,
        embedded_database=not environ.get("DATABASE_URL"),
        embedded_broker=not environ.get("BROKER_URL"),
        database_url=database_url,
        engine_database_url=reader.database("ENGINE_DATABASE_URL", database_url),
        admin_database_url=reader.database("ADMIN_DATABASE_URL", database_url),
        broker_url=reader.read(
            "BROKER_URL", embedded.broker_url(home), _parse_url, "a URL such as amqp://user@host:5672/vhost"
        ),
        bind=reader.text("BIND", "127.0.0.1"),
        port=reader.whole("PORT", 8000, 1, 65535),
        secret_key=secret_key,
        allowed_hosts=_allowed_hosts(reader, home),
        debug=reader.flag("DEBUG"),
        https=reader.flag("FENCEPOST_HTTPS"),
        shards=reader.whole("FENCEPOST_SHARDS", 256, 1, 32768),
        look_ahead_s=reader.number("FENCEPOST_LOOK_AHEAD_S", 10, 0, 3600),
        tick_batch=reader.whole("FENCEPOST_TICK_BATCH", 1000, 1, 100_000),
        shard_lease_s=reader.number("FENCEPOST_SHARD_LEASE_S", 6, 1, 3600),
        session_s=reader.number("FENCEPOST_SESSION_S", 30, 1, 3600),
        dispatch_grace_s=reader.number("FENCEPOST_DISPATCH_GRACE_S", 5, 0.1, 3600),
        sweep_rate=reader.number("FENCEPOST_SWEEP_RATE", 200, 1, 1_000_000),
        breaker=reader.number("FENCEPOST_BREAKER", 0.85, 0, 1),
        catch_up_budget=reader.number("FENCEPOST_CATCH_UP_BUDGET", 0.2, 0, 1),
        http_allow_networks=reader.read(
            "FENCEPOST_HTTP_ALLOW_NETWORKS",
            (),
            networks_of,
            "networks such as 10.1.0.0/16 or fd00:1::/32, without host bits, with commas between them",
        ),
        http_share=reader.number("FENCEPOST_HTTP_SHARE", 0.5, 0.01, 1),
        secrets_keys=reader.secrets("FENCEPOST_SECRETS_KEY", (secret_key,)),
        effects=reader.path("FENCEPOST_EFFECTS", home / "effects.jsonl"),
        cases=reader.path("FENCEPOST_CASES", REPOSITORY.parent / "shared" / "cases"),
        jobs=reader.read("FENCEPOST_JOBS", (), _parse_modules, "module names with commas between them"),
        tasks=reader.read(
            "FENCEPOST_TASKS", (), _parse_names, "names of Celery tasks with commas between them"
        ),
        allow_faults=allow_faults,
        ignore_ownership=reader.flag("FENCEPOST_IGNORE_OWNERSHIP"),
        fault=reader.read("FENCEPOST_FAULT", None, _parse_fault, "name:n:KILL, STOP, RAISE or SLEEP=seconds"),
    )
    reader.problems += _guarded_names(environ, allow_faults)
    if reader.problems:
        raise ConfigurationError(reader.problems)
    return environment


def provide_for_up(environ: MutableMapping[str, str]) -> None:
    """Fill in what `manage.py up` promises to need no configuration for.

    The generated key is kept under the home folder, so that sessions survive a restart and other
    commands in the same checkout find it.
    """
    home = Path(environ.get("FENCEPOST_HOME") or REPOSITORY / ".fencepost").expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    if not environ.get("DATABASE_URL"):
        embedded.settle(home)  # settings are about to ask for its URL
    if not environ.get("SECRET_KEY"):
        environ["SECRET_KEY"] = _kept_secret_key(home) or _keep_secret_key(home)
    if not environ.get("ALLOWED_HOSTS"):
        environ["ALLOWED_HOSTS"] = ",".join([LOCAL_HOSTS, *_extra_host(environ.get("BIND", ""))])
    if not environ.get("FENCEPOST_JOBS"):
        environ["FENCEPOST_JOBS"] = "examples.jobs"


def _unknown_names(environ: Mapping[str, str]) -> list[str]:
    unknown = sorted(name for name in environ if name.startswith("FENCEPOST_") and name not in KNOWN_NAMES)
    return [f"{name} is not a known variable.{_did_you_mean(name)}" for name in unknown]


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, sorted(KNOWN_NAMES), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _guarded_names(environ: Mapping[str, str], allow_faults: bool) -> list[str]:
    """Fault injection in production is an outage, so its variables need a second, explicit one."""
    names = ("FENCEPOST_FAULT", "FENCEPOST_IGNORE_OWNERSHIP")
    if allow_faults:
        return []
    return [f"{name} is refused unless FENCEPOST_ALLOW_FAULTS=1." for name in names if environ.get(name)]


def _secret_key(reader: _Reader, home: Path) -> str:
    value = reader.text("SECRET_KEY") or _kept_secret_key(home)
    return reader.require("SECRET_KEY", value, "a long random text (`manage.py up` generates one)")


def _allowed_hosts(reader: _Reader, home: Path) -> tuple[str, ...]:
    default = LOCAL_HOSTS if _kept_secret_key(home) else ""
    value = reader.text("ALLOWED_HOSTS", default)
    reader.require("ALLOWED_HOSTS", value, "the host names of the site, with commas between them")
    return tuple(host.strip() for host in value.split(",") if host.strip())


def _kept_secret_key(home: Path) -> str:
    path = home / "secret_key"
    return path.read_text().strip() if path.exists() else ""


def _keep_secret_key(home: Path) -> str:
    key = secrets.token_urlsafe(50)
    path = home / "secret_key"
    path.touch(mode=0o600)
    path.write_text(key + "\n")
    return key


def _extra_host(bind: str) -> list[str]:
    return [bind] if bind and bind not in ("0.0.0.0", "::", *LOCAL_HOSTS.split(",")) else []


def _within(value: Value, low: Value, high: Value) -> Value:
    # Called with numbers alone; put this way round it refuses NaN too.
    if not low <= value <= high:  # type: ignore[operator]
        raise ValueError(value)
    return value


def _parse_flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _parse_url(text: str) -> str:
    if not urlsplit(text).scheme or "://" not in text:
        raise ValueError(text)
    return text


def _parse_database_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise ValueError(text)
    return text


def _parse_modules(text: str) -> tuple[str, ...]:
    modules = tuple(name.strip() for name in text.split(",") if name.strip())
    if not all(_MODULE.fullmatch(name) for name in modules):
        raise ValueError(text)
    return modules


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if any(re.search(r"\s", name) for name in names):
        raise ValueError(text)
    return names


def _parse_fault(text: str) -> str | None:
    if not _FAULT.fullmatch(text):
        raise ValueError(text)
    return text
