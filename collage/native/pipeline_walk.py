"""The dynamic programs over pipelines, compiled: plain numbers only (see search/pipeline.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.core.threads import in_thread
from collage.errors import CollageError
from collage.native.library import built

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
STAGE = np.dtype([(name, np.int32) for name in ("row", "begin", "end", "config", "degree", "in_flight")])
EXTRAS, MOST_BLOCKS = 6, 128
"""Columns of sums after the work; the most blocks of a family of sets."""


class TimeOver(CollageError):
    """The search has taken longer than it may."""


def _structure(name: str, text: str) -> type[ctypes.Structure]:
    """A structure with fields given as ``type:names``: p is a pointer, d a double, i an int32."""
    kinds = {"p": ctypes.c_void_p, "d": ctypes.c_double, "i": ctypes.c_int32}
    groups = (group.partition(":") for group in text.split())
    fields = [(field, kinds[kind]) for kind, _, names in groups for field in names.split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_Costs = _structure(
    "_Costs",
    "p:b,k,ring_latency,ring_bandwidth d:memory,latency,bandwidth i:mini_batch,devices,configs,degrees,tables,stop",
)
_TREE = "s_first,unit,s_rows,s_same,v_first,v_place,v_after,v_rows,child,child_end,p_runs,p_same,row"
_Tree = _structure("_Tree", f"p:{_TREE},sums i:series,places,root,rows")
_Ideals = _structure("_Ideals", "p:sets,sums,source,target,bytes i:count,edges,blocks,chain")


@dataclass(frozen=True, eq=False)
class PipeCosts:
    """The arrays and numbers of ``collage_pipe_costs``."""

    b: Ints
    k: Ints
    ring_latency: Floats
    ring_bandwidth: Floats
    memory: float
    latency: float
    bandwidth: float
    mini_batch: int
    devices: int
    tables: int

    @cached_property
    def structure(self) -> Any:
        """The structure, which holds no references to the arrays."""
        arrays = (self.b, self.k, self.ring_latency, self.ring_bandwidth)
        numbers = (self.memory, self.latency, self.bandwidth, self.mini_batch, self.devices)
        counts = (len(self.b), len(self.ring_latency), self.tables, 0)
        return _Costs(*(each.ctypes.data for each in arrays), *numbers, *counts)


@dataclass(frozen=True, eq=False)
class PipeTree:
    """The arrays of ``collage_pipe_tree`` by their names; the root is the last series."""

    arrays: Mapping[str, Ints]
    sums: Floats

    @cached_property
    def structure(self) -> Any:
        """The structure, which holds no references to the arrays."""
        pointers = [self.arrays[name].ctypes.data for name in _TREE.split(",")]
        series = len(self.arrays["s_rows"])
        counts = (series, len(self.arrays["child"]), series - 1, len(self.sums))
        return _Tree(*pointers, self.sums.ctypes.data, *counts)

    function = "collage_pipe_plan_tree"


@dataclass(frozen=True, eq=False)
class PipeIdeals:
    """The arrays of ``collage_pipe_ideals``; ``sets`` are pairs of 64-bit words."""

    sets: npt.NDArray[np.uint64]
    sums: Floats
    source: Ints
    target: Ints
    nbytes: Floats
    blocks: int
    chain: bool

    @cached_property
    def structure(self) -> Any:
        """The structure, which holds no references to the arrays."""
        arrays = (self.sets, self.sums, self.source, self.target, self.nbytes)
        return _Ideals(
            *(each.ctypes.data for each in arrays), len(self.sets), len(self.source), self.blocks, self.chain
        )

    function = "collage_pipe_plan_ideals"


def plan(costs: PipeCosts, problem: PipeTree | PipeIdeals, t_max: float, seconds: float) -> tuple[list[Any], int]:
    """Rows of STAGE of the best plan, none if there is no plan, and the number of states of the memo table.

    Raises TimeOver after ``seconds``, MemoryError, and CollageError if the library was not built.
    """
    stages = np.zeros(costs.devices, STAGE)
    states = ctypes.c_int64()
    function = getattr(_library(), problem.function)

    def search() -> Any:
        """Run the search. It keeps its arrays, since it may go on for a moment after Ctrl-C has ended ``plan``."""
        given = (ctypes.byref(costs.structure), ctypes.byref(problem.structure), t_max, seconds)
        return function(*given, stages.ctypes.data, len(stages), ctypes.byref(states))

    try:
        count = in_thread(search).result()
    except BaseException:  # Ctrl-C, perhaps before there is a future
        costs.structure.stop = 1
        raise
    if count == -1:
        raise MemoryError("there is not enough memory for the search")
    if count == -2:
        raise TimeOver("the search has taken longer than it may.")
    return list(stages[:count]), states.value


@cache
def _library() -> ctypes.CDLL:
    pointer, number, integer = ctypes.c_void_p, ctypes.c_double, ctypes.c_int32
    try:
        library = ctypes.CDLL(str(built("_search")))
        for name in (PipeTree.function, PipeIdeals.function):
            function = getattr(library, name)
            function.restype = integer
            function.argtypes = [pointer, pointer, number, number, pointer, integer, pointer]
    except (OSError, AttributeError) as error:
        raise CollageError(
            f"the planner's compiled search cannot be used: {error}. It is built when Collage is installed from source "
            "and a C++17 compiler is found: install one (Debian: apt install g++) and install Collage again."
        ) from error
    return library
