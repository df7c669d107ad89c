"""Import: from the ONNX model to a dataflow graph of Relax operators."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collage.compiler.events import Noted
from collage.compiler.state import Compilation, Context, Source
from collage.core.library_text import library_text
from collage.errors import CollageError, ModelError
from collage.frontend.model import Model, from_simplified
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.branches import Taken, taken_branches
from collage.frontend.rewrite.simplify import simplify

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Import:
    """Simplifies and imports the model. A fault of Collage on the way is a ModelError, so that engines are tried."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the model. Raises ModelError.

        The nodes of a DataDependentError are those of the simplified model with all its branches.
        """
        try:
            return self._imported(context, compilation)
        except (CollageError, MemoryError):
            raise
        except Exception as error:  # a fault of TVM's importer, of onnx, or of Collage
            text, name = library_text(error), compilation.source.name
            log.warning("%s: the import failed, which is a fault in Collage", name, exc_info=True)
            raise ModelError(f"Collage's import fails ({type(error).__name__}: {text}).") from error

    def _imported(self, context: Context, compilation: Compilation) -> Compilation:
        source = compilation.source
        whole = Taken(source.original)
        taken = whole if source.family else taken_branches(source.original, source.samples)
        try:
            model = self._model(context, source, taken)
        except DataDependentError:
            if not taken.branches:
                raise
            # Taking branches has gained nothing, and what is split where shapes depend on data has all of them.
            taken = whole
            model = self._model(context, source, whole)
        notes = tuple(_note(taken)) if taken.branches else ()
        return replace(compilation, model=model, log=(*compilation.log, *notes))

    @staticmethod
    def _model(context: Context, source: Source, taken: Taken) -> Model:
        simple = simplify(taken.model, halves=context.halves, declared=source.as_loaded.declared)
        return from_simplified(
            simple, source.name, example_inputs=source.example_inputs, assumed=taken.assumed
        )


def _note(taken: Taken) -> Iterator[Noted]:
    branches = ", ".join(f"{name} ({'then' if holds else 'else'})" for name, holds in taken.branches.items())
    values = ", ".join(f"{name} = {value.tolist()}" for name, value in taken.assumed.items())
    yield Noted(
        f"placed for {values}, as in all samples, so that only one branch is needed of {branches}; calls with other "
        "values are answered by ONNX Runtime, more slowly"
    )
