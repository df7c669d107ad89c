"""The mixin for backends that search for their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from collage.kernel.options import BuildOptions

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

TRIAL_LIMIT_S = 5.0
"""Seconds that ``Tuner.tune`` may take for each trial. After that the candidate may be rejected."""


class Tuner(ABC):
    """The part of a backend that tunes: ``class Mine(collage.Tuner, collage.Backend)``."""

    @abstractmethod
    def tunes(self, subgraph: Subgraph) -> bool:
        """Whether ``tune`` searches for this subgraph; else its kernels do not depend on ``tune_trials``."""

    @abstractmethod
    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        """Search for the best kernel in ``options.tune_trials`` trials. It is called once, before ``codegen``.

        The result is kept with the measurement and comes back as ``options.tuning``, in this or another process, so
        that ``codegen`` builds the kernel that was found without searching again. Raises like ``codegen``.
        """
