"""Scans of a plan's values, which guard kernels that are right on finite numbers only (see ``schedule.guards``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.pieces import Buffers, Piece
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.magnitudes import (
    LIMIT,
    Magnitudes,
    can_be_limited,
    can_be_scanned,
    hides_infinity,
    is_scanned,
)
from collage.graph.ranges import Range
from collage.graph.storage import CUDA, PLAIN, steps_of
from collage.schedule.guards import Flow, guarded
from collage.search.transforms import PlacedTransform


class Scans:
    """Adds scans to the pieces of one model's plans."""

    def __init__(self, model: Model, extraordinary: Collection[int] = ()) -> None:
        """``extraordinary`` are values that are never scanned (see ``MeasuredModel``)."""
        self._model = model
        self._extraordinary = extraordinary
        self._magnitudes = Magnitudes(model.graph)

    def guarded(self, pieces: Sequence[Piece], buffers: Buffers, limits: Mapping[int, float]) -> list[Piece]:
        """The pieces, with a scan before each one that needs it by what its kernel is right on, and by ``limits``."""
        regions = [piece.region for piece in pieces]
        types = {v: buffers.type_of(v) for r in regions for v in (*r.inputs, *r.outputs)}
        flows = [_within_steps(self._flow(piece), piece, buffers) for piece in pieces]
        stored = buffers.other_storages
        extraordinary = {v for v in types if (stored[v][0] if v in stored else v) in self._extraordinary}
        found = guarded(regions, flows, types, limits, extraordinary)
        return [replace(piece, region=region) for piece, region in zip(pieces, found, strict=True)]

    def of_inputs(self, pieces: Sequence[Piece], buffers: Buffers) -> list[Piece]:
        """The pieces, with a scan of each of the model's inputs before the first launch that reads it."""
        found = list(pieces)
        for value in self._model.graph.inputs:
            if not is_scanned(buffers.type_of(value).dtype):
                continue
            names = {value}  # the input and its views
            for number, piece in enumerate(found):
                region = piece.region
                if not names.intersection(region.inputs):
                    continue
                if region.backend == VIEW and len(region.inputs) == 1:
                    names.update(region.outputs)
                    continue
                scans = (*region.scans, *(v for v in region.inputs if v in names and v not in region.scans))
                found[number] = replace(piece, region=replace(region, scans=scans))
                break
        return found

    def of_halves(self, pieces: Sequence[Piece], buffers: Buffers) -> list[Piece]:
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
        scans = [[v for v in self._hidden(piece) if is_half(v)] for piece in pieces]
        for value in self._model.graph.outputs:
            copy = _copy_to_host(value, pieces)
            if copy is not None and can_be_scanned(buffers.type_of(value).dtype):
                scans[copy] += pieces[copy].region.inputs
        return [
            replace(piece, region=replace(piece.region, scans=tuple(sorted({*piece.region.scans, *more}))))
            if more
            else piece
            for piece, more in zip(pieces, scans, strict=True)
        ]

    def _hidden(self, piece: Piece) -> Iterator[int]:
        """The buffers that the piece reads of which an operator makes numbers, also where they are infinite."""
        if isinstance(piece.what, PlacedTransform):
            return
        subgraph = Subgraph(self._model, piece.what.nodes)
        read = dict(zip(subgraph.inputs, piece.region.inputs, strict=True))
        for node in subgraph.operators:
            for position, value in enumerate(node.inputs):
                if value in read and hides_infinity(node, position, self._model.graph):
                    yield read[value]

    def _flow(self, piece: Piece) -> Flow:
        """A function that follows magnitudes through the piece."""
        if isinstance(piece.what, PlacedTransform):
            return lambda magnitudes: (magnitudes[0], magnitudes)
        subgraph = Subgraph(self._model, piece.what.nodes)

        def flow(magnitudes: Sequence[float]) -> tuple[float, Sequence[float]]:
            found = self._magnitudes.through(
                subgraph.operators, dict(zip(subgraph.inputs, magnitudes, strict=True))
            )
            return max(found.values()), [found[value] for value in subgraph.outputs]

        return flow


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


def limits_of(pieces: Sequence[Piece], buffers: Buffers, ranges: Mapping[int, Range]) -> dict[int, float]:
    """The largest magnitudes of floats that become steps of 8 bits, or are added to some, by the values' ranges.

    What is in steps already, and what these kernels compute of it, is as on the samples as far as this is.
    """
    stored = buffers.other_storages
    found: dict[int, float] = {}
    for region in (piece.region for piece in pieces):
        if not any(steps_of(stored[v][1]) for v in region.outputs if v in stored):
            continue
        for buffer in region.inputs:
            value, _ = stored.get(buffer, (buffer, PLAIN))
            if value in ranges and can_be_limited(buffers.type_of(buffer).dtype):
                found[buffer] = min(ranges[value].limit, LIMIT)
    return found


def _within_steps(flow: Flow, piece: Piece, buffers: Buffers) -> Flow:
    """The flow, where values that the piece reads in steps of 8 bits are no larger than these allow."""
    stored = buffers.other_storages
    steps = [steps_of(stored[v][1]) if v in stored else None for v in piece.region.inputs]
    if not any(steps):
        return flow

    def cut(magnitudes: Sequence[float]) -> tuple[float, Sequence[float]]:
        return flow([m if s is None else s.largest for m, s in zip(magnitudes, steps, strict=True)])

    return cut
