"""A module as a network of boxes, which are regions or the ONNX nodes that an engine runs, and edges of values."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collage.backends.base import VIEW
from collage.frontend.messages import DTYPES, parsed
from collage.report.report import NodeReport, Report
from collage.report.show import shorten_ops
from collage.schedule.program import Port, Program
from collage.schedule.region import Region
from collage.schedule.suffix import ValuePort

INPUT, OUTPUT, REGION, CONVERSION, SHARED, ENGINE = "input", "output", "region", "conversion", "view", "engine"
"""Kinds of boxes: the model's inputs and outputs, a region, a layout transform, a view, an ONNX node of an engine."""
_MOST_OPS = 3
_LONGEST_LIST = 8
_LONGEST_TEXT = 40
_TREES = ("nodes_treeids", "tree_roots", "class_treeids", "target_treeids")
_INT, _FLOAT, _STRING, _INTS = 2, 1, 3, 7


@dataclass(frozen=True)
class Box:
    """A box of the picture.

    ``region`` is the number of its region, as in ``show --json``, ``nodes`` are ids of the report's nodes, and
    ``sources`` names of ONNX nodes. ``block`` is the path of most of these names up to the first part that ends with a
    number, as ``encoder/layer.3``, or "". ``reads`` and ``writes`` are names and types of values. ``facts`` are further
    words for people, each with a label. ``cost_us`` is None if the box has no time of its own.
    """

    label: str
    kind: str
    backend: str = ""
    region: int | None = None
    nodes: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    block: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    cost_us: float | None = None
    noise_us: float | None = None


@dataclass(frozen=True)
class Edge:
    """A value that one box writes and another one reads; both are positions in the network."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Network:
    """Boxes in a topological order that is close to the order of the model's nodes, and their edges."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def network(report: Report, program: Program, model: bytes | None = None) -> Network:
    """The network of a module, whose boxes are in a topological order that keeps blocks together.

    ``model`` is the protobuf of the ONNX model that the program's suffix stands for. Without it, or if it cannot be
    read, the suffix is one box.
    """
    making = _Making(report, program)
    making.add_launches()
    if program.suffix is not None:
        making.add_suffix(_graph(model))
    making.add_outputs()
    return making.finished()


def _graph(model: bytes | None) -> Any:
    """The graph of an ONNX model, or None."""
    if model is None:
        return None
    try:
        found = parsed(model).graph
    except ValueError:
        return None
    return found if found.node else None


