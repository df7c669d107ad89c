"""Modules for the page that were never compiled: regions with made-up costs, and candidates for each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from collage.graph.dataflow import TensorType
from collage.report.page_data import ShownModule
from collage.report.report import CandidateReport, NodeReport, Report
from collage.schedule.program import Port, make_program
from collage.schedule.region import TRANSFORM, Region

BACKENDS = ("onednn", "native", "tvm", "mkl")
OPS = ("nn.conv2d", "nn.relu", "matmul", "add", "nn.softmax", "layer_norm", "concat", "nn.avg_pool2d")


def made_up(names: Sequence[str], *, seed: int = 0, swap: bool = False) -> ShownModule:
    """A module with a region for each ONNX name, and a conversion before each fifth; ``swap`` changes a few backends.

    Regions read the one before, and some an earlier one, too. Each has a runner-up and a rejected candidate.
    """
    rng = random.Random(seed)
    kind = TensorType((1, 64, 56, 56), "float32")
    regions: list[Region] = []
    nodes, candidates = [], []
    values, last = 1, 0
    outputs = [0]
    for at, name in enumerate(names):
        op, us = OPS[rng.randrange(len(OPS))], rng.uniform(5, 400)
        backend = BACKENDS[rng.randrange(len(BACKENDS))]
        if swap and at % 7 == 0:
            backend, us = BACKENDS[(BACKENDS.index(backend) + 1) % len(BACKENDS)], us / 2
        if at % 5 == 4:
            convert = Region("layout", TRANSFORM, (), (), (last,), (values,), "plain -> channels-last", cost_us=3.0)
            regions.append(convert)
            last, values = values, values + 1
        inputs = (last, outputs[-4]) if at % 6 == 5 else (last,)
        regions.append(Region(backend, (op,), (at,), (name,), inputs, (values,), cost_us=us, noise_us=1.0))
        nodes.append(NodeReport(op, name, "Op", (str(kind),)))
        candidates.append(CandidateReport((at,), backend, "rule", cost_us=us, noise_us=1.0))
        candidates.append(CandidateReport((at,), "openvino", "rule", cost_us=us * 1.3, noise_us=1.0, **lost(us * 0.3)))
        candidates.append(CandidateReport((at,), "tables", "rule", reason="no match: it is no tree"))
        outputs.append(values)
        last, values = values, values + 1
    types = dict.fromkeys(range(values), kind)
    program = make_program(regions, [Port("x", 0, kind)], [Port("y", last, kind)], types)
    total = sum(region.cost_us for region in regions)
    report = Report(
        *("made up", "here", 1, total, total, 1e-6, 1e-6, 9, 0.1, 1.0, 0.5, {"tvm": "1"}),
        finalists={
            "mix": {"median_us": total, "noise_us": total / 100},
            "openvino, folded": {"median_us": total * 1.3, "noise_us": total / 50},
            "onnxruntime, as written": {"median_us": total * 1.48, "noise_us": total / 50},
        },
        engines={"openvino": total * 1.3, "onnxruntime": total * 1.48},
        nodes=nodes,
        candidates=candidates,
    )
    return ShownModule(report, program)


def lost(us: float) -> dict[str, Any]:
    """The fields of a candidate by which a module would lose so much."""
    return {"loss_us": us, "verdict": f"{us:.1f} us slower"}


def layers(count: int, size: int) -> list[str]:
    """Names of ONNX nodes of a network with so many layers of that size."""
    return ["/stem/Conv", *(f"/layers.{i}/part/Node_{j}" for i in range(count) for j in range(size)), "/head/MatMul"]
