"""Trying the engines on a whole model, and choosing the fastest one that is right."""

from __future__ import annotations

import math
from dataclasses import replace

from collage.compiler.engine_trials import OnEngines, engine_region, events_of, mark, trial_of
from collage.compiler.events import Considered, Measured, Noted, TriedEngine
from collage.compiler.plan import SEQUENTIAL
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_model import WholeModel
from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.model_artifacts import fits_an_artifact
from collage.frontend.read.compared import compared_numbers
from collage.frontend.read.shapes import model_inputs
from collage.kernel.options import BuildOptions
from collage.runtime.parts import Parts, load_parts
from collage.schedule.program import make_program
from collage.schedule.suffix import Suffix

_UNMEASURED = (
    "no engine runs the model on made-up inputs; give inputs of your own with --input (inputs= in Python)"
)


def on_likely_numbers(context: Context, form: WholeForm) -> tuple[WholeModel, Measured]:
    """The fastest engine, on inputs with the numbers that the model compares them with, and the measurements made.

    Where no engine runs on these, other inputs are tried. Raises ModelError where no engine runs the model.
    """
    likely = replace(form, numbers=compared_numbers(form.original))
    found, measured = _fastest(context, likely)
    if found.timing is not None or not likely.numbers:
        return found, measured
    other, more = _fastest(context, form)
    return (found if other.timing is None else other), Measured(measured.count + more.count)


def _fastest(context: Context, form: WholeForm) -> tuple[WholeModel, Measured]:
    """The fastest engine on this form. Raises ModelError."""
    if not fits_an_artifact(form.original):
        raise ModelError(
            f"{form.reason.rstrip('.')}. Engines cannot take it whole: its constants exceed protobuf's 2 GiB."
        )
    key = mark(context, form.digest)
    asked = OnEngines(form.original, [*form.inputs.values()], key, "the whole model", form.data)
    trial, measured = trial_of(context, asked)
    ranked = sorted(trial.timings, key=lambda n: (trial.timings[n].median_us, n))
    if not ranked and len(form.example_inputs) < len(model_inputs(form.original)):
        ranked = list(trial.loaded)  # the user's inputs may work where made-up inputs did not
    if not ranked:
        reasons = "; ".join(f"{n}: {library_text(text)}" for n, text in trial.refused.items())
        raise ModelError(
            f"{form.reason.rstrip('.')}. And no engine can run the model whole: "
            + (reasons or "there is none among the backends")
        )
    return WholeModel(form, ranked[0], trial), measured


def chosen(context: Context, compilation: Compilation, whole: WholeModel) -> Compilation:
    """The compilation with the engine on the whole model selected, and loaded in this process, instead of a placement.

    The log says why, and what the trial of the engines has shown. Candidates of a placement are not part of it.
    """
    original = whole.form.original
    nodes = tuple(range(len(original.graph.node)))
    notes = (f"{whole.engine} runs the model whole: {whole.form.reason}", *whole.trial.notes)
    log = tuple(event for event in compilation.log if not isinstance(event, (Considered, TriedEngine)))
    unplaced = Compilation(compilation.source, first=compilation.first, log=log)
    selected = _selected(context, whole)
    return replace(unplaced, selected=selected, form=whole.form, on_engine=original).told(
        *map(Noted, notes), *events_of(whole.trial, nodes)
    )


def _selected(context: Context, whole: WholeModel) -> Selection:
    form, engine, trial = whole.form, whole.engine, whole.trial
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
