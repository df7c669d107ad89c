"""The results of `scripts/bench cpu`, and the script itself on a tiny network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import collage
from collage.api import default_registry
from collage.backends.base import BackendKind
from collage.bench.compiled import Compiled
from collage.bench.hot_regions import hot_regions
from collage.bench.peak import Peak
from collage.bench.work import Work
from collage.errors import CollageError, UsageError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import BLOCKED
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.report.report import NodeReport, Report
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import Region
from scripts.lib.studies import ablation, tables
from scripts.lib.studies.busy import busy_core
from scripts.lib.studies.comparison import describe, geometric_means
from scripts.lib.studies.contenders import choose
from tests.models import conv_net, elementwise_net

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"
PEAK = Peak(100.0, "openvino")
WORK = {"conv": Work(2_000_000, 4_000)}


def made_up(cost_us: float = 30.0) -> Compiled:
    """A convolution of 2 MFLOP whose bias and relu run on another backend."""
    kind = TensorType((1, 250), "float32")
    types = dict.fromkeys(range(3), kind)
    regions = [
        Region("onednn", ("conv2d",), (0,), ("conv",), (0,), (1,), layout="blocked", cost_us=cost_us),
        Region("tvm", ("add", "relu"), (1, 2), ("conv", "relu"), (1,), (2,), cost_us=10.0),
    ]
    program: Program = make_program(regions, [Port("x", 0, kind)], [Port("y", 2, kind)], types)
    nodes = (
        NodeReport("nn.conv2d", "conv", "Conv"),
        NodeReport("add", "conv", "Conv"),
        NodeReport("nn.relu", "relu", "Relu"),
    )
    report = Report(
        "net", "cpu", 2, 40.0, 50.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, versions={}, finalists={}, nodes=nodes
    )
    return Compiled(Path("net.collage"), report, program)


def result(ours: float, failed: dict[str, str] | None = None, **others: float) -> dict[str, Any]:
    timings = {name: {"median_us": us, "max_relative_error": 1e-6} for name, us in others.items()}
    best = min(others, key=others.__getitem__)
    return {
        "model": "net.onnx",
        "engines": {**timings, "collage": {"median_us": ours, "max_relative_error": 1e-6}},
        "speedup_vs_best_engine": others[best] / ours,
        "best_engine": best,
        "failed": failed or {},
        **describe(made_up(), ours, WORK, PEAK),
    }


def text_of(parts: list[Any]) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in parts:
        console.print(part)
    console.file.close()
    return console.export_text()


def test_regions_have_the_work_of_their_nodes_once() -> None:
    compiled = made_up()
    conv, rest = hot_regions(compiled.report, compiled.program, WORK)
    assert conv == {
        "backend": "onednn",
        "ops": ["conv2d"],
        "layout": "blocked",
        "us": 30.0,
        "share": 0.75,
        "gflops": pytest.approx(2e6 / 30e3, rel=1e-3),
        "gbytes_per_s": pytest.approx((2 * 1000 + 4000) / 30e3, abs=1e-4),
    }
    assert (rest["backend"], rest["gflops"]) == ("tvm", 0.0)
    assert [row["backend"] for row in hot_regions(made_up(5.0).report, made_up(5.0).program, WORK)] == [
        "tvm",
        "onednn",
    ]


def test_description() -> None:
    found = describe(made_up(), 40.0, WORK, PEAK)
    assert found["gflop"] == 0.002
    assert found["gflops"] == 50.0
    assert found["share_of_peak"] == 0.5
    assert found["predicted_over_measured"] == 0.8
    assert found["mix"] == {"onednn": 1, "tvm": 1}
    json.dumps(found)


def test_geometric_means_are_over_who_ran_what() -> None:
    results = [result(10.0, onnxruntime=20.0, openvino=10.0), result(10.0, onnxruntime=80.0)]
    assert geometric_means(results) == {
        "onnxruntime": 4.0,
        "openvino": 1.0,
        "best": pytest.approx(8**0.5, abs=1e-4),
    }
    assert geometric_means([]) == {}


def test_the_table_tells_where_a_lost_models_time_goes() -> None:
    won = text_of(tables.comparison([result(40.0, openvino=60.0)], PEAK))
    for word in ("0.04", "0.06", "1.50", "50%", "1.50x", "arithmetic limit: 100 GFLOP/s"):
        assert word in won
    assert "where the time goes" not in won
    lost = text_of(tables.comparison([result(40.0, {"inductor": "no compiler"}, openvino=30.0)], PEAK))
    for word in ("slower than openvino; where the time goes", "blocked", "add+relu", "no compiler"):
        assert word in lost


def test_wrong_outputs_are_told_of() -> None:
    found = result(40.0, pytorch=60.0)
    found["engines"]["pytorch"]["max_relative_error"] = 0.25
    assert "outputs of pytorch are off by 0.25" in text_of(tables.comparison([found], PEAK))


def test_tables_of_the_studies() -> None:
    timing = {"median_us": 2000.0, "mix": {"tvm": 3}}
    order = ["tvm", "+ onednn"]
    found = {"model": "net", "order": order, "steps": {"+ onednn": timing}, "failed": {"tvm": "no kernel"}}
    text = text_of(tables.ablation([found]))
    for word in ("+ onednn ms", "2.00", "3 tvm", "tvm failed: no kernel"):
        assert word in text
    both = {"collage": timing, "openvino": timing}
    found = [
        {"model": "net", "quiet": both, "busy": both, "slowdown": {"collage": ratio}, "failed": {}}
        for ratio in (1.0, 4.0)
    ]
    text = text_of(tables.busy(found))
    assert "1.00x" in text and "4.00x" in text and "2.00x" in text.splitlines()[-1]


def test_contenders() -> None:
    everybody = choose(None, torch=True)
    assert everybody.engines is None and list(everybody.others) == ["pytorch", "inductor"]
    without = choose(None, torch=False)
    assert not without.others and "pip install '.[models]'" in without.note
    some = choose(["openvino", "inductor_max_autotune"], torch=True)
    assert some.engines == ("openvino",) and list(some.others) == ["inductor_max_autotune"]
    with pytest.raises(CollageError, match="pip install"):
        choose(["pytorch"], torch=False)
    with pytest.raises(UsageError, match=r"rubbish.*Valid: inductor"):
        choose(["rubbish"])


class Both(collage.Backend):
    """Offers a plain and a blocked variant."""

    name = "both"
    kind = BackendKind.LIBRARY

    def available(self) -> collage.Availability:
        return collage.Availability(version="1")

    def sources(self, options: BuildOptions) -> list[Any]:
        return []

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> list[Variant]:
        return [Variant(split="rows"), Variant((BLOCKED,), (BLOCKED,))]

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        return b""

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        raise NotImplementedError


def test_ablation_adds_one_backend_at_a_time_and_takes_layouts_away() -> None:
    registry = default_registry().copy()
    registry.register(Both())
    *growing, plain = ablation.steps(registry)
    for smaller, larger in pairwise(growing):
        assert larger.backends[:-1] == smaller.backends
    assert growing[0].label == "tvm" and growing[-1].label == "+ both"
    assert plain.backends == growing[-1].backends
    subgraph = Subgraph(import_model(conv_net()), (0,))
    changed = plain.registry["both"]
    assert changed.variants(subgraph, BuildOptions()) == [Variant(split="rows")]
    assert isinstance(changed, Both) and len(registry["both"].variants(subgraph, BuildOptions())) == 2


def test_a_busy_core_is_busy_when_asked_and_left_alone_afterwards() -> None:
    before = set(children())
    with busy_core() as busy:
        (process,) = set(children()) - before
        for _ in range(2):
            with busy():
                assert computes(process)
            assert not computes(process)
    assert not set(children()) - before


def computes(process: str) -> bool:
    """Whether the process uses a core."""
    clock = Path(f"/proc/{process}/schedstat")
    time.sleep(0.3)  # to begin, or to end
    first = int(clock.read_text().split()[0])
    time.sleep(0.1)
    return int(clock.read_text().split()[0]) > first


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "cpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_script(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(elementwise_net(), str(path))
    done = script(path, "--contenders", "onnxruntime", "--rounds", "1", "--db", tmp_path / "db", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] == 1 and found["peak_gflops"] > 1
    (model,) = found["models"]
    assert model["model"] == "net.onnx" and model["gflop"] == 0
    assert model["engines"].keys() == {"onnxruntime", "collage"}
    assert np.isclose(found["geometric_mean"]["best"], model["speedup_vs_best_engine"], atol=1e-3)
    assert sum(row["share"] for row in model["hot_regions"]) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rubbish",), ("unknown model: rubbish", "dcgan")),
        (("net.onnx", "--batch", "8"), ("--batch", "net.onnx")),
        (("--threads", "0"), ("--threads",)),
    ],
)
def test_usage(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = script(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr
