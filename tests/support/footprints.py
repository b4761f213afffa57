"""What a step of an actor touches, read off its SQL: steps that touch nothing in common can change places.

Under READ COMMITTED a statement sees what was committed before it, so that what others write is nothing to
it until they commit, except for the locks that come with writing. The grain is the table, never too fine: a
table that is only mentioned counts as read, and the parents of a foreign key are locked with the child.
Rows that a statement locked without waiting, or did not find, are not known beforehand: it counts as locking.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg

from scheduler.store.statements import every_statement

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Tables that it reads, takes locks in, gives locks in free, and shows the changes of to others."""

    label: str
    reads: frozenset[str] = NOTHING
    locks: frozenset[str] = NOTHING
    frees: frozenset[str] = NOTHING
    shows: frozenset[str] = NOTHING

    @property
    def touches_nothing(self) -> bool:
        return not (self.reads or self.locks or self.frees or self.shows)

    def __or__(self, other: "Step") -> "Step":
        return Step(
            label=self.label,
            reads=self.reads | other.reads,
            locks=self.locks | other.locks,
            frees=self.frees | other.frees,
            shows=self.shows | other.shows,
        )

    def is_independent_of(self, other: "Step") -> bool:
        return not (self.locks & other.locks or self._concerns(other) or other._concerns(self))

    def _concerns(self, other: "Step") -> bool:
        return bool(self.frees & other.locks or self.shows & (other.reads | other.locks))


@dataclass(frozen=True)
class _Shape:
    label: str
    mentioned: frozenset[str]
    locked: frozenset[str]
    written: frozenset[str]
    of_lists: bool


_TEXTS = re.compile(r"--[^\n]*|'[^']*'")
_MENTIONED = re.compile(
    r'(?:\bFROM|\bJOIN|\bUPDATE|\bINTO|\bUSING|\bONLY|,)\s+"?(\w+)"?|\b(fencepost_\w+)', re.I
)
_WRITTEN = re.compile(r'\b(?:UPDATE|INSERT\s+INTO|DELETE\s+FROM)\s+"?(\w+)"?', re.I)
_LOCKED = re.compile(r"\bFOR\s+(?:UPDATE|SHARE|NO\s+KEY\s+UPDATE|KEY\s+SHARE)\b(?:\s+OF\s+(\w+))?", re.I)
_INSIDE_FUNCTIONS = {"fencepost_counted_runs": "occurrence"}


class Catalogue:
    """The tables of a database. `single`: those with one row in every scene of a test, where whoever holds
    the row takes no further lock by writing it again.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, single: Collection[str] = ()) -> None:
        tables = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p')"
        parents = "SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint"
        self._tables = {name for (name,) in connection.execute(tables)}
        self._parents = connection.execute(parents + " WHERE contype = 'f'").fetchall()
        self._single = frozenset(single)
        self._names = {text.decode(): f"{room}.{name}" for room, name, text in every_statement()}
        self._shape = lru_cache(maxsize=None)(self._read)

    def step(self, query: Any, parameters: Any, *, held: Collection[str], alone: bool) -> Step:
        """`held`: what the open transaction has locked; `alone`: the statement is a transaction by itself."""
        shape = self._shape(query.decode() if isinstance(query, bytes) else str(query))
        if shape.of_lists and _are_empty(parameters):
            return Step(label=shape.label)
        return Step(
            label=shape.label,
            reads=shape.mentioned,
            locks=shape.locked - (self._single & frozenset(held)),
            frees=shape.locked if alone else NOTHING,
            shows=shape.written if alone else NOTHING,
        )

    def effect(self, query: Any) -> tuple[frozenset[str], frozenset[str]]:
        """Tables it locks rows of, and of these those that it writes."""
        shape = self._shape(query.decode() if isinstance(query, bytes) else str(query))
        return shape.locked, shape.written

    def _read(self, text: str) -> _Shape:
        bare = _TEXTS.sub("", text)
        names = {table or _INSIDE_FUNCTIONS[function] for table, function in _MENTIONED.findall(bare)}
        mentioned = names & self._tables
        written = set(_WRITTEN.findall(bare)) & self._tables
        locked = written | {parent for child, parent in self._parents if child in written}
        for alias in _LOCKED.findall(bare):
            locked |= _behind(alias, bare) & mentioned if alias else mentioned
        verb = "lock" if _LOCKED.search(bare) else bare.split(maxsplit=1)[0]
        label = self._names.get(text) or f"{verb} {', '.join(sorted(mentioned))}"
        return _Shape(
            label=label,
            mentioned=frozenset(mentioned),
            locked=frozenset(locked),
            written=frozenset(written),
            of_lists=bool(re.search(r"unnest\(\s*%\(", bare)),
        )


def _behind(alias: str, text: str) -> set[str]:
    return set(re.findall(rf'"?(\w+)"?\s+(?:AS\s+)?"?{alias}\b', text, re.I))


def _are_empty(parameters: Any) -> bool:
    lists = [value for value in parameters.values() if isinstance(value, list)]
    return not any(lists)
