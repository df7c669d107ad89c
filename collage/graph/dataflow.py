"""The dataflow graph that matching, search and scheduling work on.

It has plain Python values and no TVM objects. Nodes are operators, values are tensors, and ids are positions. Nodes
are in a topological order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]
Attr: TypeAlias = "int | float | bool | str | tuple[Attr, ...] | None"


class OpKind(Enum):
    """TVM's operator kinds (``OpPatternKind``), which its fusion rules are written in.

    They are not integers, because a pattern rule may give them numbers of its own (Listing 1 does).
    """

    ELEMWISE = "elementwise"
    BROADCAST = "broadcast"
    INJECTIVE = "injective"
    REDUCTION = "reduction"
    OUT_FUSABLE = "out-fusable"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's static shape (elements per axis) and numpy dtype name."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """The bytes of the dense tensor."""
        return self.size * np_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


@cache
def np_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of that name; the 16-bit brain float and the 8-bit floats come from ml_dtypes."""
    try:
        found: np.dtype[np.generic] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    return found


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: a graph input or constant (``producer is None``) or an output of a node."""

    id: int
    type: TensorType
    producer: int | None = None
    name: str = ""
    """The name of the ONNX value that it is, or "" for a value inside an ONNX node."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: ``op`` is the Relax name without ``relax.``, or ``onnx.<OpType>`` for an opaque ONNX node.

    ``inputs`` and ``outputs`` are value ids; tuples of tensors are flattened into ``inputs``. ``attrs`` holds
    the operator's attributes, and its arguments that are no tensors (shapes, axes) under ``arg<position>``.
    ``source`` is the index of the ONNX node it came from, or -1.
    """

    id: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    kind: OpKind = OpKind.OPAQUE
    source: int = -1


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of operators; ``constants`` maps value ids to arrays (C-contiguous)."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the ids of the nodes that read it, each once, ascending."""
        users: list[dict[int, None]] = [{} for _ in self.values]
        for node in self.nodes:
            for value in node.inputs:
                users[value][node.id] = None
        return tuple(tuple(each) for each in users)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the ids of the nodes whose outputs it reads, ascending."""
        return tuple(
            tuple(sorted({p for v in n.inputs if (p := self.values[v].producer) is not None})) for n in self.nodes
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the ids of the nodes that read its outputs, ascending."""
        return tuple(
            tuple(sorted({user for value in node.outputs for user in self.users[value]})) for node in self.nodes
        )

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """For each node, the length of the longest path to it from a node without predecessors."""
        depth: list[int] = []
        for node in self.nodes:
            depth.append(1 + max((depth[p] for p in self.predecessors[node.id]), default=-1))
        return tuple(depth)

    @cached_property
    def output_set(self) -> frozenset[int]:
        """The ids of the values that the graph returns."""
        return frozenset(self.outputs)

    @cached_property
    def constant_bytes(self) -> int:
        """The bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())

    def type_of(self, value: int) -> TensorType:
        """The type of the value with that id."""
        return self.values[value].type

    def is_constant(self, value: int) -> bool:
        """Whether that value is an initializer."""
        return value in self.constants
