"""Trusting: at first what is known of kernels counts, in whatever circumstances it was measured."""

from __future__ import annotations

from dataclasses import dataclass

from collage.compiler.state import Compilation, Context, Pass, run


@dataclass(frozen=True)
class Trusting:
    """Runs the passes, which take kernels' times as they are, also those that were measured on a busy machine.

    On a machine that is seldom quiet that may be half of all. A compile that goes on from an earlier one has a mix at
    once then. Later passes doubt these times, and begin with the kernels that take the longest.
    """

    passes: tuple[Pass, ...]

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set. Raises what they raise."""
        with context.workbench(compilation).measurer.trusting():
            return run(self.passes, context, compilation)
