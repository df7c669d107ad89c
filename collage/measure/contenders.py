"""The races of a model's candidates: which of a region's run first, and which time the others have to beat.

A candidate races against those that are at least as exact: one in 8 bits against all, one in bfloat16 against others in
it and exact ones, and an exact candidate against exact ones only. Where little error is allowed, it is wanted, although
a less exact one is faster.

The fastest one is found sooner when the candidates come first that were fast on similar regions before: on regions of
the same operators, else on all regions. Nothing is left out for that reason, since measurements decide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from collage.graph.storage import BF16, FP16, INT8, STORED_INT8, TF32
from collage.measure.request_keys import precision_in, variant_text
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.busy import is_busy
from collage.measure_db.results import Measurement, Outcome, Rejection, Slower

Nodes: TypeAlias = "tuple[int, ...]"
Kind: TypeAlias = "tuple[str, str]"
"""The name of a backend, and the ``variant_text`` of a variant."""

EXACT = ""
"""The precision of candidates that compute in the model's own dtypes."""
_MORE_EXACT = {INT8: (BF16,), STORED_INT8: (BF16,), BF16: (TF32, FP16), FP16: (TF32,)}
"""For a reduced precision, the other ones whose kernels have smaller errors."""
_MANY = 5
_HOPELESS = 1.4
"""A kernel that was slower by this factor on so many regions of the same operators is not measured on others."""
_ENGINE_PRIOR, _PRIOR = 1.0, 0.1
"""Losses (see ``Losses``) that are expected where nothing is known: engines cost a context switch for each call."""


class Losses:
    """How much slower than the fastest one candidates were: logarithms of ratios of times.

    They are kept by operators, backend and variant, by backend and variant, and by backend.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[object, ...], list[float]] = defaultdict(list)

    def note(self, operators: str, kind: Kind, loss: float) -> None:
        """Record a loss."""
        backend, variant = kind
        for key in ((operators, backend, variant), (backend, variant), (backend,)):
            self._of[key].append(loss)

    def least(self, operators: str, kind: Kind) -> float:
        """The least factor by which the variant lost on regions of these operators; 1 where few of them are known."""
        found = self._of.get((operators, *kind), ())
        return math.exp(min(found)) if len(found) >= _MANY else 1.0

    def expected(self, operators: str, kind: Kind, prior: float) -> float:
        """The mean loss of the most similar candidates, or ``prior`` where none is known."""
        backend, variant = kind
        for key in ((operators, backend, variant), (backend, variant), (backend,)):
            if key in self._of:
                return fmean(self._of[key])
        return prior


@dataclass(frozen=True)
class Charges:
    """What calls cost on top of kernels' own times: ``switch_us`` microseconds for one of the ``engines``."""

    engines: frozenset[str] = frozenset()
    switch_us: float = 0.0


@dataclass(frozen=True)
class Field:
    """What is known before a race. ``charges`` are on top of candidates' own times, and rivals' times have them in.

    ``operators`` describes a region's operators. ``rivals_us`` are times by nodes, in microseconds, that candidates
    have to beat from the beginning. ``losses`` are those of earlier races, and those of this race are added.
    """

    charges: Charges = field(default_factory=Charges)
    operators: Callable[[Nodes], str] = str
    rivals_us: Mapping[Nodes, float] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)


class Contenders:
    """What was measured of the regions of one model, on the same number of threads; ``about`` was known before."""

    def __init__(self, about: Field | None = None) -> None:
        self.about = about or Field()
        self._rivals_us: dict[tuple[Nodes, str], float] = {}
        for nodes, us in self.about.rivals_us.items():
            self._rivals_us[nodes, EXACT] = us
        self._times: dict[Nodes, dict[Kind, float]] = {}
        self._new: set[tuple[Nodes, Kind]] = set()
        self._busy: dict[Nodes, float] = {}

    def in_order(self, requests: Iterable[CandidateRequest]) -> list[CandidateRequest]:
        """The requests of one region, the one that is expected to be the fastest first."""
        for nodes, kind in self._new:
            times = self._times[nodes]
            rivals = rivals_of(precision_in(kind[1]))
            fastest = min(us for (_, other), us in times.items() if precision_in(other) in rivals)
            self.about.losses.note(self.about.operators(nodes), kind, math.log(times[kind] / fastest))
        self._new.clear()
        return sorted(requests, key=self._expected)

    def hopeless(self, request: CandidateRequest) -> Slower | None:
        """The outcome of a candidate that will lose, before it is built: it has no samples (``repeats`` is 0).

        Its call alone takes as long as its rival, or its kind has lost many races. None if it has to be measured. If
        others of the region were measured while the machine was busy, they may be wrong about it, and it is marked as
        they are.
        """
        about, rival_us = self.about, self.rival_us(request)
        if math.isinf(rival_us):
            return None
        if rival_us <= 0:
            return Slower(0.0, 0.0, 0, self._busy.get(request.nodes))
        factor = about.losses.least(about.operators(request.nodes), _kind(request))
        if factor <= _HOPELESS:
            return None
        return Slower(factor * rival_us, rival_us, 0, self._busy.get(request.nodes))

    def is_open(self, request: CandidateRequest) -> bool:
        """Whether no earlier race tells that the candidate will be hopeless when others of its region are measured."""
        about = self.about
        return about.losses.least(about.operators(request.nodes), _kind(request)) <= _HOPELESS

    def _expected(self, request: CandidateRequest) -> float:
        prior = _ENGINE_PRIOR if request.backend in self.about.charges.engines else _PRIOR
        return self.about.losses.expected(self.about.operators(request.nodes), _kind(request), prior)

    def rival_us(self, request: CandidateRequest) -> float:
        """The microseconds that the candidate has to beat; infinite for a region's first one.

        It is negative where the rival takes less than a call of the candidate's engine costs.
        """
        precisions = rivals_of(request.variant.precision)
        best = min(self._rivals_us.get((request.nodes, each), math.inf) for each in precisions)
        return best - self._switch_us(request)

    def _switch_us(self, request: CandidateRequest) -> float:
        charges = self.about.charges
        return charges.switch_us if request.backend in charges.engines else 0.0

    def note(self, request: CandidateRequest, outcome: Outcome, *, new: bool = True) -> None:
        """Record the candidate's time, where one was seen. Only what was measured to the end is a rival of others.

        An outcome that is not ``new`` is among the losses already (see ``known_losses``). One that others disturbed is
        not a loss that says anything of other regions.
        """
        busy = None if isinstance(outcome, Rejection) else outcome.busy
        disturbed = is_busy(busy)
        if disturbed and busy is not None:
            self._busy[request.nodes] = max(busy, self._busy.get(request.nodes, 0.0))
        if isinstance(outcome, Measurement):
            us = outcome.median_us
            charged_us = us + self._switch_us(request)
            about = request.nodes, request.variant.precision
            self._rivals_us[about] = min(charged_us, self._rivals_us.get(about, math.inf))
        elif isinstance(outcome, Slower) and outcome.repeats:
            us = outcome.least_us
        else:
            return
        if us > 0:
            self._times.setdefault(request.nodes, {})[_kind(request)] = us
            if new and not disturbed:
                self._new.add((request.nodes, _kind(request)))


def rivals_of(precision: str) -> frozenset[str]:
    """The precisions of the candidates that one of this precision races against."""
    return frozenset((EXACT, precision, *_MORE_EXACT.get(precision, ())))


def _kind(request: CandidateRequest) -> Kind:
    return request.backend, variant_text(request.variant)
