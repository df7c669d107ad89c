"""The selection of a quick compile, which runs one placement."""

from __future__ import annotations

import pytest

from collage.compiler.passes.select_only import SelectOnly
from collage.errors import NoPlacementError
from tests.compiler.null import WRONG, notes, planned


def test_a_quick_compile_selects_what_was_placed() -> None:
    made, start = planned()
    found = SelectOnly()(made.context, start)
    assert found.result.label == "quick"
    assert list(found.result.timings) == ["quick"]
    assert notes(found) == ["a quick compile: few candidates, few samples, no comparison of whole networks"]
    assert made.runs.raced == []


def test_a_quick_compile_of_wrong_outputs_has_no_placement() -> None:
    made, start = planned()
    made.runs.findings = {"quick": WRONG}
    with pytest.raises(NoPlacementError, match="the outputs differ"):
        SelectOnly()(made.context, start)
    made.runs.dropped = {"quick": "crashed"}
    with pytest.raises(NoPlacementError, match="the placement fails as a whole: crashed"):
        SelectOnly()(made.context, start)
