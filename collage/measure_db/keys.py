"""Typed keys for ``Database.remember``: where a value is recorded, and how it is read back.

A value that cannot be read back, because an older Collage wrote it in another form, counts as unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from collage.measure_db.database import Database, Json, NetworkKey
from collage.measure_db.results import Timing

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A kind of small value, with the name of its rows, and how a value becomes JSON and is read back.

    ``read`` raises an error, or returns None, for JSON that holds no such value.
    """

    name: str
    write: Callable[[T], Json]
    read: Callable[[Any], T | None]

    def at(self, key: str) -> FactKey[T]:
        """Where the value for a key is. The key names all that the value depends on: machine, versions, digests."""
        return FactKey(self, key)

    def known(self, database: Database, keys: Iterable[str]) -> dict[str, T]:
        """The values that are recorded for these keys, in one query. Keys without a value are left out."""
        found: dict[str, T] = {}
        for key, value in database.get_facts(self.name, keys).items():
            try:
                read = self.read(value)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                log.info("%s for %s is not understood and made again: %s", self.name, key, error)
                continue
            if read is not None:
                found[key] = read
        return found


@dataclass(frozen=True)
class FactKey(Generic[T]):
    """Where one fact is."""

    fact: Fact[T]
    key: str

    def look_up(self, database: Database) -> T | None:
        """The value that is recorded, or None."""
        return self.fact.known(database, [self.key]).get(self.key)

    def record(self, database: Database, value: T) -> None:
        """Record a value, replacing an earlier one."""
        database.put_fact(self.fact.name, self.key, self.fact.write(value))


@dataclass(frozen=True)
class RaceKey:
    """Where the timings of one interleaved run are, by label, with descriptions for people.

    They belong together: all are known, or all are made.
    """

    keys: Mapping[str, tuple[NetworkKey, str]]

    def look_up(self, database: Database) -> Mapping[str, Timing] | None:
        """All the timings, looked up in one query, or None if one of them is unknown."""
        timings = database.get_networks(key for key, _ in self.keys.values())
        if any(key not in timings for key, _ in self.keys.values()):
            return None
        return {label: timings[key] for label, (key, _) in self.keys.items()}

    def record(self, database: Database, value: Mapping[str, Timing]) -> None:
        """Record all the timings at once, or none of them."""
        with database.together():
            for label, timing in value.items():
                key, description = self.keys[label]
                database.put_network(key, timing, description)


def as_number(value: Any) -> float | None:
    """The number, or None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def write_numbers(values: tuple[float, ...]) -> Json:
    """Numbers as JSON."""
    return list(values)


def read_numbers(value: Any) -> tuple[float, ...]:
    """The inverse of ``write_numbers``."""
    return tuple(float(each) for each in value)


def read_text(value: Any) -> str | None:
    """The text, or None for anything else."""
    return value if isinstance(value, str) else None
