"""Backends with one defect each, and a right one: what the kit has to find, and where it has to be silent."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

import collage
from collage.graph.storage import CHANNELS_LAST

Arrays = Sequence[Any]
HELD: list[Any] = []
SCRATCH: dict[tuple[int, ...], Any] = {}


class RelusAndProducts(collage.BasePatternRule):
    """Takes ``relu`` of float32, and products with a constant matrix."""

    @staticmethod
    def op_rule(op: collage.OpNode) -> bool | str:
        if {each.dtype for each in op.input_types} != {"float32"}:
            return "only float32"
        if op.name == "matmul":
            return (op.const_inputs == (False, True) and len(op.input_types[1].shape) == 2) or "no constant matrix"
        return op.name == "relu" or f"no kernel for {op.name}"


class RightKernel(collage.Kernel):
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        x, y, weight = inputs[0], outputs[0], self.weight
        if weight is None:
            return lambda: np.maximum(x, 0, out=y)
        return lambda: np.matmul(x, weight, out=y)


class Right(collage.Backend):
    """Has no defect."""

    name: ClassVar[str] = "right"
    kind = collage.BackendKind.LIBRARY
    keeps_nan = True
    kernel: ClassVar[type[RightKernel]] = RightKernel

    def available(self) -> collage.Availability:
        return collage.Availability(version=np.__version__)

    def sources(self, options: collage.BuildOptions) -> Any:
        return [RelusAndProducts()]

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        weights = [*subgraph.weights.values()]
        if not weights:
            return b""
        return np.asarray(weights[0].shape, np.int64).tobytes() + weights[0].tobytes()

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        if not artifact:
            return self.kernel(None)
        shape = np.frombuffer(artifact, np.int64, 2)
        return self.kernel(np.frombuffer(artifact, np.float32, offset=16).reshape(shape))


def planted(kind: str, run: Callable[..., None], **more: Any) -> collage.Backend:
    """A backend whose kernels are right but for ``run``, which gets the right call, the arrays, and the kernel."""

    class Wrong(RightKernel):
        def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
            right = super().bind(inputs, outputs)
            return lambda: run(right, inputs, outputs, self)

    backend: collage.Backend = type(kind.capitalize(), (Right,), {"name": kind, "kernel": Wrong, **more})()
    return backend


def _wrong_number(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    outputs[0].reshape(-1)[-1:] += 0.01


def _wrong_if_large(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    """As if indices had 16 bits."""
    right()
    if outputs[0].size > 1 << 16:
        outputs[0].reshape(-1)[1 << 16 :] = 0


def _loses_nan(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    np.nan_to_num(outputs[0], copy=False)


def _unwritten(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    """As loops in steps of eight that forget the rest."""
    flat = outputs[0].reshape(-1)
    rest = flat[flat.size // 8 * 8 :].copy()
    right()
    flat[flat.size // 8 * 8 :] = rest


def _outside(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    """As loops in steps of eight that write one vector too many."""
    right()
    ctypes.memset(outputs[0].ctypes.data + outputs[0].nbytes, 0, 32)


def _writes_input(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    np.maximum(inputs[0], 0, out=inputs[0])


def _borrows_input(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    before = inputs[0].copy()
    inputs[0][...] = 0
    inputs[0][...] = before
    right()


def _accumulates(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    kernel.runs = getattr(kernel, "runs", 0) + 1
    outputs[0][...] *= kernel.runs


def _last_weight(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    """The weight of the kernel that was loaded last, which all share."""
    right()
    if kernel.weight is not None:
        np.matmul(inputs[0], type(kernel).shared, out=outputs[0])


def _shared_scratch(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    scratch = SCRATCH.setdefault(inputs[0].shape, np.empty_like(inputs[0]))
    right()
    scratch[...] = outputs[0] if kernel.weight is None else 0
    time.sleep(1e-6)  # the other thread's turn
    if kernel.weight is None:
        outputs[0][...] = scratch


def _crashes(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    if inputs[0].ndim == 1:
        ctypes.string_at(8)


def _hangs(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    if inputs[0].ndim == 4:
        time.sleep(3600)


def _raises(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    if not inputs[0].ndim:
        raise IndexError("no axis")


def _leaks(right: Any, inputs: Arrays, outputs: Arrays, kernel: Any) -> None:
    right()
    HELD.append(bytes(4096))


class OffByLittleKernel(RightKernel):
    def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        right = super().bind(inputs, outputs)
        return lambda: _wrong_number(right, inputs, outputs, self)


class OffByLittle(Right):
    """Always off by a little; a class that another process can import."""

    name = "off_by_little"
    kernel = OffByLittleKernel


class _OfThreads(Right):
    """Wrong on several threads."""

    name = "threads"

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        kernel = super().load(artifact, options)
        if options.threads > 1:
            return planted("inner", _wrong_number).kernel(kernel.weight)  # type: ignore[attr-defined]
        return kernel


class _OfFormats(Right):
    """Gives plain outputs in channels-last buffers."""

    name = "formats"

    def variants(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> Sequence[collage.Variant]:
        plain = (collage.Storage(),)
        if subgraph.ops != ("relu",) or len(subgraph.input_types[0].shape) != 4:
            return [collage.Variant()]
        return [collage.Variant(), collage.Variant(inputs=plain, outputs=(CHANNELS_LAST,))]

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        if options.variant == collage.Variant():
            return super().load(artifact, options)

        class Flat(collage.Kernel):
            def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
                return lambda: np.maximum(inputs[0].reshape(-1), 0, out=outputs[0].reshape(-1))

        return Flat()


class _Claims(Right):
    name = "claims"

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        if subgraph.ops == ("matmul",):
            raise KeyError("matmul")
        return super().codegen(subgraph, options)


class _Text(Right):
    """The artifact is a text, which load() takes."""

    name = "text"

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> Any:
        return super().codegen(subgraph, options).hex()

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        return super().load(bytes.fromhex(artifact), options)


class _Refuses(Right):
    name = "refuses"

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        if subgraph.ops == ("matmul",):
            raise collage.UnsupportedError("not yet")
        return super().codegen(subgraph, options)


class _Leaves(Right):
    """The artifact is the path of a file that nobody ships."""

    name = "leaves"

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        handle, path = tempfile.mkstemp()
        os.write(handle, super().codegen(subgraph, options))
        os.close(handle)
        return path.encode()

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        with open(bytes(artifact).decode(), "rb") as file:
            return super().load(file.read(), options)


class _Remembers(Right):
    """What codegen leaves in the process is missing in another one."""

    name = "remembers"
    known: ClassVar[dict[bytes, bytes]] = {}

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        self.known[b"%d" % len(self.known)] = super().codegen(subgraph, options)
        return b"%d" % (len(self.known) - 1)

    def load(self, artifact: Any, options: collage.BuildOptions) -> collage.Kernel:
        return super().load(self.known[bytes(artifact)], options)


class _OnnxNames(Right):
    name = "onnx_names"

    def sources(self, options: collage.BuildOptions) -> Any:
        class Names(collage.BasePatternRule):
            @staticmethod
            def op_rule(op: collage.OpNode) -> bool | str:
                return op.name == "Relu" or "not Relu"

        return [Names()]


class _OnnxNamesInSets(Right):
    name = "onnx_sets"

    def sources(self, options: collage.BuildOptions) -> Any:
        class Names(collage.BasePatternRule):
            @staticmethod
            def op_rule(op: collage.OpNode) -> bool | str:
                return op.name in {"Relu", "Gemm"} or "not Relu"

        return [Names()]


class _Unavailable(Right):
    name = "unavailable"

    def available(self) -> Any:
        return "yes"


class _LockHolder(Right):
    name = "lock_holder"

    def __init__(self) -> None:
        import threading

        self.lock = threading.Lock()


class _TakenName(Right):
    name = "onednn"


class _InPlace(Right):
    """Products cannot overwrite their input, and this one says that they can."""

    name = "in_place"
    kernel: ClassVar[type[RightKernel]]

    def in_place(self, subgraph: collage.Subgraph) -> Sequence[int]:
        return (0,) if subgraph.input_types == subgraph.output_types else ()


class _RowByRow(RightKernel):
    def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        if self.weight is None:
            return super().bind(inputs, outputs)
        x, y, weight = inputs[0], outputs[0], self.weight

        def run() -> None:
            for column in range(weight.shape[1]):
                y[..., column] = x @ weight[:, column]

        return run


_InPlace.kernel = _RowByRow


def _weights_shared() -> collage.Backend:
    backend = planted("shares_weights", _last_weight)
    kernel: Any = backend.kernel  # type: ignore[attr-defined]
    before = kernel.__init__

    def init(self: Any, weight: Any) -> None:
        before(self, weight)
        type(self).shared = weight

    kernel.__init__ = init
    return backend


TEXT = _Text()

PLANTED: Sequence[tuple[str, collage.Backend]] = (
    ("numbers", planted("off_by_little", _wrong_number)),
    ("numbers", planted("short_indices", _wrong_if_large)),
    ("hostile", planted("loses_nan", _loses_nan)),
    ("unwritten", planted("forgets_rest", _unwritten)),
    ("outside", planted("one_vector_more", _outside)),
    ("inputs", planted("writes_input", _writes_input)),
    ("inputs", planted("borrows_input", _borrows_input)),
    ("inputs", _InPlace()),
    ("state", planted("accumulates", _accumulates)),
    ("state", _weights_shared()),
    ("concurrent", planted("shared_scratch", _shared_scratch)),
    ("crash", planted("crashes", _crashes)),
    ("hang", planted("hangs", _hangs)),
    ("raises", planted("raises", _raises)),
    ("leak", planted("leaks", _leaks)),
    ("threads", _OfThreads()),
    ("formats", _OfFormats()),
    ("claims", _Claims()),
    ("claims", TEXT),
    ("claims", _Refuses()),
    ("load", _Leaves()),
    ("load", _Remembers()),
    ("rules", _OnnxNames()),
    ("rules", _OnnxNamesInSets()),
    ("available", _Unavailable()),
    ("registration", _LockHolder()),
    ("registration", _TakenName()),
)
"""Each with the check that has to find it."""
