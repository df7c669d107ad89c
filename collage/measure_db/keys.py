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
class TimingKey:
    """Where the timing of a whole network is; ``description`` is for people."""

    key: NetworkKey
    description: str = ""

    def look_up(self, database: Database) -> Timing | None:
        """The timing that is recorded, or None."""
        return database.get_network(self.key)

    def record(self, database: Database, value: Timing) -> None:
        """Record a timing, replacing an earlier one."""
        database.put_network(self.key, value, self.description)


@dataclass(frozen=True)
class Raced:
    """A network's timing in an interleaved run, and the microseconds of each of its launches, if they were noted."""

    timing: Timing
    launches_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class RaceKey:
    """Where the timings of one interleaved run are, by label. They belong together: all are known, or all are made."""

    keys: Mapping[str, TimingKey]

    def look_up(self, database: Database) -> Mapping[str, Raced] | None:
        """All the timings, looked up in one query, or None where one of them is unknown."""
        timings = database.get_networks(key.key for key in self.keys.values())
        if any(key.key not in timings for key in self.keys.values()):
            return None
        launches = _LAUNCHES.known(database, (str(key.key) for key in self.keys.values()))
        return {
            label: Raced(timings[key.key], launches.get(str(key.key), ())) for label, key in self.keys.items()
        }

    def record(self, database: Database, value: Mapping[str, Raced]) -> None:
        """Record all the timings at once, or none of them."""
        with database.together():
            for label, raced in value.items():
                self.keys[label].record(database, raced.timing)
                if raced.launches_us:
                    _LAUNCHES.at(str(self.keys[label].key)).record(database, raced.launches_us)


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


_LAUNCHES: Fact[tuple[float, ...]] = Fact("launches_us", write_numbers, read_numbers)
