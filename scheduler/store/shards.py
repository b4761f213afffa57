"""Shard ownership rows."""

from collections.abc import Collection
from uuid import UUID

from scheduler.store.statements import Connection, load

SQL = load("shards")


def make_shards(connection: Connection, *, kind: str, shards: int) -> None:
    connection.execute(SQL["make_shards"], {"kind": kind, "shards": shards})


def renew_shards(connection: Connection, *, kind: str, owner: UUID, length_s: float) -> set[int]:
    return _shards(connection, "renew_shards", kind=kind, owner=owner, length_s=length_s)


def acquire_shards(
    connection: Connection, *, kind: str, owner: UUID, length_s: float, wanted: Collection[int], limit: int
) -> set[int]:
    return _shards(
        connection,
        "acquire_shards",
        kind=kind,
        owner=owner,
        length_s=length_s,
        wanted=list(wanted),
        limit=limit,
    )


def release_shards(connection: Connection, *, kind: str, owner: UUID, shards: Collection[int]) -> set[int]:
    return _shards(connection, "release_shards", kind=kind, owner=owner, shards=list(shards))


def _shards(connection: Connection, statement: str, **parameters: object) -> set[int]:
    return {shard for (shard,) in connection.execute(SQL[statement], parameters)}
