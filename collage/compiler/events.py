"""What happens in a compile, as the log of its state has it. The report is made of these once, at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.measure_db.protocol import Request
from collage.measure_db.results import Outcome
from collage.measure_db.timing import Timing
from collage.report.report import GraphLevelReport


@dataclass(frozen=True)
class Noted:
    """Something that the user should know, in words."""

    text: str


@dataclass(frozen=True)
class Failed:
    """A kernel was rejected in a network, or a whole plan dropped."""

    text: str


@dataclass(frozen=True)
class Measured:
    """So many measurements were made: kernels, conversions and networks."""

    count: int


@dataclass(frozen=True)
class Searched:
    """A search took so many seconds, without what was measured for it."""

    seconds: float


@dataclass(frozen=True)
class Considered:
    """A candidate that was measured beside those that the search chose from, and what came of it.

    ``purpose`` stands in the report where others have their pattern. A ``single_threaded`` one was built for one
    thread, to run beside others.
    """

    request: Request
    purpose: str
    outcome: Outcome
    single_threaded: bool = False


@dataclass(frozen=True)
class Evolved:
    """The evolutionary search has ended."""

    report: GraphLevelReport


@dataclass(frozen=True)
class TriedEngine:
    """An engine was tried on ONNX nodes as they are: it has a timing, or there is a reason why not."""

    nodes: tuple[int, ...]
    engine: str
    timing: Timing | None
    reason: str = ""


Event: TypeAlias = "Noted | Failed | Measured | Searched | Considered | Evolved | TriedEngine"
