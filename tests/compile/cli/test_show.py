"""``collage show``, and the report as text and HTML."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from collage.bench.gaps import cheapest_cover
from collage.graph.dataflow import TensorType
from collage.module.file import read_summary
from collage.report.report import CandidateReport, NodeReport, Report
from collage.report.show import (
    facts,
)
from collage.report.show_html import as_html, as_page
from collage.report.show_terminal import report_view
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import conv_net

NASTY = "<script>alert('&\"')</script>"


@pytest.fixture
def program() -> Program:
    kind = TensorType((4,), "float32")
    port = Port
    regions = [
        Region("one", ("conv2d", NASTY), (0, 1), (NASTY,), (0,), (1,), cost_us=30.0),
        Region("view", ("reshape",), (2,), ("reshape",), (1,), (2,)),
        Region("two", ("relu",), (3,), ("[bold]relu[/]",), (2,), (3,), cost_us=10.0),
    ]
    return make_program(regions, [port("x", 0, kind)], [port("y", 3, kind)], dict.fromkeys(range(4), kind))


@pytest.fixture
def report() -> Report:
    return Report(
        model=NASTY,
        target="a machine",
        threads=2,
        predicted_us=40.0,
        measured_us=50.0,
        max_abs_error=1e-6,
        relative_error=2e-6,
        measurements_made=7,
        search_s=0.25,
        compile_s=9.0,
        epsilon_us=0.1,
        versions={"one": "1.0"},
        finalists={"collage": {"median_us": 50.0}, "one": {"median_us": 100.0}},
        opaque={f"node{i}": "no converter" for i in range(9)},
        nodes=[NodeReport("conv2d", "c", "Conv")],
        candidates=[
            CandidateReport((0,), "one", "p", 1.0, 0.1),
            CandidateReport((0,), "two", "p", reason=f"crashed: {NASTY}"),
            CandidateReport((1,), "two", "p", reason="crashed: SIGSEGV"),
            CandidateReport((2,), "two", "p", reason="crashed: SIGSEGV"),
            CandidateReport((2,), "two", "p", reason="no match: because"),
        ],
        arena_bytes=2048,
        arena_lower_bound_bytes=1024,
        value_bytes=8192,
    )


def test_facts(report: Report, program: Program) -> None:
    found = dict(facts(report, program))
    assert "1.25x" in found["predicted"]
    assert found["finalists"] == "collage 50.0 us; one 100.0 us (2.00x)"
    assert found["arena"].startswith("2.0 KiB, 2.00x the lower bound of 1.0 KiB")
    assert found["arena"].endswith("all values take 8.0 KiB")
    assert found["not converted"] == "and 4 ONNX nodes more"


def test_what_was_not_measured_is_not_said_to_take_no_time(report: Report) -> None:
    kind = TensorType((4,), "float32")
    suffix = Suffix(Region("one", ("onnx.Reshape",), (0,), ("r",), (), ()), (), (), (), ())
    program = make_program([], [], [], {0: kind}).followed_by(suffix)
    bare = replace(report, measured_us=0.0, predicted_us=0.0, finalists={}, max_abs_error=math.inf)
    found = dict(facts(replace(bare, unmeasured="nobody could", notes=("a note",)), program))
    assert found["measured"] == "not measured: nobody could"
    assert found["max error"] == "not checked"
    assert "predicted" not in found
    assert dict(facts(bare, program))["measured"] == "not measured"
    console = Console(width=200, record=True, file=StringIO())
    console.print(report_view(bare, program))
    text = console.export_text() + as_html(bare, program)
    assert not re.search(r"0\.0 us|0\.0%|\binf\b", text)
    told = replace(bare, candidates=()).summary(program.regions)
    assert (told["measured_us"], told["predicted_us"]) == (None, None)


class Checker(HTMLParser):
    """Notes tags, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_escaped_and_needs_nothing_else(report: Report, program: Program) -> None:
    for text in (as_html(report, program), as_page([(report, program)])):
        checker = Checker()
        checker.feed(text)
        assert not checker.open
        assert "script" not in checker.seen
        assert checker.seen.count("rect") == 2
        assert "http" not in text
        assert NASTY not in text


def test_html_file(module: Path, tmp_path: Path) -> None:
    page = tmp_path / "net.html"
    assert str(page) in succeeds("show", module, "--html", page)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    fails(1, "show", module, "--html", tmp_path / "no" / "net.html", words=("no folder",))


def test_a_page_must_not_replace_the_module(module: Path, tmp_path: Path) -> None:
    copy, link = tmp_path / "copy.collage", tmp_path / "link"
    copy.write_bytes(module.read_bytes())
    link.symlink_to(copy)
    for path in (copy, link):
        fails(2, "show", copy, "--html", path, words=("--html would replace", "copy.html"))
    assert copy.read_bytes() == module.read_bytes()


def test_explain(module: Path) -> None:
    text = succeeds("show", module, "--explain")
    nodes = json_of("show", module, "--json")["nodes"]
    assert text.count("chosen") == len(nodes)
    one = succeeds("show", module, "--explain", "TANH")
    assert one.count("node ") == 1
    assert "tanh" in one
    assert succeeds("show", module, "--explain", "0").startswith("node 0: ")
    assert len(json_of("show", module, "--json", "--explain", "tanh")["nodes"]) == 1
    fails(2, "show", module, "--explain", "nowhere", words=("nowhere", "tanh"))


def test_gaps(module: Path, network: Path, tmp_path: Path) -> None:
    found = json_of("show", module, "--gaps", network, "--json")
    report, program = read_summary(module).first
    assert {name for each in found["gaps"] for name in each["nodes"]} >= {each.source for each in report.nodes}
    assert math.fsum(each["ours_us"] for each in found["gaps"]) == pytest.approx(found["ours_us"])
    kernels = math.fsum(each.cost_us for each in program.regions)
    scale = found["module_us"] / report.measured_us
    assert found["ours"] != "module" or found["ours_us"] == pytest.approx(kernels * scale)
    assert found["engine"] in ("onnxruntime", "openvino") and found["engine_us"] > 0
    assert "loss" in succeeds("show", module, "--gaps", network, "--engine", "onnxruntime")
    other = tmp_path / "other.onnx"
    onnx.save_model(conv_net(), str(other))
    fails(2, "show", module, "--gaps", other, words=("is no module of",))
    fails(2, "show", module, "--gaps", network, "--engine", "none", words=("unknown engine",))
    fails(2, "show", module, "--engine", "openvino", words=("--gaps",))


def test_the_cheapest_cover(report: Report) -> None:
    candidates = [
        CandidateReport((0, 1, 2), "all", "p", cost_us=7.0),
        CandidateReport((0, 1), "one", "p", cost_us=5.0),
        CandidateReport((0,), "one", "p", cost_us=2.0),
        CandidateReport((0,), "two", "p", cost_us=3.0),
        CandidateReport((1, 2), "two", "p", cost_us=4.0),
    ]
    nodes = [NodeReport("relu", name, "Relu") for name in "abc"]
    found = cheapest_cover(replace(report, nodes=nodes), candidates)
    assert {(each.us, each.backend, *sorted(each.nodes)) for each in found} == {
        (2.0, "one", "a"),
        (4.0, "two", "b", "c"),
    }
