"""Verify: ONNX nodes that TVM's importer converts wrongly become opaque, so that only engines run them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context
from collage.core.progress import Progress
from collage.frontend.model import from_simplified


@dataclass(frozen=True)
class Verify:
    """Compares the Relax form of each ONNX node with ONNX Runtime, or recalls the result of that comparison.

    That is repeated with the wrong nodes opaque, since a node that reads what another one got wrong is compared then.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets a model with the wrong nodes opaque."""
        model = compilation.imported
        context.progress(Progress("verify", 0, 1, model.name))
        while True:
            wrong = context.workbench(replace(compilation, model=model)).measurer.verify()
            if wrong.keys() <= model.opaque.keys():
                break
            opaque = {**model.opaque, **wrong}
            model = from_simplified(model.onnx, model.name, opaque, model.example_inputs, model.assumed)
        return replace(compilation, model=model)
