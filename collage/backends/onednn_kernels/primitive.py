"""Making primitives of operations. Each is for one thread."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.backends.chains.strided import Strided, dense
from collage.backends.onednn_kernels.description import ITEM_BYTES, Blocked, Description, Packed
from collage.backends.onednn_kernels.handles import (
    Form,
    Handle,
    OneDnnError,
    UnimplementedError,
    check,
    engine,
    extents,
    form_of,
    memory,
    memory_desc,
    stream,
)
from collage.backends.onednn_kernels.library import library, one_thread
from collage.backends.onednn_kernels.operations import (
    Binary,
    Combination,
    Convolution,
    Function,
    LayerNorm,
    MatMul,
    Operation,
    Pooling,
    PostOp,
    Reorder,
    Rescale,
    Softmax,
)
from collage.backends.onednn_kernels.plan import (
    BIAS,
    DST,
    SCRATCHPAD,
    SOURCE_SCALE,
    SRC,
    SRC_1,
    WEIGHTS,
    PostOpOperand,
)
from collage.native.reach import reach

_INFERENCE = 96  # dnnl_prop_kind_t
_USE_SCALE, _USE_SHIFT = 2, 4  # dnnl_normalization_flags_t

_Call = tuple[str, Sequence[Any]]
"""The kind of a primitive, and the arguments between the descriptor that is made and the attributes.

Descriptions stand for their memory descriptors.
"""


def create(made: ctypes.c_void_p, operation: Operation, attr: int) -> int:
    """Make the primitive descriptor in ``made``. Returns the C API's status."""
    kind, arguments = _CALLS[type(operation)](operation)
    described = [memory_desc(each) if isinstance(each, (Strided, Blocked, Packed)) else None for each in arguments]
    values = (each if desc is None else desc.value for each, desc in zip(arguments, described, strict=True))
    status: int = getattr(library().c, f"dnnl_{kind}_primitive_desc_create")(ctypes.byref(made), *values, attr)
    return status


def _convolution(op: Convolution) -> _Call:
    kind, algorithm = (
        ("deconvolution_forward", DnnlAlgorithm.DECONVOLUTION)
        if op.transposed
        else ("convolution_forward", DnnlAlgorithm.CONVOLUTION)
    )
    numbers = op.strides, [d - 1 for d in op.dilation], op.pad_begin, op.pad_end
    tensors = op.src, op.weights, op.bias, op.dst
    return kind, [engine(), _INFERENCE, algorithm, *tensors, *map(extents, numbers)]


def _pooling(op: Pooling) -> _Call:
    numbers = op.strides, op.kernel, [d - 1 for d in op.dilation], op.pad_begin, op.pad_end
    return "pooling_forward", [*(engine(), _INFERENCE, op.algorithm, op.src, op.dst, *map(extents, numbers))]


def _layer_norm(op: LayerNorm) -> _Call:
    flags = _USE_SCALE | _USE_SHIFT
    return "layer_normalization_forward", [*(engine(), _INFERENCE, op.src, op.dst, None, op.epsilon, flags)]


def _reorder(op: Reorder | Rescale) -> _Call:
    return "reorder", [op.src, engine(), op.dst, engine()]


_CALLS: dict[type, Callable[[Any], _Call]] = {
    Convolution: _convolution,
    MatMul: lambda op: ("matmul", [engine(), op.src, op.weights, op.bias, op.dst]),
    Pooling: _pooling,
    Function: lambda op: (
        "eltwise_forward",
        [engine(), _INFERENCE, op.algorithm, op.src, op.dst, op.alpha, op.beta],
    ),
    Combination: lambda op: ("binary", [engine(), op.algorithm, op.src, op.second, op.dst]),
    Softmax: lambda op: ("softmax_forward", [engine(), _INFERENCE, op.algorithm, op.src, op.dst, op.axis]),
    LayerNorm: _layer_norm,
    Reorder: _reorder,
    Rescale: _reorder,
}


