"""CheckIndices: indices are checked before each run, also where an engine runs the model.

Not every engine checks them itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context
from collage.frontend.read.index_limits import index_limits


@dataclass(frozen=True)
class CheckIndices:
    """Gives the inputs of a module with a suffix the number of rows that they index in the model."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection's program where it has a suffix."""
        selected, form = compilation.result, compilation.form
        suffix = selected.parts.program.suffix
        if suffix is None or form is None:
            return compilation
        limits = index_limits(form.original)
        inputs = tuple(replace(port, rows=limits.get(port.name)) for port in suffix.inputs)
        program = replace(selected.parts.program, suffix=replace(suffix, inputs=inputs))
        parts = replace(selected.parts, program=program)
        return replace(compilation, selected=replace(selected, parts=parts))
