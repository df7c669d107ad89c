"""Compiling a decoder: recognised, cut, each segment measured and placed for each bucket, and checked as a whole."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from collage.backends.registry import Registry
from collage.compiler.task import CompileOptions
from collage.core.progress import Progress
from collage.errors import CollageError, NoPlacementError, UsageError
from collage.frontend.read.apart import moved_out
from collage.frontend.read.load import ModelSource, as_written
from collage.frontend.read.weights import WeightFiles
from collage.kernel.buffers import aligned_bytes
from collage.kernel.frames import Artifact, Framed, is_framed, parts_of
from collage.kernel.target import host
from collage.measure.timing.effort import FULL, QUICK
from collage.measure.worker.process import Workers
from collage.measure_db.database import Database
from collage.runtime.parts import Parts
from collage.serve.attention import Rotations, attention_problem
from collage.serve.decoder.compiled import CompiledDecoder, Decoder, Wiring
from collage.serve.decoder.config import DecoderConfig
from collage.serve.decoder.costs import BUCKETS, checked_buckets, row_buckets
from collage.serve.decoder.experts.rewrite import with_fixed_shapes
from collage.serve.decoder.family import Family, Shop, compile_family
from collage.serve.decoder.masks import with_masks
from collage.serve.decoder.onnx_graph import PROBE, GraphSizes, OnnxGraph, read_decoder
from collage.serve.decoder.positions import attention_of, tables_of_angles
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.segments import Segment, cut, model_of, refuse_mixing, structure
from collage.serve.decoder.shards import Shards, shard


class SharedArrays:
    """Arrays by their digest. Kernels of one decoder that have the same weights, in the same order, share them."""

    def __init__(self) -> None:
        self._arrays: dict[bytes, memoryview] = {}

    def adopt(self, parts: Parts) -> Parts:
        return replace(parts, artifacts=[self._adopted(each) for each in parts.artifacts])

    def _adopted(self, artifact: Artifact) -> Artifact:
        if not is_framed(artifact):
            return artifact
        framed = artifact if isinstance(artifact, Framed) else parts_of(artifact)
        arrays = tuple(self._shared(np.frombuffer(each, np.uint8)) for each in framed.arrays)
        return Framed(bytes(framed.head), arrays, mapped=True)  # they are aligned, and so read where they are

    def _shared(self, content: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> memoryview:
        digest = hashlib.sha256(content.data).digest()
        if digest not in self._arrays:
            copy = aligned_bytes(content.nbytes)
            copy[:] = content
            copy.flags.writeable = False
            self._arrays[digest] = copy.data
        return self._arrays[digest]


_MEMORY_GBS = 35.0
"""How fast the memory is read, roughly: until an iteration is measured, its time is that of reading all weights."""
_OWN = ("native", "tvm")
"""Backends whose kernels read weights in the mapped file, so that buckets share them.

