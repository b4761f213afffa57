"""Which shards a process works. It only saves work: with ownership ignored there are still no duplicates."""

import time
from datetime import datetime
from uuid import UUID, uuid4

from scheduler import telemetry
from scheduler.store import sessions, shards
from scheduler.store.statements import Connection

MAX_SKEW_S = 30.0


class Ownership:
    """Shares `wanted` shards fairly with the other live processes of its kind.

    The owner is a random uuid, never a host and pid: two containers may have the same.
    """

    def __init__(self, kind: str, *, shard_count: int, wanted: range, lease_s: float, ignore: bool) -> None:
        self.kind = kind
        self._shard_count = shard_count
        self._wanted = wanted
        self._lease_s = lease_s
        self._ignore = ignore
        self._owner: UUID = uuid4()
        self._owned: set[int] = set()
        self._signed_in = False
        self._renew_at = 0.0

    def hold(self, connection: Connection, now: datetime) -> list[int]:
        """The shards to work in this round; renews and balances at a third of the lease's length."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + self._lease_s / 3
            self._owned = self._balance(connection) if self._clock_agrees(now) else set()
            telemetry.SHARDS_OWNED.labels(self.kind).set(len(self._owned))
        return list(self._wanted) if self._ignore else sorted(self._owned)

    def forget(self) -> None:
        """Any doubt means "not owner", until the record says what is still ours. The name stays: under a new
        one a process whose connection was cut waited six seconds for leases that were its own.
        """
        self._owned = set()
        self._renew_at = 0.0

    def retire(self, connection: Connection) -> None:
        shards.release_shards(connection, kind=self.kind, owner=self._owner, shards=self._owned)
        sessions.close_session(connection, self._owner)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._owner, self._owned = uuid4(), set()
        self._signed_in = False
        self._renew_at = 0.0

    def _balance(self, connection: Connection) -> set[int]:
        self._sign_in(connection)
        owned = shards.renew_shards(connection, kind=self.kind, owner=self._owner, length_s=self._lease_s)
        share = -(-len(self._wanted) // max(1, sessions.live_sessions(connection, kind=self.kind)))
        surplus = sorted(owned)[share:]
        if surplus:
            owned -= shards.release_shards(connection, kind=self.kind, owner=self._owner, shards=surplus)
        if len(owned) < share:
            owned |= shards.acquire_shards(
                connection,
                kind=self.kind,
                owner=self._owner,
                length_s=self._lease_s,
                wanted=self._wanted,
                limit=share - len(owned),
            )
        return owned

    def _sign_in(self, connection: Connection) -> None:
        if self._signed_in and sessions.renew_session(
            connection, self._owner, load=sessions.Load(), length_s=self._lease_s
        ):
            return
        self._begin_anew()
        self._renew_at = time.monotonic() + self._lease_s / 3
        shards.make_shards(connection, kind=self.kind, shards=self._shard_count)
        sessions.open_session(
            connection,
            self._owner,
            kind=self.kind,
            worker=telemetry.who(),
            capacity=0,
            length_s=self._lease_s,
        )
        self._signed_in = True

    def _clock_agrees(self, now: datetime) -> bool:
        """The database's clock decides everything; a host that is far off is kept out all the same, for
        its waits and logs mislead.
        """
        skew = time.time() - now.timestamp()
        telemetry.CLOCK_SKEW.set(skew)
        if abs(skew) > MAX_SKEW_S:
            telemetry.alert("clock_skew", process=self.kind, seconds=round(skew, 1))
            return False
        return True
