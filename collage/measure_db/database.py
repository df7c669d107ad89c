"""The measurement database: SQLite, safe for several processes at once, nothing measured is ever lost.

Every put commits at once, in WAL mode: killing the process between two puts loses nothing. Many keys are looked up in
one query.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from collage.core.nvml import Clocks
from collage.core.typed import parse_object, typed
from collage.measure_db.database_file import DatabaseFile
from collage.measure_db.doubt import Doubt
from collage.measure_db.results import GATE, Measurement, Outcome, Rejection, RejectionKind, Slower, Timing
from collage.measure_db.tables import FACTS, KERNELS, NETWORKS

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

T = TypeVar("T")


@dataclass(frozen=True)
class KernelKey:
    """What a kernel's time depends on. ``digest`` is Subgraph.digest, ``hardware`` Target.measured_on.

    ``settings`` is Backend.settings; neither a path nor a position in a model is part of it.
    """

    digest: str
    backend: str
    backend_version: str
    settings: str
    threads: int
    hardware: str
    tvm_version: str


@dataclass(frozen=True)
class NetworkKey:
    """What a whole network's time depends on: ``placement`` is a digest of regions and their backends."""

    graph: str
    placement: str
    threads: int
    hardware: str
    versions: str


@dataclass(frozen=True)
class DatabaseStats:
    """What is in a database. ``measured`` and ``rejected`` count kernels by backend."""

    path: str
    file_bytes: int
    measured: Mapping[str, int]
    rejected: Mapping[str, int]
    rejections: Mapping[str, int]
    """Counts of rejected kernels by kind of rejection."""
    hardware: Mapping[str, int]
    """Counts of kernels by device."""
    networks: int
    facts: int


Limit: TypeAlias = Callable[[KernelKey], float]
"""The most seconds that a candidate may take."""


class Key(Protocol[T]):
    """Where a value is in a database (see ``collage.measure_db.keys``)."""

    def look_up(self, database: Database) -> T | None:
        """The value that is recorded, or None."""

    def record(self, database: Database, value: T) -> None:
        """Record a value, replacing an earlier one."""


