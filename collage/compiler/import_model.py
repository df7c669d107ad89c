"""The import: from the ONNX model to a dataflow graph, split where shapes begin to depend on data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx

from collage.compiler.task import Task
from collage.core.library_text import library_text
from collage.errors import CollageError, ModelError
from collage.frontend.model import Model, from_simplified
from collage.frontend.original import AsLoaded
from collage.frontend.rewrite.branches import Taken, taken_branches
from collage.measure.timing.effort import QUICK

if TYPE_CHECKING:
    from collage.frontend.relax.importer import DataDependentError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """The graph of a model, and the ONNX model that it was made from, with shapes fixed.

    If shapes depend on data from some node on, the graph is that of the prefix before it, and ``suffix`` is the ONNX
    model of the rest. ``as_loaded`` answers calls that the graph's kernels are not right on. ``folded`` is the
    simplified model, for engines.
    """

    model: Model
    original: onnx.ModelProto
    as_loaded: AsLoaded
    notes: tuple[str, ...] = ()
    suffix: onnx.ModelProto | None = None
    folded: onnx.ModelProto | None = field(default=None, repr=False)


def import_model(task: Task) -> Imported:
    """Simplify and import the task's model. A fault of Collage on the way is a ModelError, so that engines are tried.

    Raises ModelError, also if no part of the model is static.
    """
    from collage.frontend.relax.importer import DataDependentError  # imports TVM

    source = task.source
    try:
        return _whole(task)
    except DataDependentError as error:
        if source.family or task.options.effort is QUICK or task.options.strict:
            raise
        return _prefix(task, error)
    except (CollageError, MemoryError):
        raise
    except Exception as error:  # a fault of TVM's importer, of onnx, or of Collage
        text, name = library_text(error), source.name
        log.warning("%s: the import failed, which is a fault in Collage", name, exc_info=True)
        raise ModelError(f"Collage's import fails ({type(error).__name__}: {text}).") from error


def _whole(task: Task) -> Imported:
    from collage.frontend.relax.importer import DataDependentError

    source = task.source
    taken = Taken(source.original) if source.family else taken_branches(source.original, source.samples)
    try:
        model, folded = _model(task, taken)
    except DataDependentError:
        if not taken.branches:
            raise
        # Taking branches has gained nothing, and a model that is split has all of them.
        taken = Taken(source.original)
        model, folded = _model(task, taken)
    notes = tuple(_notes(taken)) if taken.branches else ()
    return Imported(model, source.original, source.as_loaded, notes, folded=folded)


def _model(task: Task, taken: Taken) -> tuple[Model, onnx.ModelProto]:
    source, simple = task.source, _simple(task, taken.model)
    model = from_simplified(simple, source.name, example_inputs=source.example_inputs, assumed=taken.assumed)
    return model, simple


def _simple(task: Task, model: onnx.ModelProto) -> onnx.ModelProto:
    from collage.frontend.rewrite.simplify import simplify

    return simplify(model, halves=task.halves, declared=task.source.as_loaded.declared)


def _notes(taken: Taken) -> Iterator[str]:
    branches = ", ".join(f"{name} ({'then' if holds else 'else'})" for name, holds in taken.branches.items())
    values = ", ".join(f"{name} = {value.tolist()}" for name, value in taken.assumed.items())
    yield (
        f"placed for {values}, as in all samples, so that only one branch is needed of {branches}; calls with other "
        "values are answered by ONNX Runtime, more slowly"
    )


def _prefix(task: Task, problem: DataDependentError) -> Imported:
    """The import of the static prefix. Raises the problem if there is none, and ModelError."""
    from collage.frontend.rewrite.split import split

    source = task.source
    parts = split(_simple(task, source.original), problem.nodes)
    if parts is None:
        raise problem
    wanted = {info.name for info in parts.prefix.graph.input}
    example_inputs = {n: v for n, v in source.example_inputs.items() if n in wanted}
    as_loaded = AsLoaded.of(parts.prefix)
    prefix = replace(source, original=parts.prefix, as_loaded=as_loaded, example_inputs=example_inputs)
    model, folded = _model(replace(task, source=prefix), Taken(parts.prefix))
    return Imported(model, parts.prefix, as_loaded, (str(problem),), parts.suffix, folded)
