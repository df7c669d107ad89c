"""oneDNN's objects in Python ones that destroy them: memory descriptors, memories and primitives."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from collage.backends.chains.strided import Strided
from collage.backends.onednn_kernels.description import INT8, UINT8, Description, Packed
from collage.backends.onednn_kernels.library import library
from collage.errors import CollageError
from collage.graph.storage import BF16, BLOCK

MAX_DIMS = 12
_FLOAT32, _TAG_ANY, _CPU, _IN_ORDER = 3, 1, 1, 1
_DTYPES = {"": _FLOAT32, BF16: 2, INT8: 5, UINT8: 6}
"""Numbers of ``dnnl_data_type_t``."""
_FORMAT_KIND_BLOCKED = 2
_BLOCKED_TAGS = {3: 56, 4: 78, 5: 121}
"""The numbers of ``dnnl_aBc16b`` and the like, which are checked before use."""

# numbers of dnnl_query_t
DIMS, PADDED_DIMS, INNER_COUNT, INNER_BLOCKS, INNER_AXES, STRIDES = 257, 260, 263, 264, 265, 14
RANK, FORMAT_KIND = 256, 262


class OneDnnError(CollageError):
    """A call of oneDNN's C API failed."""


class UnimplementedError(OneDnnError):
    """oneDNN has no primitive for that combination of shapes, layouts and post-ops."""


_UNIMPLEMENTED = 3


def check(status: int, what: str) -> None:
    """Raises the error of a status that is not success."""
    if status == _UNIMPLEMENTED:
        raise UnimplementedError(f"oneDNN does not implement this {what}")
    if status:
        raise OneDnnError(f"oneDNN refuses this {what} (status {status})")


class Handle:
    """An object of the library, destroyed together with this one."""

    def __init__(self, kind: str, value: int | None) -> None:
        if not value:
            raise OneDnnError(f"oneDNN gave no {kind}")
        self.value: int = value
        end = weakref.finalize(self, getattr(library().c, f"dnnl_{kind}_destroy"), value)
        end.atexit = False


@dataclass(frozen=True)
class Form:
    """The values that tell where an element of a tensor lies. Equal forms of equal types are interchangeable."""

    dims: tuple[int, ...]
    padded: tuple[int, ...]
    strides: tuple[int, ...]
    inner_blocks: tuple[int, ...]
    inner_axes: tuple[int, ...]
    nbytes: int


def extents(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """The C type ``dnnl_dims_t``."""
    return (ctypes.c_int64 * MAX_DIMS)(*values)


def memory_desc(description: Description) -> Handle:
    """The memory descriptor that a description means."""
    made = ctypes.c_void_p()
    c, dims, dtype = library().c, description.dims, _DTYPES[description.dtype]
    if isinstance(description, Strided):
        status = c.dnnl_memory_desc_create_with_strides(
            ctypes.byref(made), len(dims), extents(dims), dtype, extents(description.strides)
        )
    else:
        tag: int = _TAG_ANY if isinstance(description, Packed) else blocked_tag(len(dims))
        status = c.dnnl_memory_desc_create_with_tag(ctypes.byref(made), len(dims), extents(dims), dtype, tag)
    check(status, f"memory descriptor of {description}")
    return Handle("memory_desc", made.value)


def form_of(desc: int) -> Form:
    """The form of a memory descriptor, which must not leave the order open."""
    c = library().c
    if _query_int(desc, FORMAT_KIND) != _FORMAT_KIND_BLOCKED:
        raise OneDnnError("oneDNN keeps these weights in an order of its own that cannot be stored")
    rank, blocks = _query_int(desc, RANK), _query_int(desc, INNER_COUNT)
    return Form(
        _query_ints(desc, DIMS, rank),
        _query_ints(desc, PADDED_DIMS, rank),
        _query_ints(desc, STRIDES, rank),
        _query_ints(desc, INNER_BLOCKS, blocks),
        _query_ints(desc, INNER_AXES, blocks),
        int(c.dnnl_memory_desc_get_size(desc)),
    )


@cache
def blocked_tag(rank: int) -> int:
    """oneDNN's number for the blocked format of that rank, which is searched for if the known one is wrong."""
    dims = (2, 4 * BLOCK, 3, 5, 7)[:rank]
    wanted, step = [0] * rank, BLOCK
    for axis in (*reversed(range(2, rank)), 1):
        wanted[axis] = step
        step *= dims[axis] // (BLOCK if axis == 1 else 1)
    wanted[0] = step
    candidates: list[int] = [_BLOCKED_TAGS[rank], *range(2, 1500)]
    for tag in candidates:
        made = ctypes.c_void_p()
        if library().c.dnnl_memory_desc_create_with_tag(ctypes.byref(made), rank, extents(dims), _FLOAT32, tag):
            continue
        desc = Handle("memory_desc", made.value)
        if _query_int(desc.value, FORMAT_KIND) != _FORMAT_KIND_BLOCKED:
            continue
        form = form_of(desc.value)
        if (form.inner_blocks, form.inner_axes, form.strides) == ((BLOCK,), (1,), tuple(wanted)):
            return tag
    raise OneDnnError(f"oneDNN has no layout with blocks of {BLOCK} channels for {rank} axes")


@cache
def engine() -> int:
    """The CPU engine, which lives as long as the process."""
    made = ctypes.c_void_p()
    check(library().c.dnnl_engine_create(ctypes.byref(made), _CPU, 0), "engine")
    return made.value or 0


@cache
def stream() -> int:
    """The stream that all primitives are executed in. On a CPU it holds no state."""
    made = ctypes.c_void_p()
    check(library().c.dnnl_stream_create(ctypes.byref(made), engine(), _IN_ORDER), "stream")
    return made.value or 0


def memory(desc: int, address: int) -> Handle:
    """A memory object: a descriptor with a buffer, which must outlive it."""
    made = ctypes.c_void_p()
    check(library().c.dnnl_memory_create(ctypes.byref(made), desc, engine(), address), "memory object")
    return Handle("memory", made.value)


def _query_int(desc: int, what: int) -> int:
    found = ctypes.c_int()
    check(library().c.dnnl_memory_desc_query(desc, what, ctypes.byref(found)), "query")
    return found.value


def _query_ints(desc: int, what: int, count: int) -> tuple[int, ...]:
    if count == 0:
        return ()
    found = ctypes.POINTER(ctypes.c_int64)()
    check(library().c.dnnl_memory_desc_query(desc, what, ctypes.byref(found)), "query")
    return tuple(found[i] for i in range(count))
