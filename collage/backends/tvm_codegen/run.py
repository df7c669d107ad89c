"""Compiled kernels, loaded and bound to buffers: as steps for a team of threads, or as a call from Python."""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from collage.backends.tvm_codegen.artifact import (
    Array,
    TensorSpec,
    TvmArtifact,
    TvmCall,
    empty_aligned,
    unpack,
)
from collage.backends.tvm_codegen.link import is_parallel, link
from collage.backends.tvm_codegen.mapped import LAUNCH, Image, map_image, usable_sets
from collage.core.temporary import TemporaryFolder
from collage.kernel import frames
from collage.kernel.buffers import ALIGNMENT, is_aligned
from collage.native.launch import LaunchList, Mode, Step, Task
from collage.native.library import address_of, core, core_problem
from collage.native.team import team_of

_TENSOR_POINTER = 7  # kTVMFFIDLTensorPtr
_HOST = 1  # kDLCPU
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's codes of numpy's kinds of dtypes."""


@dataclass(frozen=True, eq=False)
class TvmCode:
    """Compiled functions by name, as TVM calls them and as addresses of C functions.

    They are there as long as this object lives. `parallel` tells whether they have parallel loops.
    """

    functions: Mapping[str, Any]
    addresses: Mapping[str, int]
    parallel: bool
    kept: object = None


_loaded: WeakValueDictionary[tuple[object, bool], TvmCode] = WeakValueDictionary()
"""The loaded code of this process. A network has the same code many times, and LLVM takes 50 ms for IR each time."""


@dataclass(frozen=True, eq=False)
class TvmKernel:
    """Loaded code, and the buffers it expects."""

    calls: tuple[TvmCall, ...]
    params: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    intermediates: tuple[TensorSpec, ...]
    constants: tuple[Array, ...]
    threads: int
    parallel: bool
    code: TvmCode

    @property
    def addresses(self) -> Mapping[str, int]:
        """The addresses of its functions as C functions. There are none without the native core."""
        return self.code.addresses

    def bind(self, params: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Fix the buffers; the result runs the kernel on them with no further checks: on Collage's team of
        `threads` threads, or in TVM's thread pool if there is no native core.

        Arrays must be C-contiguous, on a 64-byte boundary, of the dtypes and shapes in `params` and
        `outputs`; outputs must be writable and overlap no other buffer. Anything else is a `ValueError`.
        The callable keeps the arrays alive and must not run in two threads at once.
        """
        if self.addresses:
            return LaunchList(team_of(self.threads), self.steps(params, outputs))
        runs = [
            functools.partial(self.code.functions[call.name], *map(_tensor, arrays))
            for call, arrays in self._arguments(params, outputs)
        ]
        if len(runs) == 1:
            return runs[0]

        def run() -> None:
            for step in runs:
                step()

        return run

    def steps(self, params: Sequence[Array], outputs: Sequence[Array]) -> tuple[Step, ...]:
        """The kernel's steps on these buffers, as for `bind`. They need the native core."""
        tasks = []
        for call, arrays in self._arguments(params, outputs):
            arguments = _arguments_of(arrays)
            places = (arguments.address, len(arrays), arguments.result)
            tasks.append(Task(self.addresses[call.name], 0, *places, (self.code, arguments)))
        alone = len(tasks) == 1 and not self.parallel
        return (Step(tuple(tasks), Mode.SPLIT if alone else Mode.LEAD),)

    def _arguments(self, params: Sequence[Array], outputs: Sequence[Array]) -> list[tuple[TvmCall, list[Array]]]:
        """Each call with its arrays, after the buffers are checked."""
        intermediates = [empty_aligned(s) for s in self.intermediates]
        groups = {
            "param": (params, self.params),
            "output": (outputs, self.outputs),
            "intermediate": (intermediates, self.intermediates),
            "constant": (self.constants, tuple(TensorSpec(c.shape, str(c.dtype)) for c in self.constants)),
        }
        found: dict[str, list[Array]] = {}
        for kind, (arrays, specs) in groups.items():
            if len(arrays) != len(specs):
                raise ValueError(f"{len(arrays)} {kind} arrays given, {len(specs)} expected")
            for i, (array, spec) in enumerate(zip(arrays, specs, strict=True)):
                _check(array, spec, f"{kind} {i}", writable=kind in ("output", "intermediate"))
            found[kind] = list(arrays)
        _check_overlap([*outputs, *intermediates], [*params, *self.constants])
        return [(call, [found[s.kind][s.index] for s in call.args]) for call in self.calls]


