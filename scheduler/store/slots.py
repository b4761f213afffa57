"""Slots given on by whoever settles a run outside of `end_attempts`, which does it in its own statement."""

from collections.abc import Sequence
from uuid import UUID

from scheduler.store.statements import Connection, load

SQL = load("claims")


def give_slots_on(connection: Connection, run_ids: Sequence[UUID]) -> None:
    """Free the slots of runs that are over, and wake who waits for them. The caller has locked both."""
    connection.execute(SQL["give_slots_on"], {"run_ids": list(run_ids)})
