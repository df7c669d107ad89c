"""What cuDNN is to compute, as plain values: tensors, and operations on them, in order.

A tensor's unique number for cuDNN is its position, counted from 1. Operations follow cuDNN's own: convolutions and
gradients of them, functions of elements, windows, normalisations, reductions, products and attention. All of them
compute in float32, whatever the tensors hold. Nothing here needs the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DTYPES", "CudnnGraph", "GraphMaker", "Operation", "Role", "Tensor", "Windows", "dense"]

Role = str
"""What a tensor is: INPUT, OUTPUT, CONSTANT, SCALAR or VIRTUAL."""
INPUT, OUTPUT, CONSTANT, SCALAR, VIRTUAL = ROLES = ("input", "output", "constant", "scalar", "virtual")
DTYPES = ("float32", "float16", "bfloat16")
_MOST = 2**31 - 1

CONVOLUTION, GRADIENT, POINTWISE, WINDOWS = "convolution", "gradient", "pointwise", "windows"
NORMALISATION, REDUCTION, PRODUCT = "normalisation", "reduction", "product"
SOFTMAX, ATTENTION = "softmax", "attention"
_INPUTS = {
    CONVOLUTION: (2,),
    GRADIENT: (2,),
    POINTWISE: (1, 2),
    WINDOWS: (1,),
    NORMALISATION: (3, 4),
    REDUCTION: (1,),
    PRODUCT: (2,),
    SOFTMAX: (1,),
    ATTENTION: (4,),
}
"""The numbers of inputs that operations have."""


@dataclass(frozen=True)
class Tensor:
    """A tensor with strides in elements, and what it is to the kernel.

    ``place`` numbers the kernel's inputs, outputs or constants. A scalar has one element, the ``value``. A virtual
    tensor is between two operations, and is stored nowhere.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"
    role: Role = VIRTUAL
    place: int = 0
    value: float = 0.0

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def problem(self) -> str:
        """What is wrong with it, or ""."""
        if self.role not in ROLES or self.dtype not in DTYPES or self.place < 0:
            return f"a tensor that is {self.role} number {self.place} of {self.dtype}"
        if not 1 <= len(self.shape) <= 8 or len(self.strides) != len(self.shape):
            return f"a tensor of {len(self.shape)} axes with {len(self.strides)} strides"
        if min(self.shape) < 1 or min(self.strides) < 0 or self.elements > _MOST:
            return f"a tensor of {self.shape} with strides of {self.strides}"
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return "" if reach < self.elements else f"a tensor of {self.shape} that is not dense"


@dataclass(frozen=True)
class Windows:
    """Sliding windows over spatial axes: paddings at both ends, strides and dilations, and the windows' sizes.

    A convolution's sizes are those of its filter, and are empty here.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operation on tensors, which are positions.

    - ``convolution``: data and filter (outputs, inputs / groups, spatial...).
    - ``gradient``: the data gradient of a convolution, which is a transposed convolution: the gradient of its result,
      and its filter.
    - ``pointwise``: the ``function``, by its name in ``enums.Function``, of one or two operands, the second of which
      is broadcast. ``numbers`` are a relu's lower and upper end and its slope below, or a function's one parameter.
    - ``windows``: the ``function`` by its name in ``enums.Resampling``.
    - ``normalisation``: data, scale, bias and epsilon, or for ``RMS_NORM`` without a bias.
    - ``reduction``: the ``function`` by its name in ``enums.Reduction``; axes that are 1 in the output are reduced.
    - ``product``: matrices in the last two axes.
    - ``softmax`` along the last axis, and ``attention`` of queries, keys transposed, values and a scale.
    """

    kind: str
    inputs: tuple[int, ...]
    output: int
    function: str = ""
    numbers: tuple[float, ...] = ()
    windows: Windows | None = None


