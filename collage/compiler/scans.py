"""Scans of a plan's values, which guard kernels that are right on ordinary numbers only.

The model's inputs are scanned, each once a call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.executable import Buffers, Piece
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph
from collage.graph.magnitudes import can_be_scanned, hides_infinity, is_scanned
from collage.graph.storage import CUDA
from collage.search.transforms import PlacedTransform


def of_inputs(pieces: Sequence[Piece], buffers: Buffers, graph: Graph, extraordinary: Collection[int]) -> list[Piece]:
    """The pieces, with a scan of each of the model's inputs before the first launch that reads it.

    ``extraordinary`` values are never scanned (see ``MeasuredModel``).
    """
    found = list(pieces)
    for value in graph.inputs:
        scanned = any(value in piece.region.scans for piece in pieces)
        if scanned or value in extraordinary or not is_scanned(buffers.type_of(value).dtype):
            continue
        names = {value}  # the input and its views
        for number, piece in enumerate(found):
            region = piece.region
            if names.isdisjoint(region.inputs):
                continue
            if region.backend == VIEW and len(region.inputs) == 1:
                names.update(region.outputs)
                continue
            found[number] = _with_scans(piece, [v for v in region.inputs if v in names][:1])
            break
    return found


def of_halves(pieces: Sequence[Piece], buffers: Buffers, model: Model) -> list[Piece]:
    """The pieces, with scans for what is too large for float16.

    ONNX Runtime has no such numbers on a CPU: it computes float16 in float32. An infinity that a kernel stores
    instead reaches the model's outputs as NaN or infinity, unless an operator makes another number of it. So
    outputs are scanned on the GPU, before they are copied to the host, and so is what such operators read.
    """

    devices = buffers.devices

    def is_half(buffer: int) -> bool:
        return devices.get(buffer) == CUDA and buffers.type_of(buffer).dtype == "float16"

    if not any(is_half(buffer) for piece in pieces for buffer in piece.region.outputs):
        return list(pieces)
    scans = [[v for v in _hidden(piece, model) if is_half(v)] for piece in pieces]
    for value in model.graph.outputs:
        copy = _copy_to_host(value, pieces)
        if copy is not None and can_be_scanned(buffers.type_of(value).dtype):
            scans[copy] += pieces[copy].region.inputs
    return [_with_scans(piece, more) for piece, more in zip(pieces, scans, strict=True)]


def _hidden(piece: Piece, model: Model) -> Iterator[int]:
    """The buffers that the piece reads of which an operator makes numbers, also where they are infinite."""
    if isinstance(piece.what, PlacedTransform):
        return
    subgraph = Subgraph(model, piece.what.nodes)
    read = dict(zip(subgraph.inputs, piece.region.inputs, strict=True))
    for node in subgraph.operators:
        for position, value in enumerate(node.inputs):
            if value in read and hides_infinity(node, position, model.graph):
                yield read[value]


def _with_scans(piece: Piece, values: Collection[int]) -> Piece:
    scans = tuple(sorted({*piece.region.scans, *values}))
    return replace(piece, region=replace(piece.region, scans=scans)) if values else piece


def _copy_to_host(value: int, pieces: Sequence[Piece]) -> int | None:
    """The piece that copies a value from a GPU to the host, where that is how the value, or what it views, is made."""
    for number in reversed(range(len(pieces))):
        region = pieces[number].region
        if value not in region.outputs:
            continue
        if region.backend == VIEW and len(region.inputs) == 1:
            (value,) = region.inputs
            continue
        what = pieces[number].what
        ends = (what.transform.source, what.transform.target) if isinstance(what, PlacedTransform) else ()
        return number if [end.device == CUDA for end in ends] == [True, False] else None
    return None
