"""The report of a compile, which is made from its ledger."""

from __future__ import annotations

from typing import Any

from collage.compiler.build_report import report_of
from collage.report.report import Report
from tests.helpers.compiler.null import Made, NullBackend, NullEngine, each_node

ENGINE = "engine, as written"


def made(engine_us: float = 70.0, **options: Any) -> Made:
    costs = {**each_node("one", 10.0), **each_node("other", 12.0)}
    libraries = NullBackend("one", team=True), NullBackend("other", team=True)
    return Made(costs, *libraries, NullEngine("engine"), engines={ENGINE: engine_us}, **options)


def reported(each: Made) -> tuple[Report, list[dict[str, Any]]]:
    found = each.compiled()
    report = report_of(each.bench, each.best, found, 0.0)
    return report, report.explain(found.parts.program.regions)


def test_it_has_the_figures_and_every_candidate() -> None:
    each = made()
    each.bench.known.fail("tanh", "crashed")
    report, nodes = reported(each)
    assert (report.measured_us, report.predicted_us, report.epsilon_us) == (40.0, 40.0, 0.5)
    assert (report.max_abs_error, report.ended, report.schedule) == (0.25, "finished", "sequential")
    assert report.measurements_made >= 8 and "tanh: crashed; not used" in report.notes
    assert [(node.op, node.source, node.onnx_op) for node in report.nodes][1] == ("tanh", "tanh", "Tanh")
    verdicts = {c["backend"]: c["verdict"] for c in nodes[1]["candidates"] if c["pattern"] == "pattern"}
    assert verdicts == {"one": "chosen", "other": "2.0 us slower"}
    assert {*report.finalists} >= {"mix", ENGINE}
    assert [best.label for best in report.best_so_far] == [ENGINE, "mix"]


def test_a_kernel_that_is_faster_alone_is_compared_in_the_network() -> None:
    each = made()
    each.runs.network_us = {("one", (1,)): 36.0}
    _, nodes = reported(each)
    about = {
        c["backend"]: (c["cost_us"], c["in_network_us"], c["verdict"])
        for c in nodes[1]["candidates"]
        if c["pattern"] == "pattern"
    }
    assert about == {"one": (10.0, 36.0, "24.0 us slower"), "other": (12.0, 12.0, "chosen")}


def test_it_says_why_an_engine_runs_the_model_whole() -> None:
    report, nodes = reported(made(engine_us=30.0))
    assert report.notes == ("engine runs the model whole: no mix is faster by more than the noise.",)
    assert any(c["pattern"] == "whole model" for c in nodes[0]["candidates"])
    each = made(engine_us=30.0, budget_s=60.0)
    each.step.at = 8
    report, _ = reported(each)
    assert report.ended == "interrupt" and report.budget_s == 60.0
    assert report.notes[0].endswith("the compile was interrupted before a placement was known to be faster.")


def test_it_says_what_became_of_a_tolerance() -> None:
    report, _ = reported(made(tolerance=1e-2))
    assert report.errors is not None
    assert report.errors.reason.startswith("nothing runs in reduced precision here")
    assert (report.errors.own, report.errors.measured) == (None, 1e-7)
