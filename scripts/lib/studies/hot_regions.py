"""The regions of a compiled module that take the most time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.report.report import Report
from collage.schedule.program import Program
from collage.schedule.region import Region
from scripts.lib.studies.work import Work

TOP = 10
_ARITHMETIC = ("conv", "matmul", "gemm")
"""Parts of the names that the operators which ``node_work`` counts have after the import."""


def hot_regions(report: Report, program: Program, work: Mapping[str, Work]) -> list[dict[str, Any]]:
    """The regions that take longest, with backend, operators, layout, microseconds, share, GFLOP/s and GB/s.

    The bytes of a region are those of its inputs, outputs and weights, each counted once.
    """
    total = sum(region.cost_us for region in program.launches)
    left = dict(work)  # an ONNX node's work goes to one region, though others may have pieces of the node
    rows: list[dict[str, Any]] = []
    for region in program.launches:
        mine = [left.pop(source) for source in _arithmetic(region, report) if source in left]
        values = (*region.inputs, *region.outputs)
        nbytes = sum(program.types[value].nbytes for value in values) + sum(
            each.weight_bytes for each in mine
        )
        rows.append(
            {
                "backend": region.backend,
                "ops": list(region.ops),
                "layout": region.layout,
                "us": round(region.cost_us, 3),
                "share": _ratio(region.cost_us, total),
                "gflops": _ratio(sum(each.flop for each in mine), region.cost_us * 1e3),
                "gbytes_per_s": _ratio(nbytes, region.cost_us * 1e3),
            }
        )
    return sorted(rows, key=lambda row: -row["us"])[:TOP]


def _arithmetic(region: Region, report: Report) -> list[str]:
    """The names of the ONNX nodes whose convolution or product the region computes."""
    nodes = (report.nodes[index] for index in region.nodes)
    return [node.source for node in nodes if any(word in node.op.lower() for word in _ARITHMETIC)]


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole > 0 else 0.0
