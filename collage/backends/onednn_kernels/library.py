"""Finding and loading oneDNN 3 through its C API. Nothing is loaded before somebody asks."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage.backends.base import Availability
from collage.errors import CollageError
from collage.native.library import address_of, core, core_problem

PATH_VARIABLE = "COLLAGE_ONEDNN"
"""The environment variable with the path of a ``libdnnl.so.3`` that is taken before all others."""

_INSTALL = "pip install 'collage-compiler[onednn]'"
_NAME = "libdnnl.so.3"
_SEQUENTIAL, _OPENMP = 1, 2  # values of dnnl_version_t.cpu_runtime


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Library:
    """A loaded oneDNN."""

    c: ctypes.CDLL
    version: tuple[int, int, int]
    openmp: bool
    """Whether it runs parallel loops with OpenMP, whose thread count must be 1 inside Collage's team."""

    @property
    def isa(self) -> int:
        """The instruction set that its kernels use here (``dnnl_cpu_isa_t``)."""
        return int(self.c.dnnl_get_effective_cpu_isa())

    @property
    def text(self) -> str:
        """The version, such as ``3.2.0``."""
        return ".".join(map(str, self.version))


def availability() -> Availability:
    """The version of the oneDNN that would be used, or why there is none and what to install."""
    if problem := core_problem():
        return Availability(reason=problem)
    found = _find()
    return Availability(version=found.text) if isinstance(found, Library) else Availability(reason=found)


def library() -> Library:
    """The library, ready to use. Raises CollageError with the reason when there is none."""
    found = _find()
    if isinstance(found, str):
        raise CollageError(f"oneDNN is not available: {found}")
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """A block whose primitives run single-threaded, since oneDNN plans for the calling thread's OpenMP setting."""
    found = library()
    if not found.openmp:
        yield
        return
    before = found.c.omp_get_max_threads()
    found.c.omp_set_num_threads(1)
    try:
        yield
    finally:
        found.c.omp_set_num_threads(before)


@cache
def teach_core() -> None:
    """Have the team's threads set this library's OpenMP to one thread while they run tasks."""
    c = library().c
    if library().openmp:
        core().collage_use_openmp(address_of(c.omp_get_max_threads), address_of(c.omp_set_num_threads))


@cache
def _find() -> Library | str:
    """The library, or why there is none."""
    given = os.environ.get(PATH_VARIABLE)
    if given:
        found = _open(given)
        return found if isinstance(found, Library) else f"{PATH_VARIABLE}={given}: {found}"
    wheel = Path(sys.prefix) / "lib" / _NAME
    tried = [_open(_NAME), *([_open(str(wheel))] if wheel.exists() else [])]
    usable = [each for each in tried if isinstance(each, Library)]
    if usable:
        return max(usable, key=lambda each: each.version)
    reason = tried[-1]
    assert isinstance(reason, str)
    return reason


def _open(path: str) -> Library | str:
    try:
        c = ctypes.CDLL(path)
    except OSError as error:
        if "libgomp" in str(error):
            return f"{error}; it needs GNU OpenMP (Debian: apt install libgomp1)"
        return f"not installed: {_INSTALL}" if path == _NAME else f"{error}; {_INSTALL}"
    try:
        c.dnnl_version.restype = ctypes.POINTER(_Version)
        info = c.dnnl_version().contents
        version = (info.major, info.minor, info.patch)
        if version < (3, 0, 0):
            return f"oneDNN {'.'.join(map(str, version))} is too old, 3.0 is needed: {_INSTALL}"
        if info.cpu_runtime not in (_SEQUENTIAL, _OPENMP):
            return f"{path} brings threads of its own kind; one for OpenMP is needed: {_INSTALL}"
        openmp = info.cpu_runtime == _OPENMP
        if openmp:
            _ = c.omp_get_max_threads, c.omp_set_num_threads
    except AttributeError as error:
        return f"{path} is no oneDNN that can be used ({error}): {_INSTALL}"
    _declare(c)
    return Library(c, version, openmp)


def _declare(c: ctypes.CDLL) -> None:
    """Declare the types of arguments that ctypes would take for 32-bit integers."""
    pointer, integer, real, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_size_t
    signatures = {
        "engine_create": [pointer, integer, size],
        "stream_create": [pointer, pointer, ctypes.c_uint],
        "memory_desc_create_with_strides": [pointer, integer, pointer, integer, pointer],
        "memory_desc_create_with_tag": [pointer, integer, pointer, integer, integer],
        "memory_desc_query": [pointer, integer, pointer],
        "memory_create": [pointer, pointer, pointer, pointer],
        "primitive_attr_create": [pointer],
        "primitive_attr_set_scratchpad_mode": [pointer, integer],
        "primitive_attr_set_scales_mask": [pointer, integer, integer],
        "primitive_attr_set_post_ops": [pointer, pointer],
        "post_ops_create": [pointer],
        "post_ops_append_eltwise": [pointer, integer, real, real],
        "post_ops_append_binary": [pointer, integer, pointer],
        "primitive_desc_query": [pointer, integer, integer, pointer],
        "primitive_create": [pointer, pointer],
        "primitive_execute": [pointer, pointer, integer, pointer],
        "convolution_forward_primitive_desc_create": [pointer, pointer, integer, integer, *[pointer] * 9],
        "deconvolution_forward_primitive_desc_create": [pointer, pointer, integer, integer, *[pointer] * 9],
        "matmul_primitive_desc_create": [pointer] * 7,
        "pooling_forward_primitive_desc_create": [pointer, pointer, integer, integer, *[pointer] * 8],
        "softmax_forward_primitive_desc_create": [
            *[pointer, pointer, integer, integer, pointer, pointer, integer, pointer]
        ],
        "layer_normalization_forward_primitive_desc_create": [
            *[pointer, pointer, integer, pointer, pointer, pointer, real, ctypes.c_uint, pointer]
        ],
        "eltwise_forward_primitive_desc_create": [
            *[pointer, pointer, integer, integer, pointer, pointer, real, real, pointer]
        ],
        "binary_primitive_desc_create": [pointer, pointer, integer, *[pointer] * 4],
        "reorder_primitive_desc_create": [pointer] * 6,
        "memory_desc_destroy": [pointer],
        "memory_destroy": [pointer],
        "primitive_attr_destroy": [pointer],
        "post_ops_destroy": [pointer],
        "primitive_desc_destroy": [pointer],
        "primitive_destroy": [pointer],
    }
    for name, arguments in signatures.items():
        function = getattr(c, f"dnnl_{name}")
        function.argtypes = arguments
        function.restype = integer
    c.dnnl_memory_desc_get_size.argtypes = [pointer]
    c.dnnl_memory_desc_get_size.restype = size
    c.dnnl_primitive_desc_query_md.argtypes = [pointer, integer, integer]
    c.dnnl_primitive_desc_query_md.restype = pointer