class Database(DatabaseFile):
    """The tables of an open database: kernels, networks, and facts. All methods raise DatabaseError."""

    _doubt: Doubt | None = None
    _best: dict[str, Mapping[str, Clocks]] | None = None

    def remember(self, key: Key[T], make: Callable[[], T]) -> T:
        """The value recorded under the key, else what ``make`` returns, which is recorded."""
        known = key.look_up(self)
        if known is None:
            known = make()
            key.record(self, known)
        return known

    def doubt(self, doubt: Doubt) -> None:
        """Take for unknown what was recorded before now in circumstances that are over now."""
        self._doubt, self._best = doubt, {}

    def _doubts_outcome(self, outcome: Outcome, key: KernelKey, created: float, limit_s: Limit) -> bool:
        """Whether the outcome of a kernel is doubted."""
        if self._doubt is None:
            return False
        if isinstance(outcome, Rejection):
            return self._doubt.rejected(outcome, key.backend, created, limit_s(key))
        if outcome.clocks is None or self._best is None:
            return False
        if key.hardware not in self._best:
            self._best[key.hardware] = self.best_clocks(key.hardware)
        return self._doubt.slow(outcome.clocks, self._best[key.hardware], created)

    def best_clocks(self, hardware: str) -> Mapping[str, Clocks]:
        """The highest clocks that kernels were measured at on the GPUs of that hardware, by the GPU's name."""
        rows = self.run(_BEST_CLOCKS, (hardware,))
        try:
            return {
                str(gpu): Clocks(str(gpu), int(sm_mhz), int(memory_mhz))
                for gpu, sm_mhz, memory_mhz in rows
                if _numbers((sm_mhz, memory_mhz))
            }
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from error

    def get(self, keys: Iterable[KernelKey], limit_s: Limit = lambda _: 0.0) -> dict[KernelKey, Outcome]:
        """The outcomes known for these keys, in one query; keys never measured are left out.

        Outcomes that an earlier edition of the numerics gate made are left out, too (see ``results.GATE``), and those
        that are doubted (see ``doubt``). ``limit_s`` tells the most seconds that a candidate may take now.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        rows = self.run(_GET, (_asked(wanted), self._since, GATE))
        try:
            found = {wanted[number]: (_outcome(row), created) for number, created, *row in rows}
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from error
        return {
            key: outcome
            for key, (outcome, created) in found.items()
            if not self._doubts_outcome(outcome, key, created, limit_s)
        }

    def put(self, key: KernelKey, outcome: Outcome, description: str = "") -> None:
        """Record an outcome, replacing an earlier one; ``description`` is for people: ``conv2d+add+relu``."""
        if isinstance(outcome, Measurement):
            numbers = astuple(replace(outcome, clocks=None))[:-1]
            found: tuple[Any, ...] = (*numbers, _clocks_text(outcome.clocks), None, None, None, None)
        elif isinstance(outcome, Slower):
            least_us = outcome.least_us
            found = (least_us, 0.0, least_us, outcome.repeats, 0.0, outcome.tuning, False, outcome.busy)
            found = (*found, _clocks_text(outcome.clocks), outcome.rival_us, None, None, None)
        else:
            found = (None, None, None, None, None, "", False, None, None, None)
            found = (*found, outcome.kind.value, outcome.message, outcome.free_bytes)
        self.run(KERNELS.put, (*astuple(key), *found, GATE, time.time(), description))

    def times(self) -> list[tuple[KernelKey, str, float]]:
        """The keys, descriptions and microseconds of all kernels that were timed, also of those that lost races.

        The times of the latter are lower bounds.
        """
        try:
            return [
                (KernelKey(*key), str(text), float(_numbers((us,))[0]))
                for *key, text, us in self.run(_TIMES, (GATE, self._since))
            ]
        except TypeError as error:
            raise self._damaged(str(error)) from error

    def get_networks(self, keys: Iterable[NetworkKey]) -> dict[NetworkKey, Timing]:
        """The end-to-end timings known for these keys, in one query; keys without one are left out."""
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        rows = self.run(_GET_NETWORKS, (_asked(wanted), self._since))
        try:
            return {wanted[number]: _timing(row) for number, *row in rows}
        except TypeError as error:
            raise self._damaged(str(error)) from error

    def get_network(self, key: NetworkKey) -> Timing | None:
        """The end-to-end timing known for that key, or None."""
        return self.get_networks([key]).get(key)

    def put_network(self, key: NetworkKey, timing: Timing, description: str = "") -> None:
        """Record an end-to-end timing, replacing an earlier one."""
        self.run(NETWORKS.put, (*astuple(key), *astuple(timing), time.time(), description))

    def get_facts(self, name: str, keys: Iterable[str]) -> dict[str, Json]:
        """Small values recorded under a name (``"epsilon_us"``) and these keys (machine, versions), in one query.

        Keys without a value are left out.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        rows = self.run(_GET_FACTS, (json.dumps(wanted), name, self._since))
        found: dict[str, Json] = {}
        for number, value in rows:
            try:
                found[wanted[number]] = json.loads(value)
            except (TypeError, ValueError) as error:
                raise self._damaged(f"{value!r:.80} is no value of {name}") from error
        return found

    def facts_of(self, name: str) -> list[tuple[str, str]]:
        """The keys of all values that are recorded under a name, and the values as JSON."""
        return [
            (str(key), str(value))
            for key, value in self.run("SELECT key, value FROM facts WHERE name = ? ORDER BY key", (name,))
        ]

    def put_fact(self, name: str, key: str, value: Json) -> None:
        """Record a small value, replacing an earlier one."""
        self.run(FACTS.put, (name, key, json.dumps(value), None, time.time()))

    def stats(self) -> DatabaseStats:
        """Counts of what is recorded, for ``collage db stats``."""
        return DatabaseStats(
            path=str(self.path),
            file_bytes=sum(each.stat().st_size for each in self.path.parent.glob(self.path.name + "*")),
            measured=self._counts("backend", "WHERE rejection IS NULL"),
            rejected=self._counts("backend", "WHERE rejection IS NOT NULL"),
            rejections=self._counts("rejection", "WHERE rejection IS NOT NULL"),
            hardware=self._counts("hardware", ""),
            networks=self.run("SELECT count(*) FROM networks")[0][0],
            facts=self.run("SELECT count(*) FROM facts")[0][0],
        )

    def _counts(self, column: str, where: str) -> dict[str, int]:
        query = f"SELECT {column}, count(*) FROM kernels {where} GROUP BY {column} ORDER BY {column}"
        return dict(self.run(query))


