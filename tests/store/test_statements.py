"""Every named statement is prepared against the migrated schema: a renamed column fails in milliseconds."""

import re

import psycopg
import pytest

from scheduler.store.statements import every_statement

STATEMENTS = {f"{room}.{name}": text for room, name, text in every_statement()}


@pytest.mark.parametrize("name", STATEMENTS)
def test_it_fits_the_schema(name: str, module_database: str) -> None:
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match.group(1), len(numbers) + 1)}"

    text = re.sub(r"%\((\w+)\)s", numbered, STATEMENTS[name].decode())
    with psycopg.connect(module_database) as connection:
        connection.execute(f"PREPARE probe AS {text}".encode())


def test_there_are_statements() -> None:
    assert {"due.materialise", "outbox.release", "claims.claim", "claims.end_attempts"} <= set(STATEMENTS)
