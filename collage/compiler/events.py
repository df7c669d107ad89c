"""Events: what happens in a compile, kept in the log of the ledger. The report is folded from them once, at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Outcome
from collage.report.report import GraphLevelReport


@dataclass(frozen=True)
class Noted:
    """A note for the user, in words."""

    text: str


@dataclass(frozen=True)
class Failed:
    """A kernel was rejected in a network, or a whole plan dropped."""

    text: str


@dataclass(frozen=True)
class Measured:
    """``count`` measurements were made: of kernels, layout transforms and networks."""

    count: int


@dataclass(frozen=True)
class Profiled:
    """The worker has spent these seconds, by kind of work."""

    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Searched:
    """A search took this many seconds, without the time for measurements."""

    seconds: float


@dataclass(frozen=True)
class Considered:
    """A candidate that a pass measured in addition to those that the search chose from, and the outcome.

    ``purpose`` stands in the report where other candidates have their pattern. A ``single_threaded`` candidate was
    built for one thread, to run beside others.
    """

    request: CandidateRequest
    purpose: str
    outcome: Outcome
    single_threaded: bool = False


@dataclass(frozen=True)
class Evolved:
    """The evolutionary search has ended."""

    report: GraphLevelReport


@dataclass(frozen=True)
class Bounded:
    """The model was placed within a ``tolerance`` by a metric, on samples that ``about`` describes.

    ``own`` is the error in the model's own dtypes, and ``rounds`` the number of placements that were run to correct
    what is predicted of errors. Where no error was measured, ``reason`` says why.
    """

    tolerance: float
    metric: str
    about: str = ""
    own: float | None = None
    rounds: int = 0
    reason: str = ""


Event: TypeAlias = "Noted | Bounded | Failed | Measured | Profiled | Searched | Considered | Evolved"
