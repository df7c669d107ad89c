"""What measurements of all models tell about candidates: by how much they lost, on regions of the same operators.

The rows of a database are one data set. They say which candidates to measure first, and which ones have lost so often
that they are not measured on one more region (see ``Contenders``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeAlias

import tvm

from collage.measure.request_keys import precision_in, variant_in, variant_text
from collage.measure.settings import MeasureSettings
from collage.measure.timing.race import rivals_of
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database

Kind: TypeAlias = "tuple[str, str]"
"""The name of a backend, and the ``variant_text`` of a variant."""

_PRIOR = 0.1
"""The loss that is expected where nothing is known."""


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

    def expected(self, operators: str, kind: Kind, prior: float) -> float:
        """The mean loss of the most similar candidates, or ``prior`` where none is known."""
        backend, variant = kind
        for key in ((operators, backend, variant), (backend, variant), (backend,)):
            if key in self._of:
                return fmean(self._of[key])
        return prior

    def in_order(
        self, region: Sequence[CandidateRequest], operators: Callable[[tuple[int, ...]], str]
    ) -> list[CandidateRequest]:
        """The candidates of a region, those first that are expected to lose the least."""
        text = operators(region[0].nodes)
        return sorted(
            region, key=lambda each: self.expected(text, (each.backend, variant_text(each.variant)), _PRIOR)
        )


def known_losses(database: Database, settings: MeasureSettings) -> Losses:
    """The losses of all kernels in the database that were measured with these libraries, on as many threads.

    Regions with the same digest are the same operators on the same shapes, so that their kernels are rivals, as far as
    their precisions allow (see ``contenders``). Raises DatabaseError.
    """
    regions: dict[str, list[tuple[str, str, str, float]]] = defaultdict(list)
    for key, description, us in database.times(settings.hardware, settings.threads, tvm.__version__):
        if settings.versions.get(key.backend) == key.backend_version and us > 0:
            operators = description.partition(" (")[0]
            regions[key.digest].append((operators, key.backend, variant_in(key), us))
    losses = Losses()
    for kernels in regions.values():
        fastest_us: dict[str, float] = {}
        for *_, variant, us in kernels:
            precision = precision_in(variant)
            fastest_us[precision] = min(us, fastest_us.get(precision, us))
        for operators, backend, variant, us in kernels:
            rivals_us = (fastest_us[each] for each in rivals_of(precision_in(variant)) & fastest_us.keys())
            losses.note(operators, (backend, variant), math.log(us / min(rivals_us)))
    return losses