def load_kernel(data: frames.Artifact) -> TvmKernel:
    """Load what `compile_kernel` made. Raises `ValueError` for other bytes, or code for another CPU model."""
    found = unpack(data)
    key = (found.code.digest if isinstance(found.code, Image) else found.code), bool(core_problem())
    code = _loaded.get(key)
    if code is None:
        made = _load(found.code, found.needs) if isinstance(found.code, Image) else _load_ir(found)
        code = _loaded[key] = made
    return TvmKernel(
        found.calls, found.params, found.outputs, found.intermediates, found.constants, found.threads,
        code.parallel, code,
    )  # fmt: skip


def _load(image: Image, needs: Sequence[str]) -> TvmCode:
    missing = frozenset(needs) - usable_sets()
    if missing:
        first, *others = sorted(missing)
        more = f" and {len(others)} more" if others else ""
        raise ValueError(f"kernel compiled for CPUs with {first}{more}, which this CPU lacks")
    mapped = map_image(image)
    return TvmCode({}, mapped.addresses, any(name == LAUNCH for name, _ in image.imports), mapped)


def _load_ir(found: TvmArtifact) -> TvmCode:
    import tvm

    from collage.backends.tvm_codegen.host import host_cpu

    assert isinstance(found.code, bytes)
    if found.mcpu != host_cpu():
        raise ValueError(f"kernel compiled for {found.mcpu}, this CPU is {host_cpu()}")
    with TemporaryFolder("tvm") as folder:
        path = folder / "kernel.ll"
        path.write_bytes(found.code)
        module = tvm.runtime.load_module(str(path))
    names = list(dict.fromkeys(call.name for call in found.calls))
    functions = {name: module[name] for name in names}
    launch = None if core_problem() else address_of(core().collage_parallel_launch)
    addresses = {} if launch is None else link(module, names, launch)
    return TvmCode(functions, addresses, is_parallel(found.code))


def _tensor(array: Array) -> Any:
    """A TVM tensor over the array's memory, which it keeps alive.

    DLPack refuses read-only arrays, so those get a writable alias; parameters are never written.
    """
    if not array.flags.writeable:
        interface = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        array = np.asarray(types.SimpleNamespace(__array_interface__=interface, owner=array))
    import tvm_ffi

    return tvm_ffi.from_dlpack(array)


def _check(array: Array, spec: TensorSpec, what: str, *, writable: bool) -> None:
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise ValueError(f"{what} is {array.dtype}{array.shape}, expected {spec.dtype}{spec.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not C-contiguous (strides {array.strides})")
    if not is_aligned(array):
        raise ValueError(f"{what} starts {array.ctypes.data % ALIGNMENT} bytes off a {ALIGNMENT}-byte boundary")
    if writable and not array.flags.writeable:
        raise ValueError(f"{what} is read-only")


def _check_overlap(written: Sequence[Array], read: Sequence[Array]) -> None:
    """Raises ValueError for a written buffer that aliases another: the code is compiled as if there were none."""
    for i, array in enumerate(written):
        if any(np.may_share_memory(array, other) for other in [*written[:i], *read]):
            raise ValueError("a written buffer overlaps another buffer")


# -- arguments, as TVM's calling convention has them, made without TVM


class _Any(ctypes.Structure):
    """The struct TVMFFIAny."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


class _Tensor(ctypes.Structure):
    """The struct DLTensor. Without strides it is compact, in row-major order."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, eq=False)
class _Arguments:
    """The arguments of a call at ``address``, and a place for its result. They are there while this object lives."""

    address: int
    result: int
    kept: tuple[object, ...]


def _arguments_of(arrays: Sequence[Array]) -> _Arguments:
    """A call's arguments: C-contiguous arrays in the host's memory. The memory of the arrays is kept, too."""
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    tensors = (_Tensor * len(arrays))(
        *(
            _Tensor(
                *(array.ctypes.data, _HOST, 0, array.ndim),
                *(_CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1),
                *(ctypes.addressof(shape), None, 0),
            )
            for array, shape in zip(arrays, shapes, strict=True)
        )
    )
    start, size = ctypes.addressof(tensors), ctypes.sizeof(_Tensor)
    arguments = (_Any * len(arrays))(
        *(_Any(_TENSOR_POINTER, 0, start + size * number) for number in range(len(arrays)))
    )
    result = _Any()
    kept = (arguments, tensors, shapes, result, tuple(arrays))
    return _Arguments(ctypes.addressof(arguments), ctypes.addressof(result), kept)
