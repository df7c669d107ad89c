"""Cutting a compiled decoder into stages of equal numbers of layers, for pipeline parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.core.printable import printable
from collage.errors import UsageError
from collage.graph.dataflow import TensorType
from collage.serve.decoder.compiled import CompiledDecoder, Wiring
from collage.serve.decoder.description import IDS, POSITIONS


@dataclass(frozen=True)
class DecoderStage:
    """Some layers of a decoder, as a decoder of its own.

    ``entering`` are the values that come from the stage before, with the type that they have at each bucket, and
    ``leaving`` those that the next stage gets. The last stage has the last segment.
    """

    compiled: CompiledDecoder
    entering: dict[int, dict[str, TensorType]]
    leaving: tuple[str, ...]


def bounds_of(layers: int, stages: int) -> tuple[int, ...]:
    """The first layer of each stage, and the number of layers. Raises UsageError for more stages than layers."""
    if stages > layers:
        raise UsageError(f"{layers} layers are too few for {stages} processes one after another.")
    return tuple(layers * stage // stages for stage in range(stages + 1))


def stage_of(compiled: CompiledDecoder, stage: int, stages: int) -> DecoderStage:
    """One of the stages. Raises UsageError for more stages than layers, and where other values than rows cross."""
    layers = compiled.decoder.layers
    first, last = bounds_of(len(layers), stages)[stage : stage + 2]
    whole = last == len(layers)
    entering, leaving = crossing(compiled, first), () if whole else crossing(compiled, last)
    end = compiled.wiring[-1] if whole else Wiring(leaving, ())
    part = replace(
        compiled,
        decoder=replace(compiled.decoder, layers=layers[first:last]),
        attention=compiled.attention[first:last],
        wiring=(*compiled.wiring[first:last], end),
        segments={tokens: parts[first:last] for tokens, parts in compiled.segments.items()},
        ends=compiled.ends if whole else {},
    )
    types = {
        tokens: {name: _type(compiled, tokens, name) for name in entering} for tokens in compiled.segments
    }
    most = max(types)
    for name, kind in types[most].items():
        rows = math.prod(kind.shape[:-1])
        if kind.dtype != "float32" or rows != most:
            raise UsageError(
                f"{printable(name)} is {kind.dtype} {list(kind.shape)} and is read by several layers: only rows of "
                "float32 for each token go from one process to the next, so layers cannot be divided among processes."
            )
    return DecoderStage(part, types, leaving)


def crossing(compiled: CompiledDecoder, border: int) -> tuple[str, ...]:
    """The values that the layers from ``border`` on read of what is made before, in order."""
    made = {name for each in compiled.wiring[:border] for name in each.writes}
    made.update(layer.output for layer in compiled.decoder.layers[:border])
    read = (name for each in compiled.wiring[border:] for name in each.reads)
    return tuple(dict.fromkeys(name for name in read if name in made))


def crossing_widths(compiled: CompiledDecoder, stages: int) -> list[int]:
    """The floats of a token that cross each border between stages."""
    tokens = compiled.buckets[0]
    borders: Sequence[int] = bounds_of(len(compiled.decoder.layers), stages)[1:-1]
    return [
        sum(_size(_type(compiled, tokens, name)) // tokens for name in crossing(compiled, border))
        for border in borders
    ]


def _size(kind: TensorType) -> int:
    return kind.nbytes // 4


def _type(compiled: CompiledDecoder, tokens: int, name: str) -> TensorType:
    """The type of a value between segments for a bucket of tokens."""
    for parts, wiring in zip(compiled.segments[tokens], compiled.wiring, strict=False):
        program = parts.program
        names, ports = (*wiring.reads, *wiring.writes), (*program.model_inputs, *program.model_outputs)
        for other, port in zip(names, ports, strict=True):
            if other == name and isinstance(port.type, TensorType):
                return port.type
    assert name not in (IDS, POSITIONS)
    layer = next(each for each in compiled.decoder.layers if each.output == name)
    return TensorType((tokens, layer.heads * layer.value_dim), "float32")
