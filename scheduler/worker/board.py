"""What a worker process tells the attempts in its children: a page of memory that all of them share.

Each run that the process holds has a place on it. A child looks there at every call to its context, which
costs no more than reading a variable, and knows as soon as its parent that the run is lost or cancelled.
"""

import mmap
import threading
from collections import deque
from dataclasses import dataclass

PLACES = 65_536  # more than any pool has slots; pages that are not touched take no memory
NOBODY = 0  # fences begin at 1
_BELIEVED = 0
_SURE = 1
_DRAINING = 2
_HEAD = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """Set when its word holds `value`."""

    words: memoryview
    at: int
    value: int

    def set(self) -> None:
        self.words[self.at] = self.value

    def is_set(self) -> bool:
        return bool(self.words[self.at] == self.value)


@dataclass(frozen=True, slots=True)
class Vacancy:
    """Set when its word no longer holds this fence: the run left the place, or another has it."""

    words: memoryview
    at: int
    fence: int

    def set(self) -> None:
        if not self.is_set():
            self.words[self.at] = NOBODY

    def is_set(self) -> bool:
        return bool(self.words[self.at] != self.fence)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    index: int
    lost: Vacancy
    cancelled: Mark


class Board:
    """Made before the pool forks, written by the parent, read by all. Every word is eight bytes, aligned, and
    so is never seen half written.

    A place holds the fence of its run, and beside it the fence whose cancellation was asked for: whoever
    looks compares with the fence that it knows, so that a child that lingers is not misled by the next run.
    """

    def __init__(self, places: int = PLACES) -> None:
        page = mmap.mmap(-1, 8 * (_HEAD + 2 * places))
        self._instants = memoryview(page).cast("d")
        self._words = memoryview(page).cast("q")
        self._free = deque(range(places))
        self._lock = threading.Lock()
        self.draining = Mark(self._words, _DRAINING, 1)

    def believe(self, until: float, sure_until: float) -> None:
        """Until when, on this machine's monotonic clock, what is held may be believed held; and until when it
        is certain that nobody was given it.
        """
        self._instants[_BELIEVED] = until
        self._instants[_SURE] = sure_until

    def believed_until(self) -> float:
        return self._instants[_BELIEVED]

    def sure_until(self) -> float:
        return self._instants[_SURE]

    def take(self, fence: int) -> Place:
        """A place for a run that is held from now on. IndexError when there are no more."""
        with self._lock:
            index = self._free.popleft()
        place = self.find(index, fence)
        self._words[place.cancelled.at] = NOBODY
        self._words[place.lost.at] = fence
        return place

    def find(self, index: int, fence: int) -> Place:
        """The place that the parent took for this run."""
        word = _HEAD + 2 * index
        return Place(
            index=index,
            lost=Vacancy(self._words, word, fence),
            cancelled=Mark(self._words, word + 1, fence),
        )

    def give_back(self, place: Place) -> None:
        place.lost.set()
        with self._lock:
            self._free.append(place.index)
