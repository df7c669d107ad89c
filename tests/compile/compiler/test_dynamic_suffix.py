"""The dynamic suffix alone: when a model is split, and what is told where its prefix cannot be placed.

The comparison itself runs real engines, in tests/slow/integration/test_static_part.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest

from collage.compiler.events import Noted
from collage.compiler.passes import dynamic_suffix
from collage.compiler.passes.dynamic_suffix import DynamicSuffix
from collage.compiler.state import Context, Source
from collage.compiler.suffix_comparison import region_marks
from collage.errors import ModelError, NoPlacementError
from collage.frontend.model import import_model
from collage.frontend.relax.importer import DataDependentError
from collage.measure.timing.effort import QUICK
from collage.schedule.region import Region
from tests.helpers.compiler.null import Made, whole_on_engine
from tests.helpers.models import detector


def problem(model: onnx.ModelProto) -> DataDependentError:
    with pytest.raises(DataDependentError) as raised:
        import_model(model)
    return raised.value


def test_the_prefix_goes_through_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes: list[Source] = []

    def refuse(context: Context, source: Source) -> Any:
        prefixes.append(source)
        raise NoPlacementError("nothing covers it")

    monkeypatch.setattr(dynamic_suffix, "compiled", refuse)
    start = whole_on_engine(detector())
    found = DynamicSuffix(problem(detector()))(Made({}).context, start)
    (prefix,) = prefixes
    types = {node.op_type for node in prefix.original.graph.node}
    assert "Conv" in types and "NonMaxSuppression" not in types
    assert found == start.told(Noted("its static part has no placement: nothing covers it"))


def test_other_problems_leave_the_whole_model() -> None:
    start = whole_on_engine(detector())
    assert DynamicSuffix(ModelError("no Pow"))(Made({}).context, start) is start
    assert DynamicSuffix(problem(detector()))(Made({}, effort=QUICK).context, start) is start
    untouched = replace(start, form=replace(start.form, original=detector()))  # type: ignore[type-var]
    assert DynamicSuffix(problem(detector()))(Made({}).context, untouched) is untouched


def test_comparisons_in_databases_stay_known() -> None:
    """Their keys have a region's JSON as it was before threads and originals had fields of their own."""
    region = Region("engine", ("op",), (0,), ("node",), (), (), split="rows", threads=2, cost_us=5.0)
    marks = region_marks(region, 2)
    assert "original" not in marks
    assert (marks["split"], marks["cost_us"]) == ("rows", 0.0)
    assert region_marks(replace(region, threads=1), 2)["split"] == "rows, one thread"
    written = replace(region, split="", original=True, profile="turbo")
    assert region_marks(written, 2)["split"] == "as written, turbo"
