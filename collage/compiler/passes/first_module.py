"""FirstModule: within seconds there is a module to hand over, the fastest engine on the model as its author wrote it.

It is found with few samples, and its outputs are compared with those of ONNX Runtime. Whatever the other passes find,
and whenever they are stopped, a compile hands over nothing slower.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_trials import on_likely_numbers
from collage.errors import ModelError
from collage.measure.timing.effort import FIRST
from collage.report.words import as_written

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FirstModule:
    """Tries the engines on the whole model, or recalls what an earlier compile has found.

    The engine is loaded in this process only when the module is handed over, so that nothing competes with the
    measurements.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the first module, unless no engine runs the model on the inputs that there are."""
        if not context.engines:
            return compilation
        source, options = compilation.source, context.options
        form = WholeForm(source.original, source.example_inputs, "", options.seed)
        quick = replace(context, options=replace(options, effort=FIRST))
        try:
            found, measured = on_likely_numbers(quick, form)
        except ModelError as error:
            log.info("%s: no engine runs the whole model: %s", source.name, error)
            return compilation
        if found.timing is None:
            return compilation.told(measured)
        label, us = f"{found.engine}, {as_written('')}", found.timing.median_us
        context.course.improved(label, us, (label, us))
        lean = replace(
            found, form=replace(form, numbers=found.form.numbers)
        )  # without its copy of the model's bytes
        return replace(compilation, first=lean).told(measured)