MKL and the engines keep weights of their own for each kernel, and oneDNN's order depends on the number of tokens.
"""
_MORE = ("onednn", "onnxruntime")
"""Backends that take part where those that share their weights have no kernels for a segment."""
DEFAULT_LENGTH = 4096
"""The longest sequence if no table of positions limits it. It is shorter if ``config.json`` names fewer positions."""


@dataclass(frozen=True)
class DecoderOptions:
    """How a decoder is compiled.

    ``buckets`` are numbers of tokens, and ``max_length`` is the longest sequence (see ``longest_sequence``).
    ``threads``, ``db`` and ``quick`` are those of ``collage.compile``. With ``processes``, the heads and the columns of
    products are divided among as many.

    ``tolerance`` is the largest error of a logit, as a share of the largest one of its row, for which weights may be
    in bfloat16, or with ``eight_bits`` in 8 bits; with 0 they are float32.
    """

    buckets: Sequence[int] = BUCKETS
    max_length: int | None = None
    threads: int | None = None
    db: Path | None = None
    quick: bool = False
    processes: int = 1
    tolerance: float = 0.0
    eight_bits: bool = True


def compile_parts(
    source: ModelSource,
    options: DecoderOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    name: str = "model",
    config: DecoderConfig | None = None,
) -> tuple[CompiledDecoder, ...]:
    """Compile the segments of a decoder for each process. The whole is not checked, nor are its costs measured yet.

    ``name`` is the decoder's, if the source is no file, and ``config`` what is known of it besides. Here
    ``options.tolerance`` is the largest error of each segment's outputs, as ``collage.compile`` has it.

    Raises ModelError for a model that is no decoder, and what ``collage.compile`` raises.
    """
    if problem := attention_problem():
        raise CollageError(problem)
    name, config = name_of(source) or name, config or DecoderConfig()
    buckets = checked_buckets(options.buckets)
    ends = row_buckets(buckets)
    progress(Progress("recognise", 0, 1, name))
    with ExitStack() as stack:
        files = stack.enter_context(WeightFiles())  # segments refer to them, and are copied often
        model = moved_out(with_fixed_shapes(as_written(source), PROBE), files)
        known = _recognised(model, options.max_length, name, config.positions)
        maker = _segments_of(model, options, registry, progress, name, stack)
        ranks, parts = _compiled(known, options, buckets, ends, maker)
    last = len(ranks[0].segments) - 1
    return tuple(
        CompiledDecoder(
            name,
            each.decoder,
            tuple(map(attention_of, each.decoder.layers, known.rotations)),
            known.length,
            maker.threads,
            tuple(Wiring(segment.reads, segment.writes) for segment in each.segments),
            {bucket: tuple(parts[bucket, first + i] for i in range(last)) for bucket in buckets},
            {bucket: parts[bucket, first + last] for bucket in ends},
            processes=options.processes,
            after=each.after if options.processes > 1 else (),
            end_tokens=config.end_tokens,
        )
        for first, each in zip(range(0, len(ranks) * (last + 1), last + 1), ranks, strict=True)
    )


@dataclass(frozen=True)
class _Recognised:
    """A decoder, and its model and graph as it was recognised; ``length`` is the longest sequence."""

    decoder: Decoder
    model: onnx.ModelProto
    graph: OnnxGraph
    rotations: tuple[Rotations, ...]
    length: int


def _recognised(model: onnx.ModelProto, max_length: int | None, name: str, positions: int | None) -> _Recognised:
    """The decoder, with its masks and angles read for its longest sequence. Raises ModelError and UsageError."""
    at_most = None if positions is None else min(positions, DEFAULT_LENGTH)
    decoder, graph = recognise(model, name, max_length or at_most)
    refuse_mixing(graph, cut(graph, decoder), PROBE.tokens)
    length = longest_sequence(decoder, max_length, name, positions)
    rotations = tables_of_angles(graph, decoder, length, name)
    return _Recognised(with_masks(model, graph, decoder, length), model, graph, rotations, length)


def _segments_of(
    model: onnx.ModelProto,
    options: DecoderOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    name: str,
    stack: ExitStack,
) -> _Segments:
    """What compiles the segments, with a database and workers that end with the stack."""
    usable, threads = registry.availability(), options.threads or host().threads
    compile_options = CompileOptions(
        backends=[each for each in _OWN if usable.get(each)],
        threads=threads,
        db=options.db,
        effort=QUICK if options.quick else FULL,
        streams=False,
        strict=True,
        reassociate=False,
        tolerance=options.tolerance,
        eight_bits=options.eight_bits,
    )
    database = stack.enter_context(Database(options.db))
    workers = stack.enter_context(Workers())
    shop = Shop(registry, compile_options, database, workers, progress)
    more = [each for each in _MORE if usable.get(each)]
    weights = sum(_tensor_bytes(each) for each in model.graph.initializer)
    return _Segments(shop, more, SharedArrays(), name, weights, threads)


def _compiled(
    known: _Recognised,
    options: DecoderOptions,
    buckets: Sequence[int],
    ends: Sequence[int],
    maker: _Segments,
) -> tuple[list[Shards], dict[tuple[int, int], Parts]]:
    """The shards of each process, and the parts by bucket and by the place of a segment among those of all processes.

    The last segment of each process is compiled for the buckets ``ends``.
    """
    parts: dict[tuple[int, int], Parts] = {}
    ranks: list[Shards] = []
    iteration_us = maker.weights / (_MEMORY_GBS * 1e3)  # an iteration reads each of them
    for bucket in sorted({*buckets, *ends}):
        sized = read_decoder(known.model, GraphSizes(bucket, PROBE.past), known.graph.places)
        segments = cut(sized, known.decoder)
        ranks = [_shards(sized, segments, known.decoder, rank, options) for rank in range(options.processes)]
        count = len(ranks[0].segments)
        all_segments = [segment for each in ranks for segment in each.segments]
        wanted = [
            place for place in range(len(all_segments)) if bucket in (ends if place % count == count - 1 else buckets)
        ]
        found, measured_us = maker.compiled(all_segments, wanted, bucket, iteration_us)
        parts.update({(bucket, place): each for place, each in found.items()})
        iteration_us = max(iteration_us, measured_us / options.processes)  # one of more tokens takes longer
    return ranks, parts


def name_of(source: ModelSource) -> str:
    return Path(source).stem if isinstance(source, (str, Path)) else ""


def _shards(
    graph: OnnxGraph, segments: Sequence[Segment], decoder: Decoder, rank: int, options: DecoderOptions
) -> Shards:
    if options.processes > 1:
        return shard(graph, segments, decoder, rank, options.processes)
    return Shards(tuple(segments), (), decoder)


@dataclass(frozen=True)
class _Segments:
    """Compiles the segments of a decoder of that name, whose weights have so many bytes.

    Where the backends lack kernels for a segment, as for products of two values, ``more`` may take part.
    """

    shop: Shop
    more: Sequence[str]
    shared: SharedArrays
    name: str
    weights: int
    threads: int

    def compiled(
        self, segments: Sequence[Segment], wanted: Sequence[int], tokens: int, iteration_us: float
    ) -> tuple[Mapping[int, Parts], float]:
        """The parts of the wanted segments for so many tokens, and the microseconds that these take together.

        Segments of equal structure are measured once. An iteration takes at least ``iteration_us`` microseconds.
        """
        families: dict[str, list[int]] = {}
        for place in wanted:
            families.setdefault(structure(segments[place]), []).append(place)
        found: dict[int, Parts] = {}
        measured_us = 0.0
        about = f"{self.name} at {tokens} tokens"
        for number, places in enumerate(families.values()):
            self.shop.progress(Progress(f"segments of {about}", number, len(families)))
            name, share_us = f"segment {places[0]} of {about}", iteration_us / len(places)
            family = self._family([segments[place] for place in places], name, share_us)
            found.update(zip(places, family.parts, strict=True))
            measured_us += family.measured_us * len(places)
        return found, measured_us

    def _family(self, segments: Sequence[Segment], about: str, share_us: float) -> Family:
        """The parts of segments of equal structure. Raises NoPlacementError, which names the segment."""
        own = list(self.shop.options.backends or ())
        problem: NoPlacementError | None = None
        for backends in (own, [*own, *self.more]) if self.more else (own,):
            shop = replace(self.shop, options=replace(self.shop.options, backends=backends))
            models = (model_of(each, self.weights) for each in segments)  # one at a time: they are large
            try:
                return compile_family(shop, models, about, self.shared.adopt, share_us=share_us)
            except NoPlacementError as error:
                problem = error
        raise NoPlacementError(f"{about}: {problem}") from problem


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    count: int = math.prod(tensor.dims)
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def longest_sequence(decoder: Decoder, wanted: int | None, name: str, positions: int | None) -> int:
    """The longest sequence, by default one of ``positions`` at most.

    Raises UsageError for one that is longer than the tables of positions.
    """
    limit = decoder.max_length
    if wanted is not None and (wanted < 1 or (limit is not None and wanted > limit)):
        most = "" if limit is None else f", and at most {limit}, the rows of its table of positions"
        raise UsageError(f"the longest sequence of {name} must be at least 1{most}, not {wanted}.")
    default = DEFAULT_LENGTH if limit is None else limit
    return wanted or min(default, positions or default)


def with_costs(
    compiled: CompiledDecoder, costs_ms: Mapping[int, float], body_ms: Mapping[int, float]
) -> CompiledDecoder:
    return replace(compiled, costs_ms=dict(costs_ms), body_ms=dict(body_ms))
