"""``collage show``, and the report as text and HTML."""

from __future__ import annotations

import math
import re
import subprocess
import sys
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
from collage.report.page_data import ShownModule
from collage.report.report import CandidateReport, NodeReport, Report
from collage.report.show import details, errors_words, facts, headline
from collage.report.show_html import as_notebook_view, as_page, as_tables
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
        nodes=[NodeReport("conv2d", name, "Conv") for name in "abcd"],
        candidates=[
            CandidateReport((0,), "one", "p", cost_us=1.0, noise_us=0.1),
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
    assert found["not converted"] == "and 4 ONNX nodes more"
    found = dict(details(report, program))
    assert found["last race"] == "collage 50.0 us; one 100.0 us (2.00x)"
    assert found["memory"].startswith("2.0 KiB, 2.00x the lower bound of 1.0 KiB")
    assert found["memory"].endswith("all values take 8.0 KiB")


def test_the_headline_compares_with_each_engine(report: Report) -> None:
    engines = {"openvino": 65.0, "onnxruntime": 75.0}
    assert headline(replace(report, engines=engines)) == "50 us: 1.30x OpenVINO, 1.50x ONNX Runtime"
    whole = replace(report, engines=engines, runs_on="openvino", measured_us=65e3, rows=1000, one_row_us=20.0)
    assert headline(replace(whole, engines={"openvino": 65e3, "other": 130e3})) == (
        "65 ms for 1000 rows, 20 us for one, by OpenVINO on the whole model: 2.00x other"
    )
    assert headline(report) == "50 us"


@pytest.mark.parametrize(
    ("absolute", "relative", "words"),
    [
        (1.44e-5, 9.5e-7, "within 1.4e-05 of ONNX Runtime's, 9.5e-07 of their scale"),
        (8.6e-8, 0.86, "within 8.6e-08 of ONNX Runtime's; off by more than 1% only below 9e-06"),
        (0.0, 0.0, "equal to ONNX Runtime's"),
    ],
)
def test_no_share_of_what_is_next_to_zero_frightens(absolute: float, relative: float, words: str) -> None:
    assert errors_words(absolute, relative) == words


def test_only_the_slowest_of_many_kernels_are_shown(report: Report, program: Program) -> None:
    kind = TensorType((4,), "float32")
    regions = [Region("one", ("relu",), (n,), (f"relu{n}",), (n,), (n + 1,), cost_us=float(n)) for n in range(60)]
    ports = Port("x", 0, kind), Port("y", 60, kind)
    many = make_program(regions, ports[:1], ports[1:], dict.fromkeys(range(61), kind))

    def shown(detailed: bool) -> str:
        console = Console(width=200, record=True, file=StringIO())
        console.print(report_view(replace(report, nodes=()), many, detailed=detailed))
        return console.export_text()

    assert [name in shown(False) for name in ("relu49 ", "relu50 ", "relu59 ")] == [False, True, True]
    assert "the 10 slowest of 60 kernels" in shown(False) and "rejected by" not in shown(False)
    assert all(f"relu{n} " in shown(True) for n in range(60)) and "rejected by" in shown(True)


def test_what_was_not_measured_is_not_said_to_take_no_time(report: Report) -> None:
    kind = TensorType((4,), "float32")
    suffix = Suffix(Region("one", ("onnx.Reshape",), (0,), ("r",), (), ()), (), (), (), ())
    program = make_program([], [], [], {0: kind}).followed_by(suffix)
    bare = replace(report, measured_us=0.0, predicted_us=0.0, finalists={}, max_abs_error=math.inf)
    found = dict(facts(replace(bare, unmeasured="nobody could", notes=("a note",)), program))
    assert headline(replace(bare, unmeasured="nobody could")) == "not measured: nobody could"
    assert found["outputs"] == "not checked"
    assert "predicted" not in found
    assert headline(bare) == "not measured"
    console = Console(width=200, record=True, file=StringIO())
    console.print(report_view(bare, program))
    text = console.export_text() + as_tables(bare, program)
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
        assert not [name for name, _ in attrs if name == "src" or name.startswith("on")]
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_and_escaped(report: Report, program: Program) -> None:
    shown = ShownModule(report, program)
    seen = []
    for text in (as_tables(report, program), as_notebook_view([shown]), as_page([shown])):
        checker = Checker()
        checker.feed(text)
        assert not checker.open
        assert NASTY not in text
        seen.append(checker.seen.count("script"))
    assert seen == [0, 0, 7]


def test_html_file(module: Path, tmp_path: Path) -> None:
    page = tmp_path / "net.html"
    assert str(page) in succeeds("show", module, "--html", page)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    fails(1, "show", module, "--html", tmp_path / "no" / "net.html", words=("no folder",))


def test_the_page_needs_no_library(module: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from collage.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print({'onnx', 'onnxruntime', 'openvino', 'tvm', 'IPython'} & {*sys.modules})\n"
    )
    command = [sys.executable, "-c", code, "show", str(module), "--html", str(tmp_path / "net.html")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"wrote {tmp_path / 'net.html'}", "set()"]


def test_compare(module: Path, network: Path, tmp_path: Path) -> None:
    copy, page = tmp_path / "copy.collage", tmp_path / "page.html"
    copy.write_bytes(module.read_bytes())
    text = succeeds("show", module, "--compare", copy)
    assert "all operators run on the same kernels" in text
    found = json_of("show", "--compare", copy, module, "--json")
    assert found["files"] == [str(module), str(copy)]
    assert (found["differences"], found["unlike"]) == ([], None)
    assert found["totals"]["measured"][0] == found["totals"]["measured"][1]
    assert str(page) in succeeds("show", module, "--compare", copy, "--html", page)
    assert "copy" in page.read_text(encoding="utf-8")
    fails(2, "show", module, "--compare", copy, "--html", copy, words=("--html would replace",))
    fails(2, "show", module, "--compare", copy, "--explain", words=("--explain", "--compare"))
    fails(1, "show", module, "--compare", network, words=("is a model",))
    fails(1, "show", module, "--compare", tmp_path / "none.collage", words=("no such file",))


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
    regions = read_summary(module).first[1].regions
    number, region = next((number, each) for number, each in enumerate(regions) if each.nodes)
    of_a_kernel = json_of("show", module, "--json", "--explain", number)["nodes"]
    assert [each["source"] for each in of_a_kernel] == [nodes[node]["source"] for node in region.nodes]
    assert len(json_of("show", module, "--json", "--explain", "tanh")["nodes"]) == 1
    listed = succeeds("show", module, "--explain", "TANH", "--details")
    candidates = json_of("show", module, "--json", "--explain", "tanh")["nodes"][0]["candidates"]
    assert listed.count("no match") == sum(each["verdict"].startswith("no match") for each in candidates) > 1
    assert one.count("no match") <= len({each["verdict"] for each in candidates})
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
