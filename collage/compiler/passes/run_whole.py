"""RunWhole: a model without a placement runs on the fastest engine.

It is for models that TVM cannot import, whose shapes depend on data, or whose values are no tensors (strings,
sequences, optionals).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from collage.backends.onnx_engine import MAX_BYTES
from collage.compiler.engine_trials import OnEngines, engine_region, events_of, mark, trial_of
from collage.compiler.events import Noted
from collage.compiler.plan import SEQUENTIAL
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_form import WholeForm
from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.compared import compared_numbers
from collage.frontend.load import ModelSource, as_written
from collage.frontend.shapes import Shapes, model_inputs
from collage.kernel.options import BuildOptions
from collage.measure_db.whole_trial import EngineTrial
from collage.runtime.parts import Parts, load_parts
from collage.schedule.program import make_program
from collage.schedule.suffix import Suffix

_UNMEASURED = (
    "no engine runs the model on made-up inputs; give inputs of your own with --input (inputs= in Python)"
)


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
            return _on_likely_numbers(context, compilation, form)
        except ModelError as error:
            problem = error
        untouched = as_written(self.written)
        if not context.engines or untouched == source.original:
            raise problem
        given = ", on inputs of the given shapes" if self.shapes else ""
        why = f"No engine takes what Collage makes of it, so it runs as its author wrote it{given}."
        reason = f"{self.reason.rstrip('.')}. {why}"
        try:
            other = replace(form, original=untouched, reason=reason, shapes=self.shapes)
            return _on_likely_numbers(context, compilation, other)
        except ModelError as error:
            raise problem from error


def _on_likely_numbers(context: Context, compilation: Compilation, form: WholeForm) -> Compilation:
    """The fastest engine, on inputs with the numbers that the model compares them with.

    Where no engine runs on these, other inputs are tried.
    """
    likely = replace(form, numbers=compared_numbers(form.original))
    found = _fastest(context, compilation, likely)
    if found.result.timings or not likely.numbers:
        return found
    other = _fastest(context, compilation, form)
    return other if other.result.timings else found


def _fastest(context: Context, compilation: Compilation, form: WholeForm) -> Compilation:
    """The fastest engine on this form. Raises ModelError."""
    if form.original.ByteSize() >= MAX_BYTES:
        raise ModelError(f"{form.reason} Engines cannot take it whole: its weights exceed protobuf's 2 GiB.")
    key = mark(context, form.digest)
    asked = OnEngines(form.original, [*form.inputs.values()], key, "the whole model")
    trial, measured = trial_of(context, asked)
    ranked = sorted(trial.timings, key=lambda n: (trial.timings[n].median_us, n))
    if not ranked and len(form.example_inputs) < len(model_inputs(form.original)):
        ranked = list(trial.loaded)  # the user's inputs may work where made-up inputs did not
    if not ranked:
        reasons = "; ".join(f"{n}: {library_text(text)}" for n, text in trial.refused.items())
        raise ModelError(
            f"{form.reason} And no engine can run the model whole: "
            + (reasons or "there is none among the backends")
        )
    nodes = tuple(range(len(form.original.graph.node)))
    notes = (f"{ranked[0]} runs the model whole: {form.reason}", *trial.notes)
    selected = _selected(context, form, ranked[0], trial)
    return replace(compilation, model=None, selected=selected, form=form, on_engine=form.original).told(
        measured, *map(Noted, notes), *events_of(trial, nodes)
    )


def _selected(context: Context, form: WholeForm, engine: str, trial: EngineTrial) -> Selection:
    options = BuildOptions(context.target.threads, exclusive=True)
    region = engine_region(engine, form.original.graph.node, 0, trial, options)
    names = [tuple(port.name for port in side) for side in form.ports]
    suffix = Suffix(region, *form.ports, *names)
    program = make_program((), (), (), {}, context.target.threads).followed_by(suffix)
    parts = Parts(program, [form.data], {}, context.target, {engine: context.versions[engine]})
    absolute, relative = trial.errors.get(engine, (math.inf, math.inf))
    return Selection(
        label=engine,
        parts=parts,
        executor=load_parts(parts, context.backends),
        timings=trial.timings,
        measured_us=region.cost_us,
        predicted_us=region.cost_us,
        max_abs_error=absolute,
        relative_error=relative,
        schedule=SEQUENTIAL,
        unmeasured="" if engine in trial.timings else _UNMEASURED,
    )