class _Making:
    """A network that is being made."""

    def __init__(self, report: Report, program: Program) -> None:
        self._report, self._program = report, program
        self._boxes: list[Box] = []
        self._order: list[float] = []
        """For each box its place among the model's nodes, or NaN if it stands beside what reads it."""
        self._edges: dict[Edge, None] = {}
        self._named: dict[str, tuple[int, str]] = {}
        """By the name of a value, the box that makes it, and the value's type."""
        self._makers: dict[int, int] = {}

    def add_launches(self) -> None:
        """Add the model's inputs and all regions but the suffix."""
        program = self._program
        values = {port.name: port.value for port in program.inputs}
        for port in program.model_inputs:
            at = self._add(Box(port.name, INPUT, writes=(_described(port),)), -1)
            self._named[port.name] = at, str(port.type)
            if port.name in values:
                self._makers[values[port.name]] = at
        names = {port.value: port.name for port in (*program.inputs, *program.outputs)}
        for number, region in enumerate(program.regions):
            if program.suffix is not None and region is program.suffix.region:
                continue
            texts = {v: f"{names.get(v, '')} {program.types[v]}".strip() for v in (*region.inputs, *region.outputs)}
            box = replace(
                self._of_region(number, region),
                reads=tuple(texts[v] for v in region.inputs),
                writes=tuple(texts[v] for v in region.outputs),
            )
            at = self._add(box, min(region.nodes, default=math.nan))
            for value in region.inputs:
                if value in self._makers:
                    self._join(self._makers[value], at, str(program.types[value]))
            self._makers.update(dict.fromkeys(region.outputs, at))
        for port in program.outputs:
            if port.value in self._makers:
                self._named[port.name] = self._makers[port.value], str(port.type)

    def add_suffix(self, graph: Any) -> None:
        """Add what an engine runs after the launches: the nodes of an ONNX graph, or one box if that is None."""
        suffix = self._program.suffix
        assert suffix is not None
        number = next(i for i, each in enumerate(self._program.regions) if each is suffix.region)
        if graph is None:
            whole = replace(
                self._of_region(number, suffix.region),
                reads=tuple(f"{name} {self._named[name][1]}" for name in suffix.reads if name in self._named),
                writes=tuple(_described(port) for port in suffix.outputs if port.name in suffix.writes),
            )
            at = self._add(whole, min(suffix.region.nodes, default=math.inf))
            for name in suffix.reads:
                if name in self._named:
                    self._join(self._named[name][0], at, self._named[name][1])
            for port in suffix.outputs:
                if port.name in suffix.writes:
                    self._named[port.name] = at, str(port.type)
            return
        types = {each.name: type_text(each) for each in (*graph.value_info, *graph.output)}
        begins = len(self._report.nodes)
        for place, (node, ids) in enumerate(zip(graph.node, self._nodes_of(graph.node, suffix.region), strict=True)):
            if node.op_type == "Constant":
                continue
            known = self._report.nodes[ids[-1]].types if ids else ()
            written = tuple(
                (name, types.get(name) or (known[at] if at < len(known) else ""))
                for at, name in enumerate(node.output)
                if name
            )
            read = [name for name in _read_by(node) if name in self._named]
            box = Box(
                label=node.op_type,
                kind=ENGINE,
                backend=suffix.region.backend,
                region=number,
                nodes=ids,
                ops=(node.op_type,),
                sources=(node.name,) if node.name else (),
                reads=tuple(f"{name} {self._named[name][1]}".strip() for name in read),
                writes=tuple(f"{name} {text}".strip() for name, text in written),
                facts=tuple(_attributes(node)),
            )
            at = self._add(box, begins + place)
            for name in read:
                self._join(self._named[name][0], at, self._named[name][1])
            for name, text in written:
                self._named[name] = at, text

    def add_outputs(self) -> None:
        """Add the model's outputs."""
        for port in self._program.model_outputs:
            at = self._add(Box(port.name, OUTPUT, reads=(_described(port),)), math.inf)
            if port.name in self._named:
                self._join(self._named[port.name][0], at, str(port.type))

    def finished(self) -> Network:
        """The network, in order."""
        order = self._topological()
        place = {old: new for new, old in enumerate(order)}
        edges = (Edge(place[each.start], place[each.end], each.text) for each in self._edges)
        return Network(tuple(self._boxes[each] for each in order), tuple(sorted(edges, key=lambda e: (e.end, e.start))))

    def _topological(self) -> list[int]:
        """The boxes in topological order.

        Of those that could be next, boxes outside of blocks come first, so that they interrupt no block later on. Then
        come blocks by the middle of their nodes, and in each of them what is the first in the model.
        """
        readers: list[list[int]] = [[] for _ in self._boxes]
        waits = [0] * len(self._boxes)
        for edge in self._edges:
            readers[edge.start].append(edge.end)
            waits[edge.end] += 1
        first = list(self._order)
        for at in reversed(range(len(first))):  # boxes are added in a topological order
            if math.isnan(first[at]):
                first[at] = min((first[each] for each in readers[at]), default=math.inf) - 0.5
        places: dict[str, list[float]] = {}
        for box, place in zip(self._boxes, first, strict=True):
            places.setdefault(box.block, []).append(place)
        middle = {block: math.fsum(found) / len(found) for block, found in places.items() if block}
        keys = [
            (math.inf if box.kind == OUTPUT else middle.get(box.block, -1.0), place)
            for box, place in zip(self._boxes, first, strict=True)
        ]
        ready = [(keys[at], at) for at, count in enumerate(waits) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, at = heapq.heappop(ready)
            order.append(at)
            for each in readers[at]:
                waits[each] -= 1
                if not waits[each]:
                    heapq.heappush(ready, (keys[each], each))
        return order

    def _add(self, box: Box, order: float) -> int:
        self._boxes.append(replace(box, block=_block(box.sources)))
        self._order.append(order)
        return len(self._boxes) - 1

    def _join(self, start: int, end: int, text: str) -> None:
        if start != end:
            self._edges[Edge(start, end, text)] = None

    def _of_region(self, number: int, region: Region) -> Box:
        launched = region in self._program.executed
        if region.is_transform:
            kind, label = CONVERSION, "conversion"
        elif not launched and region.backend == VIEW:
            kind, label = SHARED, shorten_ops([plain_op(op) for op in region.ops], _MOST_OPS)
        else:
            kind, label = REGION, shorten_ops([plain_op(op) for op in region.ops], _MOST_OPS)
        timed = launched and self._report.is_measured
        return Box(
            label=label,
            kind=kind,
            backend=region.backend,
            region=number,
            nodes=region.nodes,
            ops=region.ops,
            sources=tuple(dict.fromkeys(filter(None, region.sources))),
            facts=tuple(_words(region, self._program)),
            cost_us=region.cost_us if timed else None,
            noise_us=region.noise_us if timed else None,
        )

    def _nodes_of(self, nodes: Sequence[Any], region: Region) -> list[tuple[int, ...]]:
        """For each ONNX node, the ids of the report's nodes that it became: by position if these are the same nodes."""
        ids = region.nodes or tuple(range(len(self._report.nodes)))
        found: list[NodeReport] = [self._report.nodes[each] for each in ids]
        if [each.onnx_op for each in found] == [each.op_type for each in nodes]:
            return [(each,) for each in ids]
        named: dict[str, tuple[int, ...]] = {}
        for at, each in zip(ids, found, strict=True):
            if each.source:
                named[each.source] = (*named.get(each.source, ()), at)
        return [named.get(each.name, ()) for each in nodes]


def _block(names: Iterable[str]) -> str:
    """The path of most of the names, up to its first part that ends with a number, or ""."""
    found: Counter[str] = Counter()
    for name in names:
        *folders, _ = re.split("[/:]", name.strip("/"))
        depth = next((depth for depth, part in enumerate(folders, 1) if part[-1:].isdigit()), 0)
        if depth:
            found["/".join(folders[:depth])] += 1
    return found.most_common(1)[0][0] if found else ""


def plain_op(op: str) -> str:
    """The name of an operator without the namespace of neural networks."""
    return op.removeprefix("nn.").removeprefix("onnx.")


def _described(port: Port | ValuePort) -> str:
    return f"{port.name} {port.type}"


def _words(region: Region, program: Program) -> Iterator[tuple[str, str]]:
    if region.layout != "plain":
        yield "format", region.layout
    if region.split:
        yield "work", region.split
    if region.precision:
        yield "precision", region.precision
    if program.ordered.schedule.count and not region.threads >= program.threads:
        yield "thread", str(region.stream)
    if region.profile:
        yield "settings", region.profile
    if region.reassociates:
        yield "algorithm", "reassociates (Winograd)"
    if region.finite_only:
        yield "guard", "right on finite numbers only"


def type_text(info: Any) -> str:
    """The type in a value's info, of any classes of ONNX's messages, or "" if it is no tensor of a known shape."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return ""
    extents = (
        str(each.dim_value) if each.HasField("dim_value") else each.dim_param or "?" for each in tensor.shape.dim
    )
    return f"{DTYPES.get(tensor.elem_type, '?')}[{'x'.join(extents)}]"


def _read_by(node: Any) -> Iterable[str]:
    """The names of the values that a node reads, also in the graphs of its attributes."""
    found = dict.fromkeys(each for each in node.input if each)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                found.update(dict.fromkeys(_read_by(inner)))
    return found


def _attributes(node: Any) -> Iterator[tuple[str, str]]:
    """The small attributes of a node as words; for an ensemble of trees, how many there are."""
    trees: Mapping[str, Any] = {each.name: each.ints for each in node.attribute if each.name in _TREES}
    for name, numbers in trees.items():
        yield "trees", str(len(numbers) if name == "tree_roots" else len(set(numbers)))
        break
    for each in node.attribute:
        if each.name == "nodes_modes":
            yield "nodes of trees", str(len(each.strings) or math.prod(each.t.dims))
        elif each.type == _INT:
            yield each.name, str(each.i)
        elif each.type == _FLOAT:
            yield each.name, f"{each.f:g}"
        elif each.type == _STRING and len(each.s) <= _LONGEST_TEXT:
            yield each.name, each.s.decode(errors="replace")
        elif each.type == _INTS and len(each.ints) <= _LONGEST_LIST:
            yield each.name, ", ".join(map(str, each.ints))
