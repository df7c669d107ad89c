"""The pipeline as a list of passes, run as a whole with made-up costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from collage.compiler import pipeline
from collage.compiler.build_report import report_of
from collage.compiler.events import Event, Failed, Measured
from collage.compiler.pipeline import compiled
from collage.compiler.state import Compilation, Pass
from collage.errors import NoPlacementError
from collage.kernel.options import BuildOptions
from collage.measure.timing.effort import QUICK as QUICK_EFFORT
from tests.helpers.beside import TakeAll
from tests.helpers.compiler.null import Made, NullBackend, each_node


class Library(NullBackend):
    """Takes every operator."""

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)


def made(**options: Any) -> Made:
    found = Made(
        {**each_node("one", 10.0), **each_node("other", 12.0)},
        Library("one", team=True),
        Library("other", team=True),
        **options,
    )
    found.lab.journal = Measured(8), Failed("tanh: crashed; not used")
    return found


def test_a_full_compile() -> None:
    each = made()
    found = compiled(each.context, each.start.source)
    assert found.result.label == "collage"
    assert {region.backend for region in found.result.parts.program.launches} == {"one"}
    assert found.log[:2] == each.lab.journal


def test_a_quick_compile() -> None:
    each = made(effort=QUICK_EFFORT)
    assert compiled(each.context, each.start.source).result.label == "quick"


def test_the_report_is_folded_from_the_log() -> None:
    each = made()
    found = compiled(each.context, each.start.source)
    report = report_of(each.context, found, 0.0)
    assert report.measurements_made == 8
    assert report.notes[0] == "tanh: crashed; not used"
    assert (report.measured_us, report.predicted_us, report.epsilon_us) == (40.0, 40.0, 0.5)
    assert [(node.op, node.source, node.onnx_op) for node in report.nodes][1] == ("tanh", "tanh", "Tanh")
    on_tanh = {c.backend: c.cost_us for c in report.candidates if c.nodes == (1,) and not c.reason}
    assert on_tanh == {"one": 10.0, "other": 12.0}
    explained = report.explain(found.result.parts.program.regions)[1]["candidates"]
    verdicts = {each["backend"]: each["verdict"] for each in explained}
    assert (verdicts["one"], verdicts["other"]) == ("chosen", "slower by 20 %")


def test_a_kernel_that_is_faster_alone_is_compared_in_the_network() -> None:
    each = made()
    each.runs.network_us = {("one", (1,)): 36.0}
    found = compiled(each.context, each.start.source)
    explained = report_of(each.context, found, 0.0).explain(found.result.parts.program.regions)[1]
    about = {c["backend"]: (c["cost_us"], c["in_network_us"], c["verdict"]) for c in explained["candidates"]}
    assert about == {"one": (10.0, 36.0, "slower by 200 %"), "other": (12.0, 12.0, "chosen")}


def test_the_lab_is_closed_when_a_pass_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    each = made()
    closed = []
    monkeypatch.setattr(each.lab, "close", lambda: closed.append(True) or ())

    def fail(*about: object) -> Compilation:
        raise NoPlacementError("nothing")

    passes: tuple[Pass, ...] = (fail,)
    monkeypatch.setattr(pipeline, "FULL", passes)
    with pytest.raises(NoPlacementError):
        compiled(each.context, each.start.source)
    assert closed == [True]


def test_ctrl_c_while_the_worker_ends_throws_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    each = made()
    closed = []

    def close() -> tuple[Event, ...]:
        closed.append(True)
        if len(closed) == 1:
            raise KeyboardInterrupt
        return ()

    monkeypatch.setattr(each.lab, "close", close)
    assert compiled(each.context, each.start.source).result.label == "collage"
    assert closed == [True, True]


def test_a_report_says_that_nothing_runs_in_reduced_precision() -> None:
    each = made(tolerance=1e-2)
    errors = report_of(each.context, compiled(each.context, each.start.source), 0.0).errors
    assert errors is not None
    assert errors.reason.startswith("nothing runs in reduced precision here")
    assert (errors.own, errors.measured) == (None, 1e-7)