@dataclass(frozen=True)
class CudnnGraph:
    """Operations in order, on tensors. ``since`` is the first version of cuDNN that has all of these operations."""

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    since: int = 90000

    def of(self, role: Role) -> list[tuple[int, Tensor]]:
        """The tensors of that role, with their positions, by their places."""
        found = [(at, each) for at, each in enumerate(self.tensors) if each.role == role]
        return sorted(found, key=lambda pair: pair[1].place)

    @property
    def multiplies(self) -> bool:
        """Whether it has sums of products, which tensor cores may compute."""
        return any(each.kind in (CONVOLUTION, GRADIENT, PRODUCT, ATTENTION) for each in self.operations)

    def problem(self) -> str:
        """What is wrong with the numbers, or "". Shapes are checked where a wrong one would leave a buffer."""
        for tensor in self.tensors:
            if problem := tensor.problem():
                return problem
        known = {at for at, each in enumerate(self.tensors) if each.role in (INPUT, CONSTANT, SCALAR)}
        for each in self.operations:
            if each.kind not in _INPUTS or len(each.inputs) not in _INPUTS[each.kind]:
                return f"an operation {each.kind} of {len(each.inputs)} inputs"
            if not set(each.inputs) <= known or not 0 <= each.output < len(self.tensors):
                return f"operands {each.inputs} that are not known before {each.kind}"
            if each.output in known:
                return f"two operations that make tensor {each.output}"
            if problem := _windows_problem(self, each):
                return problem
            known.add(each.output)
        if [each.place for _, each in self.of(OUTPUT)] != [0] or len(known) != len(self.tensors):
            return "not one output, or tensors that are never made"
        return ""


def _windows_problem(graph: CudnnGraph, operation: Operation) -> str:
    """What is wrong with a convolution's or a pooling's sizes, or ""."""
    about = operation.windows
    if (about is None) != (operation.kind not in (CONVOLUTION, GRADIENT, WINDOWS)):
        return f"windows of {operation.kind} are missing, or there without need"
    if about is None:
        return ""
    data, made = (graph.tensors[at].shape for at in (operation.inputs[0], operation.output))
    sizes = about.sizes
    if operation.kind != WINDOWS:
        data, made = (made, data) if operation.kind == GRADIENT else (data, made)
        kernel = graph.tensors[operation.inputs[1]].shape
        if len(kernel) != len(data) or data[1] % kernel[1] or kernel[0] != made[1]:
            return f"{data[1]} channels to {made[1]} by a filter of {kernel}"
        if made[1] % (data[1] // kernel[1]):
            return f"{made[1]} channels in {data[1] // kernel[1]} groups"
        sizes = kernel[2:]
    elif data[1] != made[1]:
        return f"windows from {data[1]} channels to {made[1]}"
    rank = len(data) - 2
    rest = (about.begin, about.end, about.strides, about.dilations, sizes)
    if len(made) != rank + 2 or any(len(each) != rank for each in rest) or data[0] != made[0]:
        return f"{operation.kind} from {data} to {made} with windows of {sizes}"
    if min(about.begin) < 0 or min(about.end) < 0 or min(*about.strides, *about.dilations, *sizes) < 1:
        return f"paddings {about.begin} and {about.end}, strides {about.strides}"
    for axis in range(rank):
        reach = (sizes[axis] - 1) * about.dilations[axis] + 1
        span = data[2 + axis] + about.begin[axis] + about.end[axis] - reach
        if span < 0 or span // about.strides[axis] + 1 != made[2 + axis]:
            return f"axis {axis}: {data[2 + axis]} elements do not make {made[2 + axis]}"
    return ""


def dense(shape: Sequence[int], order: Sequence[int] = ()) -> tuple[int, ...]:
    """The strides of a dense tensor whose axes lie in that order, the outermost first; by default in their own."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


class GraphMaker:
    """Makes a graph, tensor by tensor and operation by operation."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operations: list[Operation] = []

    def add(self, tensor: Tensor) -> int:
        """A tensor's position."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def scalar(self, value: float, rank: int) -> int:
        """The position of a number."""
        return self.add(Tensor((1,) * rank, (1,) * rank, role=SCALAR, value=value))

    def virtual(self, shape: Sequence[int], strides: Sequence[int], dtype: str = "float32") -> int:
        """The position of a tensor between two operations."""
        return self.add(Tensor(tuple(shape), tuple(strides), dtype))

    def like(self, at: int) -> int:
        """The position of a new virtual float32 tensor that lies as another one."""
        return self.virtual(self.tensors[at].shape, self.tensors[at].strides)

    def run(self, kind: str, inputs: Sequence[int], output: int, function: str = "", *numbers: float) -> int:
        """The position of what an operation makes."""
        self.operations.append(Operation(kind, tuple(inputs), output, function, numbers))
        return output

    def slide(self, kind: str, inputs: Sequence[int], output: int, about: Windows, function: str = "") -> int:
        """The position of what an operation with windows makes."""
        self.operations.append(Operation(kind, tuple(inputs), output, function, (), about))
        return output

    def graph(self, since: int = 90000) -> CudnnGraph:
        """The graph, whose last operation makes the ``output``."""
        return CudnnGraph(tuple(self.tensors), tuple(self.operations), since)
