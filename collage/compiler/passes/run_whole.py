"""RunWhole: a model without a placement runs on the fastest engine.

It is for models that TVM cannot import, whose shapes depend on data, or whose values are no tensors (strings,
sequences, optionals).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from collage.compiler.state import Compilation, Context
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_trials import chosen, on_likely_numbers
from collage.errors import ModelError
from collage.frontend.read.apart import weight_files, without_weights
from collage.frontend.read.load import ModelSource, as_written
from collage.frontend.read.shapes import Shapes


@dataclass(frozen=True)
class RunWhole:
    """Tries the engines on the loaded model, and where none takes that, on the model as its author wrote it.

    The second form is for models which ``shapes`` (elements per axis, by name) cannot be written into. An example is a
    model with a network for each of two sampling rates, and a length that only one of the two accepts. ``reason`` says
    in one sentence why there is no placement, and ``written`` is where the model came from.
    """

    reason: str
    written: ModelSource
    shapes: Shapes = field(default_factory=dict)

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection: the fastest engine that is right. Raises ModelError with all reasons if there is none."""
        source = compilation.source
        form = WholeForm(source.original, source.example_inputs, self.reason, context.options.seed)
        try:
            return _fastest(context, compilation, form)
        except ModelError as error:
            problem = error
        untouched = as_written(self.written, weight_files(source.original))
        if not context.engines or without_weights(untouched) == without_weights(source.original):
            raise problem
        given = ", on inputs of the given shapes" if self.shapes else ""
        why = f"No engine takes what Collage makes of it, so it runs as its author wrote it{given}."
        reason = f"{self.reason.rstrip('.')}. {why}"
        try:
            other = replace(form, original=untouched, reason=reason, shapes=self.shapes)
            return _fastest(context, compilation, other)
        except ModelError as error:
            raise problem from error


def _fastest(context: Context, compilation: Compilation, form: WholeForm) -> Compilation:
    found, measured = on_likely_numbers(context, form)
    return chosen(context, compilation.told(measured), found)
