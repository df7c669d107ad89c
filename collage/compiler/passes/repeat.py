"""Passes that are made of passes: Repeat runs them again when a kernel fails, and Either has a second way."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.proposal import NOT_CALIBRATED
from collage.compiler.state import Compilation, Context, Pass, run
from collage.errors import NoPlacementError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repeat:
    """Runs the passes, and runs them again from the same state when a kernel is rejected in a network.

    Every attempt but the last one rejects a kernel or drops a plan, and the database remembers it. There are at most
    ``attempts``. Plans of earlier passes may have that kernel, so only the first attempt has them, and what calibration
    has run before.
    """

    passes: tuple[Pass, ...]
    attempts: int = 200

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set. Raises NoPlacementError after the last attempt, and what the passes raise."""
        start = _recalled(context, compilation)
        for _ in range(self.attempts):
            try:
                return run(self.passes, context, start)
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("searching again: %s", error)
            start = replace(_recalled(context, compilation), plans=(), calibration=NOT_CALIBRATED)
        raise NoPlacementError("too many kernels fail in the network; leave out their backend.")


@dataclass(frozen=True)
class IfPlaced:
    """Runs the passes, and leaves everything as it was where they find no placement; later passes find more offers."""

    passes: tuple[Pass, ...]

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set, or nothing."""
        try:
            return run(self.passes, context, compilation)
        except NoPlacementError as error:
            log.info("no placement yet: %s", error)
            return compilation


@dataclass(frozen=True)
class Either:
    """Runs the first pass, or the second one where the first finds no placement."""

    first: Pass
    second: Pass

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what one of the two passes sets. Raises NoPlacementError where both fail."""
        try:
            return self.first(context, compilation)
        except NoPlacementError as error:
            log.info("trying another way: %s", error)
        return self.second(context, compilation)


def _recalled(context: Context, compilation: Compilation) -> Compilation:
    """The compilation, with kernels rejected that failed in a network since they were measured."""
    if not compilation.outcomes:
        return compilation
    known = context.workbench(compilation).measurer.known(compilation.outcomes)
    return replace(compilation, outcomes={**compilation.outcomes, **known})