def _matches(keys: Sequence[str]) -> str:
    """A condition that the columns are those of a wanted key, which is a JSON list."""
    return " AND ".join(
        f"{column} = json_extract(wanted.value, '$[{position}]')" for position, column in enumerate(keys)
    )


_KEY = KERNELS.columns[: KERNELS.keys]
_OUTCOME = ", ".join(KERNELS.columns[KERNELS.keys : KERNELS.columns.index("gate")])
# CROSS JOIN keeps SQLite to this order: one look-up in the primary key for each wanted key.
_GET = (
    f"SELECT wanted.key, created, {_OUTCOME} FROM json_each(?) AS wanted CROSS JOIN kernels ON {_matches(_KEY)} "
    "AND created >= ? AND gate = ?"
)
_BEST_CLOCKS = (
    "SELECT json_extract(clocks, '$.gpu') AS gpu, max(json_extract(clocks, '$.sm_mhz')), "
    "max(json_extract(clocks, '$.memory_mhz')) FROM kernels WHERE json_valid(clocks) AND hardware = ? GROUP BY gpu"
)
_TIMES = (
    f"SELECT {', '.join(_KEY)}, description, median_us FROM kernels WHERE gate = ? AND created >= ? "
    f"AND rejection IS NULL AND repeats > 0 ORDER BY {', '.join(_KEY)}"
)
_TIMING = ", ".join(NETWORKS.columns[NETWORKS.keys : NETWORKS.columns.index("created")])
_GET_NETWORKS = (
    f"SELECT wanted.key, {_TIMING} FROM json_each(?) AS wanted CROSS JOIN networks "
    f"ON {_matches(NETWORKS.columns[: NETWORKS.keys])} AND created >= ?"
)
_GET_FACTS = (
    "SELECT wanted.key, facts.value FROM json_each(?) AS wanted CROSS JOIN facts "
    "ON facts.key = wanted.value AND facts.name = ? AND facts.created >= ?"
)


def _asked(keys: Sequence[KernelKey] | Sequence[NetworkKey]) -> str:
    """Keys for a query."""
    return json.dumps([astuple(key) for key in keys])


def _outcome(row: Sequence[Any]) -> Outcome:
    *numbers, tuning, finite_only, busy, clocks, rival_us, rejection, message, free_bytes = row
    if rejection is None:
        median_us, noise_us, min_us, repeats, max_error = _numbers(numbers)
        if rival_us is not None:
            (rival_us,) = _numbers([rival_us])
            return Slower(min_us, rival_us, repeats, _busy(busy), read_clocks(clocks), tuning)
        return Measurement(
            *(median_us, noise_us, min_us, repeats, max_error, tuning, bool(finite_only)),
            *(_busy(busy), read_clocks(clocks)),
        )
    free_bytes = None if free_bytes is None else int(_numbers([free_bytes])[0])
    return Rejection(RejectionKind(rejection), message, free_bytes)


def read_clocks(text: Any) -> Clocks | None:
    """The clocks that a column holds. Raises ValueError where it holds something else."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is no text of clocks")
    return typed(Clocks, parse_object(text.encode()))


def _clocks_text(clocks: Clocks | None) -> str | None:
    return None if clocks is None else json.dumps(asdict(clocks))


def _timing(row: Sequence[Any]) -> Timing:
    *numbers, busy = row
    median_us, noise_us, min_us, p90_us, repeats = _numbers(numbers)
    return Timing(median_us, noise_us, min_us, p90_us, repeats, _busy(busy))


def _busy(value: Any) -> float | None:
    """How busy the machine was. Raises TypeError like ``_numbers``."""
    return None if value is None else float(_numbers((value,))[0])


def _numbers(row: Sequence[Any]) -> Sequence[Any]:
    """Return the row. Raises TypeError where a damaged page has made something else of a number."""
    for each in row:
        if not isinstance(each, (int, float)):
            raise TypeError(f"{each!r:.80} is no number")
    return row
