"""The dynamic suffix alone: when a model is split, and what is told where its prefix cannot be placed.

The comparison itself runs real engines, in tests/integration/test_static_part.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.compiler import suffix_comparison
from collage.compiler.events import Measured, Noted
from collage.compiler.passes import dynamic_suffix
from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.dynamic_suffix import DynamicSuffix
from collage.compiler.plan import SEQUENTIAL
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context, Source
from collage.compiler.suffix_comparison import region_marks
from collage.compiler.whole_form import WholeForm
from collage.errors import ModelError, NoPlacementError
from collage.frontend.importer import DataDependentError
from collage.frontend.model import import_model
from collage.frontend.original import AsLoaded
from collage.measure_db.effort import QUICK
from collage.measure_db.timing import Timing
from collage.runtime.parts import Parts
from collage.schedule.program import make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix
from tests.compiler.null import TARGET, Made
from tests.models import detector, make_model


def whole(model: onnx.ModelProto) -> Compilation:
    """The model whole on an engine that is made up."""
    form = WholeForm(model, {}, "shapes depend on data", 0)
    region = Region("engine", ("onnx.Relu",), (0,), ("relu",), (), ())
    names = [tuple(port.name for port in side) for side in form.ports]
    program = make_program((), (), (), {}, 2).followed_by(Suffix(region, *form.ports, *names))
    timing = Timing(9.0, 0.0, 9.0, 9.0, 20)
    selected = Selection(
        "engine", Parts(program, [], {}, TARGET, {}), None, {"engine": timing}, 9.0, 9.0, 0.0, 0.0, SEQUENTIAL
    )  # type: ignore[arg-type]
    source = Source(model, AsLoaded.of(model), "made up")
    return Compilation(source, form=form, on_engine=model, selected=selected)


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
    start = whole(detector())
    found = DynamicSuffix(problem(detector()))(Made({}).context, start)
    (prefix,) = prefixes
    types = {node.op_type for node in prefix.original.graph.node}
    assert "Conv" in types and "NonMaxSuppression" not in types
    assert found == start.told(Noted("its static part has no placement: nothing covers it"))


def test_what_is_not_used_was_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    start = whole(detector())
    prefix = replace(start, log=(Measured(7), Noted("of the prefix")))

    class Fails:
        def __init__(self, *about: object) -> None: ...

        def __enter__(self) -> Fails:
            return self

        def __exit__(self, *about: object) -> None: ...

        def run(self, *about: object) -> Any:
            return type("Ran", (), {"outputs": None, "message": "crashed: SIGSEGV"})

    monkeypatch.setattr(dynamic_suffix, "compiled", lambda context, source: prefix)
    monkeypatch.setattr(suffix_comparison, "WholeMeasurer", Fails)
    monkeypatch.setattr(suffix_comparison.SuffixComparison, "_outputs", lambda self: "crashed: SIGSEGV")
    found = DynamicSuffix(problem(detector()))(Made({}).context, start)
    assert found.log == (Measured(7), Noted("its static part fails: crashed: SIGSEGV"))
    assert found.result is start.result


def test_other_problems_leave_the_whole_model() -> None:
    start = whole(detector())
    assert DynamicSuffix(ModelError("no Pow"))(Made({}).context, start) is start
    assert DynamicSuffix(problem(detector()))(Made({}, effort=QUICK).context, start) is start
    untouched = replace(start, form=replace(start.form, original=detector()))  # type: ignore[type-var]
    assert DynamicSuffix(problem(detector()))(Made({}).context, untouched) is untouched


def test_indices_are_checked_before_an_engine_runs() -> None:
    nodes = [helper.make_node("Gather", ["table", "row"], ["y"])]
    weights = {"table": np.zeros((5, 3), np.float32)}
    model = make_model(nodes, {"row": [2]}, {"y": [2, 3]}, weights, types={"row": TensorProto.INT64})
    found = CheckIndices()(Made({}).context, whole(model))
    suffix = found.result.parts.program.suffix
    assert suffix is not None and [port.rows for port in suffix.inputs] == [5]


def test_comparisons_in_databases_stay_known() -> None:
    """They are recorded under what a region's JSON was before threads and originals had fields of their own."""
    region = Region("engine", ("op",), (0,), ("node",), (), (), split="rows", threads=2, cost_us=5.0)
    marks = region_marks(region, 2)
    assert "original" not in marks
    assert (marks["split"], marks["cost_us"]) == ("rows", 0.0)
    assert region_marks(replace(region, threads=1), 2)["split"] == "rows, one thread"
    written = replace(region, split="", original=True, profile="turbo")
    assert region_marks(written, 2)["split"] == "as written, turbo"
