"""The rows of a database as they were at one moment, put back in milliseconds before each of many plays."""

from typing import Any

import psycopg
from psycopg import sql

_TABLES = """
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace
  AND relname !~ '^(django|auth)_'
ORDER BY relname
"""


class Snapshot:
    """Taken where it is made; lives as long as its connection, where no trigger looks on."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        connection.execute("SET session_replication_role = replica")
        statements = [sql.SQL("BEGIN")]
        for (name,) in connection.execute(_TABLES).fetchall():
            table, kept = sql.Identifier(name), sql.Identifier(f"kept_{name}")
            statements.append(sql.SQL("DELETE FROM {}").format(table))
            copied = connection.execute(sql.SQL("CREATE TEMP TABLE {} AS TABLE {}").format(kept, table))
            if copied.rowcount:
                put_back = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE TABLE {}")
                statements.append(put_back.format(table, kept))
        self._restore = sql.SQL("; ").join([*statements, sql.SQL("COMMIT")]).as_bytes(connection)

    def restore(self) -> None:
        self.connection.execute(self._restore)
