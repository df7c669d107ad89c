"""Passes made of passes: repeated when a kernel fails in a network, or replaced where nothing can be placed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.state import Compilation, Context, Pass, run
from collage.errors import NoPlacementError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repeat:
    """Runs the passes, and again from the state before them when a kernel is rejected in a network.

    All but the last of ``attempts`` reject a kernel, or drop a plan; the database remembers which.
    """

    passes: tuple[Pass, ...]
    attempts: int = 200

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set. Raises NoPlacementError."""
        for _ in range(self.attempts):
            try:
                return run(self.passes, context, _recalled(context, compilation))
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("searching again: %s", error)
        raise NoPlacementError("too many kernels fail in the network; leave out their backend.")


@dataclass(frozen=True)
class Either:
    """Runs the first passes, and the second ones instead where those find no placement."""

    first: Pass
    second: Pass

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what either of the two sets. Raises NoPlacementError."""
        try:
            return self.first(context, compilation)
        except NoPlacementError as error:
            log.info("trying another way: %s", error)
        return self.second(context, compilation)


def _recalled(context: Context, compilation: Compilation) -> Compilation:
    """The compilation, with what was rejected since it was measured, by whoever ran it in a network."""
    if not compilation.outcomes:
        return compilation
    known = context.workbench(compilation).measurer.known(compilation.outcomes)
    return replace(compilation, outcomes={**compilation.outcomes, **known})
