"""How many calls a worker makes at a time: a share of its slots for all endpoints, half of that for one.

So an endpoint that hangs holds neither the worker's other jobs nor the calls to other endpoints.
"""

import threading
from collections import Counter
from collections.abc import Callable
from uuid import UUID


class EndpointBounds:
    """`capacity`: the worker's slots, asked at each call, for pools grow and shrink. `share`: of them."""

    def __init__(self, *, capacity: Callable[[], int], share: float) -> None:
        self._capacity = capacity
        self._share = share
        self._inside: dict[UUID, str] = {}
        self._by_endpoint: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, claim_id: UUID, endpoint: str) -> bool:
        """False: there is no call to spare."""
        most = max(1, int(self._capacity() * self._share))
        with self._lock:
            if len(self._inside) >= most or self._by_endpoint[endpoint] >= max(1, most // 2):
                return False
            self._inside[claim_id] = endpoint
            self._by_endpoint[endpoint] += 1
            return True

    def leave(self, claim_id: UUID) -> None:
        """Whoever is not inside, or is no call at all, may say so too."""
        with self._lock:
            endpoint = self._inside.pop(claim_id, None)
            if endpoint is not None:
                self._by_endpoint -= Counter([endpoint])  # those at nought leave the table
