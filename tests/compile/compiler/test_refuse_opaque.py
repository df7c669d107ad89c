"""Nodes that only engines run are an error in a strict compile, and nodes with a kernel of a library are none."""

from __future__ import annotations

import pytest

from collage.compiler.passes.match import Match
from collage.compiler.passes.refuse_opaque import RefuseOpaque
from collage.compiler.passes.verify import Verify
from collage.compiler.state import Compilation
from collage.errors import ModelError
from tests.compile.compiler.test_match import Picky
from tests.helpers.compiler.null import Made, NullBackend


class PickyEngine(Picky):
    """Takes the same, as an engine."""

    def __init__(self, name: str) -> None:
        NullBackend.__init__(self, name, engine=True)


def matched(made: Made) -> Compilation:
    made.measurer.wrong = {1: "differs by 0.5"}
    return Match()(made.context, Verify()(made.context, made.start))


@pytest.mark.parametrize("more", [(), (PickyEngine("engine"),)], ids=["nobody", "an engine"])
def test_nodes_without_a_kernel_are_refused(more: tuple[NullBackend, ...]) -> None:
    made = Made({}, *more, strict=True)
    found = matched(made)
    with pytest.raises(ModelError, match=r"strict: 1 ONNX nodes are not converted.*tanh \(Tanh\): differs"):
        RefuseOpaque()(made.context, found)


def test_a_compile_that_is_not_strict_takes_them() -> None:
    made = Made({})
    found = matched(made)
    assert RefuseOpaque()(made.context, found) is found