_SCRATCHPAD_USER = 1
TENSORS = {SRC: "src", SRC_1: "second", DST: "dst", WEIGHTS: "weights", BIAS: "bias"}
"""The fields of operations that hold the tensors of arguments."""
_IMPLEMENTATION, _ARGUMENT_MD = 8, 255  # dnnl_query_t


class DnnlArgument(ctypes.Structure):
    """The C structure ``dnnl_exec_arg_t``."""

    _fields_ = (("number", ctypes.c_int), ("memory", ctypes.c_void_p))


class PrimitiveDesc:
    """What oneDNN would run for an operation. Asking takes some microseconds; only ``make`` generates code.

    Raises UnimplementedError when it has nothing for it, or nothing but the reference code, which is a hundred
    times slower.
    """

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        scaled = isinstance(operation, Rescale)
        attr = _attributes(operation.post_ops, scaled=scaled)
        self._scale = memory_desc(dense((1,))) if scaled else None
        made = ctypes.c_void_p()
        with one_thread():
            status = create(made, operation, attr.value)
        check(status, type(operation).__name__)
        self.handle = Handle("primitive_desc", made.value)
        if "ref" in re.split("[:+]", self.implementation) and not isinstance(operation, Reorder):
            raise UnimplementedError(
                f"oneDNN has only its reference code for this {type(operation).__name__}: {self.implementation}"
            )

    @cached_property
    def implementation(self) -> str:
        """oneDNN's name of the code: ``jit:avx512_core``."""
        text = ctypes.c_char_p()
        c = library().c
        check(c.dnnl_primitive_desc_query(self.handle.value, _IMPLEMENTATION, 0, ctypes.byref(text)), "query")
        return (text.value or b"").decode()

    def memory_desc(self, argument: int | PostOpOperand) -> int:
        """The memory descriptor of an argument, which belongs to this object, or 0 if there is no such argument."""
        if argument == SOURCE_SCALE:  # oneDNN does not tell of it
            return 0 if self._scale is None else self._scale.value
        found = library().c.dnnl_primitive_desc_query_md(self.handle.value, _ARGUMENT_MD, argument_number(argument))
        return int(found or 0)

    def nbytes(self, argument: int | PostOpOperand) -> int:
        """Bytes from an argument's first element to its last. It is 0 when there is no such argument.

        oneDNN counts whole steps of the outermost axis, which is more for a part of a tensor.
        """
        desc = self.memory_desc(argument)
        size = int(library().c.dnnl_memory_desc_get_size(desc)) if desc else 0
        tensor = _tensor(self.operation, argument)
        if size and isinstance(tensor, Strided):
            return ITEM_BYTES[tensor.dtype] * reach(*zip(tensor.dims, tensor.strides, strict=True))
        return size

    def form(self, argument: int | PostOpOperand) -> Form:
        """How an argument must lie."""
        return form_of(self.memory_desc(argument))

    @cached_property
    def scratchpad_bytes(self) -> int:
        """Bytes of scratch memory that a run needs."""
        return int(library().c.dnnl_memory_desc_get_size(self.memory_desc(SCRATCHPAD)))

    def make(self) -> Handle:
        """The primitive, with its code generated."""
        made = ctypes.c_void_p()
        with one_thread():
            status = library().c.dnnl_primitive_create(ctypes.byref(made), self.handle.value)
        check(status, type(self.operation).__name__)
        return Handle("primitive", made.value)


def _tensor(operation: Operation, argument: int | PostOpOperand) -> Description | None:
    """The operation's tensor for an argument, where it has one."""
    if isinstance(argument, PostOpOperand):
        step = operation.post_ops[argument.position] if argument.position < len(operation.post_ops) else None
        return step.operand if isinstance(step, Binary) else None
    found: Description | None = getattr(operation, TENSORS.get(argument, ""), None)
    return found


