"""The largest or the smallest numbers of each row, and their places, as routers of experts choose; see `top_k.cpp`.

Of equal numbers the first one comes first. Beside NaN the kernel chooses as ONNX Runtime does, whose choice depends on
where NaN is, for all but large shares of a row: there ONNX Runtime has a third way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.native_kernels.algorithm import ROWS, WHOLE, Algorithm, shared_or_whole
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import kernel_task
from collage.core.typed import MalformedError, typed
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel, Step
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed
from collage.native.reach import FLOAT_BYTES, at_least, check_floats, one_of, picked
from collage.native.structure import structure

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

OPERATOR = "topk"
MOST = 128
"""The most numbers of a row that are chosen: COLLAGE_MOST_TOP_K."""
_PLACE_BYTES = 8
_MADE = {"both": ("values", "places"), "values": ("values",), "indices": ("places",)}


@dataclass(frozen=True)
class TopKTask:
    """The ``chosen`` largest or smallest of the ``columns`` numbers of each row.

    ``values`` and ``places`` are positions among the subgraph's outputs, float32 and int64; None is for what is not
    wanted.
    """

    rows: int
    columns: int
    chosen: int
    smallest: bool
    values: int | None
    places: int | None


def read_choice(subgraph: Subgraph) -> TopKTask:
    """The subgraph as a choice. Raises UnsupportedError with the reason if the kernel does not take it."""
    if len(subgraph.nodes) != 1:
        raise UnsupportedError("something follows the choice")
    graph, (node,) = subgraph.model.graph, subgraph.operators
    kind, attributes = graph.type_of(node.inputs[0]), node.attrs
    if kind.dtype != "float32" or attributes["dtype"] != "int64":
        raise UnsupportedError(f"the largest of {kind.dtype}, with places in {attributes['dtype']}")
    if attributes["axis"] not in (-1, len(kind.shape) - 1):
        raise UnsupportedError("the largest along another axis than the last one")
    if 0 in kind.shape:
        raise UnsupportedError("there are no numbers")
    chosen = typed(int, attributes["k"])
    if not 0 < chosen <= min(MOST, kind.shape[-1]):
        raise UnsupportedError(f"the {chosen} largest of {kind.shape[-1]}; there is a kernel for {MOST} at most")
    names = _MADE[str(attributes["ret_type"])]
    made = dict(zip(names, node.outputs, strict=True))
    found = {
        name: subgraph.outputs.index(made[name]) if made.get(name) in subgraph.outputs else None
        for name in ("values", "places")
    }
    rows = kind.size // kind.shape[-1]
    return TopKTask(rows, kind.shape[-1], chosen, not attributes["largest"], **found)


class TopK(Algorithm[TopKTask]):
    """Takes float32 along the last axis."""

    name = "top_k"
    roots = frozenset({OPERATOR})
    read = staticmethod(read_choice)

    def variants(self, task: TopKTask, build: BuildOptions) -> Sequence[Variant]:
        """Plain variants: threads have rows of their own, or one thread has all."""
        splits = shared_or_whole(ROWS, task.rows * task.columns, build, task.rows)
        made = (PLAIN,) * sum(each is not None for each in (task.values, task.places))
        return [Variant((PLAIN,), made, split) for split in splits]

    def pack(self, task: TopKTask, build: BuildOptions) -> Packed:
        """The numbers of the kernel; it has no arrays."""
        return Packed(
            {
                "rows": task.rows,
                "columns": task.columns,
                "chosen": task.chosen,
                "smallest": int(task.smallest),
                "shares": 1 if build.variant.split == WHOLE else build.threads,
                "values": task.values,
                "places": task.places,
            },
            {},
        )

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads. Raises MalformedError for numbers that do not fit."""
        return _TopKKernel(packed, threads)


class _TopKKernel(NativeKernel):
    def __init__(self, packed: Packed, threads: int) -> None:
        super().__init__(threads)
        n = packed.numbers
        at_least(1, n, "rows", "columns", "chosen", "shares")
        one_of((0, 1), n, "smallest")
        if n["chosen"] > min(MOST, n["columns"]) or n["shares"] > min(threads, n["rows"]):
            raise MalformedError(f"{n['chosen']} of {n['columns']} numbers, in {n['shares']} shares")
        self._numbers = n
        self._function = kernel_function("collage_top_k")
        self._shape = structure(_Shape, n)

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step with a task for each thread that takes part. Raises MalformedError if buffers are too small."""
        n = self._numbers
        data = picked("input", inputs, 0)
        check_floats("the data", data, n["rows"] * n["columns"])
        values, places = (None if n[key] is None else picked("output", outputs, n[key]) for key in ("values", "places"))
        made = n["rows"] * n["chosen"]
        if values is not None:
            check_floats("the values", values, made)
        if places is not None:
            check_floats("the places", places, made * _PLACE_BYTES / FLOAT_BYTES)
        arrays = (data, values, places)
        shares = range(n["shares"])
        return [Step(tuple(kernel_task(self._function, self._shape, arrays, i) for i in shares))]


_Shape = shape_struct("rows", "columns", "chosen", "smallest", "shares", clamps=False)
"""``collage_top_k_shape``."""
