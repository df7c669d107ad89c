"""Two modules of one model compared: which operators run elsewhere or otherwise, and what that costs or gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from collage.errors import UsageError
from collage.report.report import Report
from collage.report.show import duration
from collage.schedule.program import Program
from collage.schedule.region import Region


@dataclass(frozen=True)
class Side:
    """The regions that run some operators in one of two modules: their numbers, how they do it, and their cost."""

    regions: tuple[int, ...]
    backends: tuple[str, ...]
    how: tuple[str, ...]
    us: float


@dataclass(frozen=True)
class Difference:
    """Operators that two modules run by different kernels; ``nodes`` are ids, and ``sources`` names of ONNX nodes."""

    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    one: Side
    other: Side

    @property
    def gained_us(self) -> float:
        """The microseconds by which the second module is faster here; negative if it is slower."""
        return self.one.us - self.other.us


@dataclass(frozen=True)
class Comparison:
    """The differences, the largest first, and lines of totals: a label, and a text for each module.

    If the modules' graphs are not the same, ``unlike`` says how they differ, and there are totals only.
    """

    differences: tuple[Difference, ...]
    totals: tuple[tuple[str, str, str], ...]
    unlike: str = ""

    def to_json(self) -> dict[str, Any]:
        """The comparison as ``show --compare --json`` has it."""
        differences = [
            {
                "ops": list(each.ops),
                "nodes": list(each.sources),
                "gained_us": round(each.gained_us, 3),
                "sides": [
                    {"backends": list(side.backends), "how": list(side.how), "cost_us": round(side.us, 3)}
                    for side in (each.one, each.other)
                ],
            }
            for each in self.differences
        ]
        totals = {label: list(texts) for label, *texts in self.totals}
        return {"unlike": self.unlike or None, "totals": totals, "differences": differences}


def compared(one: tuple[Report, Program], other: tuple[Report, Program], names: tuple[str, str]) -> Comparison:
    """Compare two modules of one model. Regions of both that share operators belong together.

    Raises UsageError, with the modules' ``names``, if their inputs or outputs are not the same.
    """
    first, second = (_ports(program) for _, program in (one, other))
    if first != second:
        raise UsageError(
            f"these are no modules of one model: {names[0]} has {', '.join(first)}, and {names[1]} has "
            f"{', '.join(second)}. Compile the same model for the same shapes, or choose them by --shape."
        )
    totals = tuple(_totals(one, other))
    unlike = _unlike(one[0], other[0], names)
    if unlike:
        return Comparison((), totals, unlike)
    return Comparison(tuple(sorted(_differences(one, other), key=lambda each: -abs(each.gained_us))), totals)


def _ports(program: Program) -> list[str]:
    """The inputs and outputs; shapes of outputs are left out, since engines need not know them."""
    inputs = (f"the input {port.name} {port.type}" for port in program.model_inputs)
    return [*inputs, *(f"the output {port.name}" for port in program.model_outputs)]


def _unlike(one: Report, other: Report, names: tuple[str, str]) -> str:
    """How two graphs differ, or "" if they are the same."""
    first, second = ([(node.op, node.source) for node in each.nodes] for each in (one, other))
    if first == second:
        return ""
    what = f"the graph of {names[0]} has {len(first)} operators, and that of {names[1]} {len(second)}"
    if len(first) == len(second):
        pairs = zip(first, second, strict=True)
        mine, theirs = next((mine, theirs) for mine, theirs in pairs if mine != theirs)
        what = f"the graph of {names[0]} has {_named(mine)}, and that of {names[1]} {_named(theirs)}"
    return f"{what}, so that only totals are compared: compile both by one version, and with a long enough --budget"


def _named(node: tuple[str, str]) -> str:
    op, source = node
    return f"{op} ({source})" if source else op


def _differences(one: tuple[Report, Program], other: tuple[Report, Program]) -> Iterator[Difference]:
    sides = one[1].regions, other[1].regions
    nodes = one[0].nodes
    for mine, theirs in _groups(len(nodes), *sides):
        first, second = ([side[at] for at in found] for side, found in zip(sides, (mine, theirs), strict=True))
        if sorted(map(_identity, first)) == sorted(map(_identity, second)):
            continue
        ids = tuple(sorted({node for region in (*first, *second) for node in region.nodes}))
        yield Difference(
            ids,
            tuple(nodes[each].op for each in ids),
            tuple(dict.fromkeys(nodes[each].source for each in ids if nodes[each].source)),
            _side(mine, first),
            _side(theirs, second),
        )


def _groups(
    count: int, one: Sequence[Region], other: Sequence[Region]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest groups of regions of both modules that run the same operators, by their numbers."""
    above = list(range(count))

    def top(node: int) -> int:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for region in (*one, *other):
        for node in region.nodes[1:]:
            above[top(node)] = top(region.nodes[0])
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for which, side in enumerate((one, other)):
        for number, region in enumerate(side):
            if region.nodes:
                groups.setdefault(top(region.nodes[0]), ([], []))[which].append(number)
    for mine, theirs in groups.values():
        yield tuple(mine), tuple(theirs)


def _identity(region: Region) -> tuple[object, ...]:
    found = region.candidate
    return found.nodes, found.backend, found.layout, found.split, found.original, found.profile, found.precision


def _side(numbers: tuple[int, ...], regions: Sequence[Region]) -> Side:
    how = dict.fromkeys(map(_how, regions))
    backends = dict.fromkeys(region.backend for region in regions)
    return Side(numbers, tuple(backends), tuple(filter(None, how)), sum(region.cost_us for region in regions))


def _how(region: Region) -> str:
    layout = "" if region.layout == "plain" else region.layout
    return ", ".join(filter(None, (layout, region.split, region.precision, region.profile)))


def _totals(one: tuple[Report, Program], other: tuple[Report, Program]) -> Iterator[tuple[str, str, str]]:
    def line(label: str, *texts: str) -> tuple[str, str, str]:
        first, second = texts
        return label, first, second

    both = one, other
    yield line("measured", *(report.time_text for report, _ in both))
    yield line("predicted", *(duration(report.predicted_us) if report.is_measured else "-" for report, _ in both))
    yield line("launches", *(str(len(program.executed)) for _, program in both))
    for_conversions = ([r for r in program.launches if r.is_transform] for _, program in both)
    yield line(
        "conversions", *(f"{len(found)}, {duration(sum(r.cost_us for r in found))}" for found in for_conversions)
    )
    yield line("arena", *(f"{report.arena_bytes / 2**20:.1f} MiB" for report, _ in both))
