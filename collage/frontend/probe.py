"""A model in ONNX Runtime without optimisations, whose inner values can be read and disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

from collage.frontend.model import Model
from collage.frontend.session import unoptimised_session
from collage.graph.dataflow import Array

T = TypeVar("T")

BATCH_BYTES = 256 * 2**20
"""The most bytes of values that are held at a time."""

_EXACT = "/before noise"
_NOISE = "/noise"


class Probe:
    """The model with some of its values, which have names in it, among its outputs.

    If it is ``noisy`` it has an input for noise that is added to each of these values, none of which is an input.
    """

    def __init__(self, model: Model, values: Mapping[int, str], *, noisy: bool = False) -> None:
        self._inputs = dict(zip(model.graph.inputs, model.input_names, strict=True))
        self._outputs = list(model.output_names)
        made = {value: name for value, name in values.items() if value not in self._inputs}
        proto = onnx.ModelProto()
        proto.CopyFrom(model.onnx)
        if noisy:
            _add_noise(proto, {*made.values()})
        self._read = {value: name + _EXACT if noisy else name for value, name in made.items()}
        known = {each.name for each in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._read.values() if name not in known)
        self._noise_of = {value: name + _NOISE for value, name in made.items()} if noisy else {}
        self._silence = dict.fromkeys(self._noise_of.values(), np.zeros((), np.float32))
        self._session = unoptimised_session(proto)

    def run(self, inputs: Sequence[Array], noise: Mapping[int, Array]) -> list[Array]:
        """The model's outputs, in order, with noise in these values, for inputs in the model's order."""
        given = {self._noise_of[value]: array for value, array in noise.items()}
        return list(self._session.run(self._outputs, {**self._feeds(inputs), **self._silence, **given}))

    def values(self, inputs: Sequence[Array], values: Sequence[int]) -> dict[int, Array]:
        """Values for inputs in the model's order, without noise."""
        feeds = self._feeds(inputs)
        read = [value for value in values if value in self._read]
        names = [self._read[value] for value in read]
        found = self._session.run(names, {**feeds, **self._silence}) if read else []
        taken = {v: np.asarray(feeds[self._inputs[v]]) for v in values if v in self._inputs}
        return {**taken, **dict(zip(read, found, strict=True))}

    def _feeds(self, inputs: Sequence[Array]) -> dict[str, Any]:
        return dict(zip(self._inputs.values(), inputs, strict=True))


def _add_noise(proto: onnx.ModelProto, wanted: set[str]) -> None:
    """Add an input to each of these values, before anything reads it."""
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        made = [name for name in node.output if name in wanted]
        for position, name in enumerate(node.output):
            if name in wanted:
                node.output[position] = name + _EXACT
        proto.graph.node.append(node)
        for name in made:
            ports = [name + _EXACT, name + _NOISE], [name]
            proto.graph.node.append(onnx.helper.make_node("Add", *ports, name=name + _NOISE))
    for name in sorted(wanted):
        # The shape is left open: a single zero stands for no noise.
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name + _NOISE, onnx.TensorProto.FLOAT, None))


def batches(model: Model, groups: Iterable[T], values: Callable[[T], Iterable[int]]) -> Iterator[list[T]]:
    """The groups, as many at a time as one run may give the ``values`` of."""
    batch: list[T] = []
    size = 0
    for group in groups:
        own = sum(model.graph.type_of(value).nbytes for value in values(group))
        if batch and size + own > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(group)
        size += own
    if batch:
        yield batch


def value_names(model: Model) -> dict[int, str]:
    """Names in the ONNX model of its float32 values, inputs first, then in the order of the nodes."""
    found: dict[int, str] = {}
    made = (name for node in model.onnx.graph.node for name in node.output)
    for name in (*model.input_names, *made):
        value = model.onnx_values.get(name)
        if value is not None and model.graph.type_of(value).dtype == "float32":
            found.setdefault(value, name)
    return found


def next_named(model: Model, value: int, names: Mapping[int, str]) -> int | None:
    """The value itself where it has a name, or the first one with a name that is computed from it, or None."""
    graph, seen, pending = model.graph, {value}, [value]
    while pending:
        current = pending.pop(0)
        if current in names:
            return current
        for user in graph.users[current]:
            new = [v for v in graph.nodes[user].outputs if v not in seen]
            seen.update(new)
            pending += new
    return None