def argument_number(argument: int | PostOpOperand) -> int:
    """The number that ``dnnl_exec_arg_t`` wants."""
    if isinstance(argument, PostOpOperand):
        return _post_op_base() * (argument.position + 1) | SRC_1
    return argument


def reorder(source: int, source_address: int, target: int, target_address: int) -> None:
    """Copy from one memory descriptor's order to another's, now and in this thread."""
    c = library().c
    made, attr = ctypes.c_void_p(), _attributes(())
    with one_thread():
        check(
            c.dnnl_reorder_primitive_desc_create(ctypes.byref(made), source, engine(), target, engine(), attr.value),
            "reorder",
        )
        desc = Handle("primitive_desc", made.value)
        scratch_desc = c.dnnl_primitive_desc_query_md(desc.value, _ARGUMENT_MD, SCRATCHPAD)
        scratch = ctypes.create_string_buffer(int(c.dnnl_memory_desc_get_size(scratch_desc)) + 64)
        check(c.dnnl_primitive_create(ctypes.byref(made), desc.value), "reorder")
        primitive = Handle("primitive", made.value)
        memories = (
            (SRC, memory(source, source_address)),
            (DST, memory(target, target_address)),
            (SCRATCHPAD, memory(scratch_desc, ctypes.addressof(scratch) // 64 * 64 + 64)),
        )
        arguments = (DnnlArgument * 3)(*(DnnlArgument(number, each.value) for number, each in memories))
        check(c.dnnl_primitive_execute(primitive.value, stream(), 3, arguments), "reorder")


@cache
def _post_op_base() -> int:
    """Numbers of post-ops' arguments start at 16384 times their position, in later versions at 32768 times."""
    vector = dense((16,))
    desc = memory_desc(vector)
    attr = _attributes((Binary(DnnlAlgorithm.ADD, vector),))
    made = ctypes.c_void_p()
    check(
        library().c.dnnl_binary_primitive_desc_create(
            *(ctypes.byref(made), engine(), DnnlAlgorithm.ADD, desc.value, desc.value, desc.value, attr.value)
        ),
        "addition",
    )
    handle = Handle("primitive_desc", made.value)
    for base in (1 << 14, 1 << 15):
        found = library().c.dnnl_primitive_desc_query_md(handle.value, _ARGUMENT_MD, base | SRC_1)
        if found and library().c.dnnl_memory_desc_get_size(found):
            return base
    raise OneDnnError("this oneDNN numbers the arguments of post-ops in an unknown way")


def _attributes(post_ops: Sequence[PostOp], *, scaled: bool = False) -> Handle:
    """Attributes with these post-ops and a scratchpad that the caller provides; ``scaled`` by one number, if so.

    The one that the library manages is shared by all threads that run a primitive.
    """
    c = library().c
    made = ctypes.c_void_p()
    check(c.dnnl_primitive_attr_create(ctypes.byref(made)), "attributes")
    attr = Handle("primitive_attr", made.value)
    check(c.dnnl_primitive_attr_set_scratchpad_mode(attr.value, _SCRATCHPAD_USER), "scratchpad mode")
    if scaled:
        check(c.dnnl_primitive_attr_set_scales_mask(attr.value, SRC, 0), "scale")
    if post_ops:
        check(c.dnnl_post_ops_create(ctypes.byref(made)), "post-ops")
        chain = Handle("post_ops", made.value)
        for each in post_ops:
            if isinstance(each, Eltwise):
                status = c.dnnl_post_ops_append_eltwise(chain.value, each.algorithm, each.alpha, each.beta)
            else:
                operand = memory_desc(each.operand)
                status = c.dnnl_post_ops_append_binary(chain.value, each.algorithm, operand.value)
            check(status, f"post-op {DnnlAlgorithm(each.algorithm).name}")
        check(c.dnnl_primitive_attr_set_post_ops(attr.value, chain.value), "post-ops")
    return attr
