"""The environment is checked as a whole, and every complaint names its variable."""

from pathlib import Path

import pytest

from scheduler.project.environment import ConfigurationError, Environment, load, provide_for_up

REQUIRED = {"SECRET_KEY": "secret", "ALLOWED_HOSTS": "jobs.example.com"}


def read(home: Path, **values: str) -> Environment:
    return load({"FENCEPOST_HOME": str(home), **REQUIRED, **values})


def problems(home: Path, **values: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read(home, **values)
    return caught.value.problems


def test_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    environment = read(tmp_path)
    assert (environment.shards, environment.look_ahead_s, environment.tick_batch) == (256, 10, 1000)
    assert (environment.shard_lease_s, environment.session_s, environment.dispatch_grace_s) == (6, 30, 5)
    assert (environment.sweep_rate, environment.breaker, environment.catch_up_budget) == (200, 0.85, 0.2)
    assert (environment.bind, environment.port, environment.debug) == ("127.0.0.1", 8000, False)
    assert (environment.http_allow_networks, environment.http_share) == ((), 0.5)
    assert environment.effects == tmp_path / "effects.jsonl"


def test_without_urls_everything_is_local(tmp_path: Path) -> None:
    environment = read(tmp_path)
    assert environment.embedded_database
    assert environment.embedded_broker
    assert environment.database_url.startswith("postgresql://fencepost@/fencepost?host=/")
    assert environment.broker_url == f"filesystem://localhost{tmp_path}/broker"


def test_one_database_url_serves_every_role_until_told_otherwise(tmp_path: Path) -> None:
    url = "postgresql://web@db/fencepost"
    environment = read(tmp_path, DATABASE_URL=url, ENGINE_DATABASE_URL="postgresql://engine@db/fencepost")
    assert environment.admin_database_url == url
    assert environment.engine_database_url == "postgresql://engine@db/fencepost"
    assert not environment.embedded_database


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PORT", "http", "a whole number from 1 to 65535"),
        ("PORT", "0", "a whole number"),
        ("DEBUG", "yes", "1 or 0"),
        ("DATABASE_URL", "mysql://root@db/jobs", "postgresql://"),
        ("DATABASE_URL", "postgresql://db", "postgresql://"),
        ("BROKER_URL", "localhost", "amqp://"),
        ("FENCEPOST_SHARDS", "1.5", "a whole number"),
        ("FENCEPOST_LOOK_AHEAD_S", "soon", "a number"),
        ("FENCEPOST_BREAKER", "85", "a number from 0 to 1"),
        ("FENCEPOST_CATCH_UP_BUDGET", "nan", "a number from 0 to 1"),
        ("FENCEPOST_HTTP_SHARE", "0", "a number from 0.01 to 1"),
        ("FENCEPOST_HTTP_ALLOW_NETWORKS", "10.0.0.1/8", "10.1.0.0/16"),
        ("FENCEPOST_HTTP_ALLOW_NETWORKS", "intern", "10.1.0.0/16"),
        ("FENCEPOST_JOBS", "examples/jobs.py", "module names"),
    ],
)
def test_a_bad_value_is_named_with_what_would_be_right(
    tmp_path: Path, name: str, value: str, expected: str
) -> None:
    (problem,) = problems(tmp_path, **{name: value})
    assert problem.startswith(f"{name}={value!r}")
    assert expected in problem


def test_keys_of_secrets_fall_back_on_the_secret_key_and_are_never_shown(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    assert read(tmp_path).secrets_keys == ("secret",)
    environment = read(tmp_path, FENCEPOST_SECRETS_KEY=f"{new}, {old}")
    assert environment.secrets_keys == (new, old)
    assert new not in repr(environment)
    (problem,) = problems(tmp_path, FENCEPOST_SECRETS_KEY=f"{new},canary")
    assert problem.startswith("FENCEPOST_SECRETS_KEY is not valid")
    assert "canary" not in problem


def test_an_unknown_name_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    assert problems(tmp_path, FENCEPOST_LOOKAHEAD_S="10") == [
        "FENCEPOST_LOOKAHEAD_S is not a known variable. Did you mean FENCEPOST_LOOK_AHEAD_S?"
    ]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, PORT="x", FENCEPOST_SHARD="1", FENCEPOST_BREAKER="-1")) == 3


@pytest.mark.parametrize("name", ["FENCEPOST_FAULT", "FENCEPOST_IGNORE_OWNERSHIP"])
def test_faults_need_a_second_variable(tmp_path: Path, name: str) -> None:
    value = "1" if name.endswith("OWNERSHIP") else "tick.after_insert:3:SLEEP=0.5"
    assert problems(tmp_path, **{name: value}) == [f"{name} is refused unless FENCEPOST_ALLOW_FAULTS=1."]
    read(tmp_path, FENCEPOST_ALLOW_FAULTS="1", **{name: value})


@pytest.mark.parametrize("fault", ["relay", "relay:0:KILL", "relay:1:kill", "relay:1:SLEEP=", "relay:1"])
def test_a_malformed_fault_is_refused(tmp_path: Path, fault: str) -> None:
    (problem,) = problems(tmp_path, FENCEPOST_ALLOW_FAULTS="1", FENCEPOST_FAULT=fault)
    assert problem.startswith("FENCEPOST_FAULT=")


@pytest.mark.parametrize("name", ["SECRET_KEY", "ALLOWED_HOSTS"])
def test_secrets_are_required_outside_of_up(tmp_path: Path, name: str) -> None:
    (problem,) = problems(tmp_path, **{name: ""})
    assert problem.startswith(f"{name} is required")


def test_up_provides_and_keeps_what_is_missing(tmp_path: Path) -> None:
    first = {"FENCEPOST_HOME": str(tmp_path), "DATABASE_URL": "postgresql://db/fencepost"}
    second = dict(first)
    provide_for_up(first)
    provide_for_up(second)
    assert first == second
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600
    assert load(first).jobs == ("examples.jobs",)


def test_up_overrides_nothing_that_is_set(tmp_path: Path) -> None:
    given = {"FENCEPOST_HOME": str(tmp_path), "DATABASE_URL": "postgresql://db/x", "FENCEPOST_JOBS": "mine"}
    environ = {**given, **REQUIRED}
    provide_for_up(environ)
    assert environ == {**given, **REQUIRED}


def test_other_commands_find_what_up_has_kept(tmp_path: Path) -> None:
    environ = {"FENCEPOST_HOME": str(tmp_path), "DATABASE_URL": "postgresql://db/fencepost"}
    provide_for_up(dict(environ))
    assert load(environ).allowed_hosts == ("127.0.0.1", "localhost", "[::1]")
