"""An iteration for one bucket of tokens: segments and attention in turn, bound to buffers of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from collage.backends.registry import Registry
from collage.graph.dataflow import Array, TensorType, np_dtype
from collage.kernel.buffers import aligned_bytes, aligned_empty
from collage.kernel.kernel import Call
from collage.native import LaunchList, team_of
from collage.runtime.bound import BoundCall, bind
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, load_parts
from collage.serve.attention import AttentionBatch, LayerCache, Operands, Rows, attention_steps
from collage.serve.decoder.compiled import IDS, POSITIONS, CompiledDecoder, Layer, Source, Wiring, by_token
from collage.serve.decoder.costs import bucket_for
from collage.serve.runner import Slice


def allocate(
    types: Mapping[str, TensorType], writes: Sequence[Sequence[str]], reads: Sequence[Sequence[str]]
) -> dict[str, Array]:
    """An array for each value. Step i writes ``writes[i]`` and reads ``reads[i]``, and may not do both in one memory.

    All bytes begin as zeros, since rows that no token has are computed, too.
    """
    last = {name: step for step, names in enumerate(reads) for name in names}
    free: dict[int, list[Array]] = {}
    found: dict[str, Array] = {}
    memory: dict[str, Array] = {}
    for step, names in enumerate(writes):
        for name in names:
            kind = types[name]
            spare = free.get(kind.nbytes)
            memory[name] = spare.pop() if spare else _zeros(kind.nbytes)
            found[name] = memory[name].view(np_dtype(kind.dtype)).reshape(kind.shape)
        for name in list(memory):
            if last.get(name, len(reads)) <= step:
                raw = memory.pop(name)
                free.setdefault(raw.nbytes, []).append(raw)
    return found


def _zeros(size: int) -> Array:
    found = aligned_bytes(size)
    found.fill(0)
    return found


@dataclass(frozen=True)
class Shared:
    """What all iterations of a runner share: the batch of slices, the caches of the layers, and an arena."""

    batch: AttentionBatch
    caches: Sequence[LayerCache]
    arena: Array


class Values:
    """The values between the segments for ``tokens`` tokens or fewer, and the calls of the segments on them.

    ``entering`` are the types of values that are filled in before the first segment, besides the tokens.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        tokens: int,
        executors: Sequence[Executor],
        arena: Array,
        entering: Mapping[str, TensorType] | None = None,
    ) -> None:
        self.tokens = tokens
        self._values = _buffers(compiled, tokens, executors, entering or {})
        self.segments = [
            bound(executor, wiring, self._values, arena)
            for executor, wiring in zip(executors, compiled.wiring, strict=False)
        ]

    def set_tokens(self, ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> None:
        """Fill the tokens in. Rows beyond them are computed of token 0, and written nowhere."""
        count = len(ids)
        for name, given in ((IDS, ids), (POSITIONS, positions)):
            if name in self._values:
                row = self._values[name].reshape(-1)
                row[:count] = given
                row[count:] = 0

    def rows(self, name: str) -> Array:
        return self._values[name].reshape(self.tokens, -1)

    def operands(self, layer: Layer, cache: LayerCache) -> Operands:
        q, k, v = (self._rows(source) for source in (layer.q, layer.k, layer.v))
        return Operands(q, k, v, Rows(self._values[layer.output], 0, layer.heads * layer.value_dim), cache)

    def _rows(self, source: Source) -> Rows:
        array = self._values[by_token(source)]
        return Rows(array, source.offset, array.size // self.tokens)


class Iteration(Values):
    """The segments but the last one, and all attention, for ``tokens`` tokens or fewer."""

    def __init__(
        self,
        compiled: CompiledDecoder,
        tokens: int,
        executors: Sequence[Executor],
        shared: Shared,
        entering: Mapping[str, TensorType] | None = None,
    ) -> None:
        super().__init__(compiled, tokens, executors, shared.arena, entering)
        calls: list[BoundCall | LaunchList] = []
        team = team_of(compiled.threads)
        for place, (layer, own) in enumerate(zip(compiled.decoder.layers, compiled.attention, strict=True)):
            operands = self.operands(layer, shared.caches[place])
            steps = attention_steps(own.heads, shared.batch, operands, own.rotations, compiled.threads)
            calls += [self.segments[place], LaunchList(team, steps)]
        self._bound = calls  # whose kernels have to stay alive
        self.calls = joined(calls)
        """The calls of a run. It is one, which native code runs without the GIL, where all kernels run on the team."""

    def run(self, ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> None:
        self.set_tokens(ids, positions)
        for call in self.calls:
            call()


class End:
    """The last segment, for ``rows`` rows or fewer: those whose logits are wanted."""

    def __init__(self, wiring: Wiring, rows: int, executor: Executor, arena: Array) -> None:
        self._rows = rows
        types = _types(wiring, executor)
        names = [*wiring.reads, *wiring.writes]
        self._values = allocate(types, [names], [[]])
        self._reads = wiring.reads
        (self._logits,) = wiring.writes
        self._call = bound(executor, wiring, self._values, arena)

    def run(self, iteration: Values, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The logits [rows, vocabulary] of these rows of the iteration, which the next run overwrites."""
        for name in self._reads:
            array = self._values[name].reshape(self._rows, -1)
            np.take(iteration.rows(name), rows, axis=0, out=array[: len(rows)], mode="clip")
            array[len(rows) :] = 0
        self._call()
        return self._values[self._logits].reshape(self._rows, -1)[: len(rows)].view(np.float32)


class LastSegments:
    def __init__(self, compiled: CompiledDecoder, registry: Registry, arena: Array) -> None:
        self._vocabulary = compiled.decoder.vocabulary
        self._buckets = tuple(sorted(compiled.ends))
        self._ends = {
            rows: End(compiled.wiring[-1], rows, executor_of(parts, registry), arena)
            for rows, parts in compiled.ends.items()
        }

    def run(self, values: Values, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The logits [rows, vocabulary] of these rows. The next run may overwrite them."""
        most = self._buckets[-1]
        if 0 < len(rows) <= most:
            return self._ends[bucket_for(self._buckets, len(rows))].run(values, rows)
        found = np.empty((len(rows), self._vocabulary), np.float32)
        for at in range(0, len(rows), most):
            part = rows[at : at + most]
            found[at : at + most] = self._ends[bucket_for(self._buckets, len(part))].run(values, part)
        return found


def executor_of(parts: Parts, registry: Registry) -> Executor:
    found = load_parts(parts, registry)
    assert isinstance(found, Executor)  # a segment is compiled strictly, without an engine's suffix
    return found


def arena_for(compiled: CompiledDecoder) -> Array:
    parts = chain(chain.from_iterable(compiled.segments.values()), compiled.ends.values())
    return aligned_empty((max(max(each.program.memory.nbytes, 1) for each in parts),), "uint8")


def wanted_rows(slices: Sequence[Slice]) -> npt.NDArray[np.int64]:
    ends = np.cumsum([len(each.token_ids) for each in slices])
    return np.asarray(ends[[each.wants_logits for each in slices]] - 1, np.int64)


def tokens_of(slices: Sequence[Slice]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tokens of all slices, one after another, and their positions."""
    ids = np.fromiter(chain.from_iterable(each.token_ids for each in slices), np.int64)
    counts = np.array([len(each.token_ids) for each in slices])
    starts = np.array([each.start for each in slices])
    return ids, np.arange(len(ids)) + np.repeat(starts + counts - np.cumsum(counts), counts)


def joined(calls: Sequence[BoundCall | LaunchList]) -> list[Call]:
    """The calls, of which those on the team that follow each other are one launch list."""
    found: list[Call] = []
    row: list[LaunchList] = []
    for call in calls:
        lists = [call] if isinstance(call, LaunchList) else call.launch_lists
        if lists is not None:
            row += lists
            continue
        found += [_in_one(row)] if row else []
        found.append(call)
        row = []
    return [*found, _in_one(row)] if row else found


def _in_one(lists: Sequence[LaunchList]) -> LaunchList:
    return lists[0].followed_by(lists[1:])


def bound(executor: Executor, wiring: Wiring, values: Mapping[str, Array], arena: Array) -> BoundCall:
    program = executor.program
    inputs = {port.name: values[name] for port, name in zip(program.model_inputs, wiring.reads, strict=True)}
    outputs = {port.name: values[name] for port, name in zip(program.model_outputs, wiring.writes, strict=True)}
    return bind(executor, inputs, outputs, arena)


def _types(wiring: Wiring, executor: Executor) -> dict[str, TensorType]:
    program = executor.program
    names, ports = (*wiring.reads, *wiring.writes), (*program.model_inputs, *program.model_outputs)
    return {name: port.type for name, port in zip(names, ports, strict=True) if isinstance(port.type, TensorType)}


def _buffers(
    compiled: CompiledDecoder,
    tokens: int,
    executors: Sequence[Executor],
    entering: Mapping[str, TensorType],
) -> dict[str, Array]:
    """The arrays of all values between segments. Step 2i is segment i, and step 2i + 1 the attention after it."""
    layers, wiring = compiled.decoder.layers, compiled.wiring
    types = {
        name: kind
        for each, executor in zip(wiring, executors, strict=False)
        for name, kind in _types(each, executor).items()
    }
    given = list(dict.fromkeys(name for each in wiring for name in each.reads if name in (IDS, POSITIONS)))
    for name in given:
        types.setdefault(name, TensorType((1, tokens), "int64"))
    types.update(entering)
    given += entering
    writes: list[list[str]] = [given]
    reads: list[list[str]] = [[]]
    for after, each in zip(compiled.steps, wiring, strict=False):
        if after.layer < 0:
            writes += [list(each.writes), []]
            reads += [list(each.reads), list(after.sums)]
            continue
        layer = layers[after.layer]
        writes += [list(each.writes), [layer.output]]
        reads += [list(each.reads), [by_token(source) for source in (layer.q, layer.k, layer.v)]]
        # The last layer's is read by the last segment only, whose rows are others.
        types.setdefault(layer.output, TensorType((tokens, layer.heads * layer.value_dim), "float32"))
    return allocate(types, [*writes, []], [*reads, [*wiring[-1].reads, *given]])
