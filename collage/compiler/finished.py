"""What a finished compile has found, as plain values: a fact in the database, which the next compile recalls.

Nodes, kernels and costs are named here, and nothing of it is checked against a model: ``finished_plan`` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeAlias

from collage.compiler.events import Bounded
from collage.core.typed import typed
from collage.measure_db.database import Json
from collage.measure_db.keys import Fact, busiest
from collage.measure_db.results import Measurement, Outcome, Slower, Timing
from collage.report.report import GraphLevelReport

EDITION = 2
"""The edition of the search and of these values. Count it up when either changes, and every model is searched again."""

BUSY_SHARE = 0.25
"""A compile is as busy as its measurements are, but for this share of them. On a machine of our own some are disturbed,
too (3 to 9 % on a virtual one whose host has other guests). The mixes were run as a whole besides, and timings of the
last comparison count in any case."""

NamedVariant: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], str, str]
"""The storages of the inputs and outputs as text, the split, and the precision."""
NamedRequest: TypeAlias = tuple[tuple[int, ...], str, int, bool, str]
"""A request: nodes, backend, the number of the variant, and whether it is the original with which profile."""


@dataclass(frozen=True)
class NamedCandidate:
    """A candidate of a plan. ``variant`` is the number of one among all variants; all else is as in ``Candidate``."""

    nodes: tuple[int, ...]
    backend: str
    variant: int
    cost_us: float
    noise_us: float
    error: float
    finite_only: bool


@dataclass(frozen=True)
class NamedStreams:
    """A ``StreamPlan`` in plain values, with the kernel on one thread, or the transform's cost, for each launch."""

    algorithm: str
    order: tuple[int, ...]
    streams: tuple[int, ...]
    single_threaded: tuple[NamedCandidate | float | None, ...]


@dataclass(frozen=True)
class NamedPlan:
    """A ``Plan`` in plain values. Its transforms follow from the candidates, and ``transforms_us`` are their costs."""

    label: str
    exclusive: bool
    original: bool
    profile: str
    candidates: tuple[NamedCandidate, ...]
    transforms_us: tuple[float, ...]
    predicted_us: float
    exact: bool
    streams: NamedStreams | None


@dataclass(frozen=True)
class Shown:
    """What the report tells of a compile besides the plan and its kernels.

    ``timings`` are those of all compared plans by label, and ``baseline`` is the label of the fastest engine among
    them. ``launches_us`` and ``predicted_us`` are the times of the selected plan's launches, and what they add up to.
    ``epsilon_us`` is the cost of a switch. All times are in microseconds.
    """

    timings: Mapping[str, Timing]
    baseline: str
    launches_us: tuple[float, ...]
    predicted_us: float
    epsilon_us: float
    notes: tuple[str, ...]
    bounded: Bounded | None
    evolved: GraphLevelReport | None


@dataclass(frozen=True)
class Finished:
    """What a compile has found that has ended by itself.

    - ``plan``: the selected one; ``kernels_us`` are the times of its kernels by themselves, in the order of the
      launches, as they were measured. There is None for a view.
    - ``shown``: what else the report tells.
    - ``suggested``: offers that Place has added, with their purpose.
    - ``considered``: what other passes have measured, with its purpose, and whether it was for one thread.
    - ``in_network``: times in the network that counted in the place of times measured alone.
    - ``variants``: those that the others name by number.
    - ``busy``: how busy the machine was; it is kept beside the value, and is not read back.
    """

    plan: NamedPlan
    kernels_us: tuple[float | None, ...]
    shown: Shown
    suggested: tuple[tuple[NamedRequest, str], ...]
    considered: tuple[tuple[NamedRequest, str, bool], ...]
    in_network: tuple[tuple[NamedRequest, float], ...]
    variants: tuple[NamedVariant, ...]
    busy: float | None = field(default=None, compare=False)


def busy_during(outcomes: Iterable[Outcome], timings: Mapping[str, Timing]) -> float | None:
    """How busy the machine was in a compile with these outcomes, whose last comparison had these timings.

    It is the number that all but a few of the outcomes are below, and all of the timings. None where it is not known.
    """
    known: Sequence[float] = sorted(
        each.busy
        for each in outcomes
        if isinstance(each, (Measurement, Slower)) and each.repeats and each.busy is not None
    )
    found = [known[-1 - int(BUSY_SHARE * len(known))]] if known else []
    last = busiest(timings)
    return max((*found, *([] if last is None else [last])), default=None)


def _write(found: Finished) -> Json:
    value: Json = asdict(replace(found, busy=None))
    return value


def _read(value: Any) -> Finished:
    return typed(Finished, value)


FINISHED: Fact[Finished] = Fact("finished_compile", _write, _read, attrgetter("busy"))
