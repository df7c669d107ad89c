"""Engines that keep NaN which comes up inside of a model: what is handed over before there is a placement."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.state import Compilation, Context
from collage.compiler.whole_model import WholeModel
from collage.graph.domains import Domains


def keeps_nan(context: Context, compilation: Compilation, engine: str) -> bool:
    """Whether the engine loses no NaN that it makes of finite numbers, as far as is known: before the import all do."""
    if context.backends[engine].keeps_nan or compilation.model is None:
        return True
    graph = compilation.model.graph
    return Domains(graph).lost(graph.nodes) is None


def sure_engine(context: Context, compilation: Compilation, whole: WholeModel) -> WholeModel:
    """The whole model on the fastest engine that ``keeps_nan``, or on its own where none does."""
    timings = whole.trial.timings
    for engine in sorted(timings, key=lambda each: (each != whole.engine, timings[each].median_us)):
        if keeps_nan(context, compilation, engine):
            return replace(whole, engine=engine)
    return whole
