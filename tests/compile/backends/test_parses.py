"""Nothing that backends have read of a model outlives it."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from dataclasses import replace

from collage.backends.base import UnsupportedError
from collage.backends.mkl import Mkl
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from tests.compile.backends.test_native_winograd import conv_model


def test_a_model_is_freed_at_once_with_all_that_was_parsed() -> None:
    model = import_model(conv_model((64, 64), [20, 20], [3, 3], pads=[1] * 4, then=("Add", "Relu")))
    options = BuildOptions(threads=2)
    for backend in (each for each in (Native(), OneDnn(), Mkl()) if each.available()):
        for source in backend.sources(options):
            for nodes in [each.nodes for each in source.find(MatchContext(model)) if not each.reason]:
                for variant in backend.variants(Subgraph(model, nodes), options):
                    with suppress(UnsupportedError):
                        backend.codegen(Subgraph(model, nodes), replace(options, variant=variant))
    assert model.parses
    gc.collect()  # contexts of matching are cycles
    gc.disable()  # from here on reference counts have to do: a cycle would keep the weights until a collection
    try:
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
