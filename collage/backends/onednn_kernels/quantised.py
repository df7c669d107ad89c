"""Kernels for values that come quantised: dequantize, compute, and quantize again, as one.

The model's own integers are multiplied, so that sums are exact, and nothing is rounded that the model does not round.
A plan is the one for float32 with other dtypes: the factor of each channel, the bias and the steps of the result are
functions after the sum, in float32. Where the model's float32 arithmetic is within a rounding error of the middle
between two steps, the result may be the other one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, Floats, read_part
from collage.backends.chains.conv import Conv, read_conv
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.backends.chains.linear_fold import Folded, fold
from collage.backends.chains.pool import read_pool
from collage.backends.chains.product import COLUMNS, WHOLE, read_product
from collage.backends.chains.transposes import TRANSPOSE, ProductChain
from collage.backends.onednn_kernels import conv_plan, elementwise, matmul, pooling
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.conv_plan import ConvTask
from collage.backends.onednn_kernels.description import INT8, UINT8
from collage.backends.onednn_kernels.matmul import ProductTask
from collage.backends.onednn_kernels.narrow import typed
from collage.backends.onednn_kernels.plan import DST, SRC, WEIGHTS, PostOpOperand
from collage.backends.onednn_kernels.pooling import PoolTask
from collage.frontend.relax.build import fold as fold_constant
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array, Graph, Node
from collage.graph.storage import BLOCKED, CHANNELS_LAST
from collage.kernel.options import Variant

if TYPE_CHECKING:
    import numpy.typing as npt

QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
DTYPES = {"int8": INT8, "uint8": UINT8}


@dataclass(frozen=True)
class Steps:
    """A value as integers of 8 bits: (integer - zero) * scale."""

    value: int
    dtype: str
    scale: float
    zero: int


def constants_made(subgraph: Subgraph, root: Node) -> dict[int, Array]:
    """Values inside the subgraph that depend on constants only, such as a bias, without the weights."""
    graph = subgraph.model.graph
    path = weights_path(graph, root)
    made: dict[int, Array] = {}
    for node in subgraph.operators:
        given = [made.get(value, graph.constants.get(value)) for value in node.inputs]
        arguments = [each for each in given if each is not None]
        if len(arguments) < len(given) or node in path:
            continue
        if node.op == DEQUANTIZE:
            made[node.outputs[0]] = _dequantized(arguments, node)
        elif (array := fold_constant(node.op, arguments, node.attrs, graph.type_of(node.outputs[0]))) is not None:
            made[node.outputs[0]] = array
    return made


def _dequantized(arguments: Sequence[Any], node: Node) -> Array:
    """What a node makes of constants, in float32 as ONNX Runtime computes it."""
    stored, scale, zero = arguments[:3]
    shape, axis = [1] * stored.ndim, node.attrs.get("axis")
    if scale.size > 1 and isinstance(axis, int):
        shape[axis] = -1
    whole = stored.astype(np.int64) - (zero.astype(np.int64).reshape(shape if zero.size > 1 else ()))
    return np.asarray(whole.astype(np.float32) * scale.reshape(shape if scale.size > 1 else ()))


def steps_of(subgraph: Subgraph, value: int) -> Steps:
    """The integers that a value inside the subgraph is made of. Raises UnsupportedError if it is made otherwise."""
    graph = subgraph.model.graph
    producer = graph.values[value].producer
    if producer is None or producer not in subgraph.members or graph.nodes[producer].op != DEQUANTIZE:
        raise UnsupportedError("an operand does not come quantised")
    node = graph.nodes[producer]
    return steps_at(graph, node, node.inputs[0])


def steps_at(graph: Graph, node: Node, value: int) -> Steps:
    """The steps of a node, whose integers are ``value``."""
    dtype = graph.type_of(value).dtype
    scale, zero = (_constant(graph, each) for each in node.inputs[1:3])
    if dtype not in DTYPES or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        raise UnsupportedError(f"{node.op} of {dtype} with {scale.size} scales")
    found = float(scale.reshape(-1)[0])
    if not (np.isfinite(found) and found > 0 and np.isfinite(np.float32(1 / found))):
        raise UnsupportedError(f"{node.op} with steps of {found}")
    if graph.is_constant(value):
        raise UnsupportedError("an operand is a constant")
    return Steps(value, dtype, found, int(zero.reshape(-1)[0].item()))


@dataclass(frozen=True)
class QuantisedWeights:
    """Whole numbers of 8 bits and a sign, and the factor of each output channel, which are those of ``axis``."""

    numbers: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float64]
    axis: int


def weights_path(graph: Graph, root: Node) -> tuple[Node, ...]:
    """The nodes that make a root's weights of constants: one that dequantizes, and one that transposes a matrix."""
    found: list[Node] = []
    producer = graph.values[root.inputs[1]].producer if len(root.inputs) > 1 else None
    while producer is not None and len(found) < 2:
        node = graph.nodes[producer]
        if node.op not in (DEQUANTIZE, TRANSPOSE):
            return ()
        found.append(node)
        if node.op == DEQUANTIZE:
            return tuple(found) if all(map(graph.is_constant, node.inputs)) else ()
        producer = graph.values[node.inputs[0]].producer
    return ()


def weights_of(subgraph: Subgraph, root: Node, axis: int) -> QuantisedWeights:
    """The weights of a root. Raises UnsupportedError if their ``axis`` has not one factor for each channel."""
    graph = subgraph.model.graph
    path = weights_path(graph, root)
    if not path or any(node.id not in subgraph.members for node in path):
        raise UnsupportedError("the weights do not come quantised")
    *turned, node = path
    stored, scale, zero = (_constant(graph, each) for each in node.inputs[:3])
    along = node.attrs.get("axis")
    if stored.dtype.name not in DTYPES or scale.dtype != np.float32 or not np.isfinite(scale).all():
        raise UnsupportedError(f"weights of {stored.dtype}")
    if turned:
        if stored.ndim != 2 or turned[0].attrs["axes"] not in (None, (1, 0)):
            raise UnsupportedError("weights of several axes are transposed")
        stored, along = stored.T, 1 - along % 2 if isinstance(along, int) else None
    if stored.ndim < 2 or (axis == 1 and stored.ndim != 2):
        raise UnsupportedError("the weights are no matrix")
    channels = stored.shape[axis]
    if scale.size > 1 or zero.size > 1:
        right = isinstance(along, int) and along % stored.ndim == axis
        if not right or scale.shape != (channels,) or zero.shape != (channels,):
            raise UnsupportedError("the weights have other scales than one for each output channel")
    shape = [1] * stored.ndim
    shape[axis] = -1
    numbers = stored.astype(np.int64) - zero.astype(np.int64).reshape(shape)
    if numbers.min() < -128 or numbers.max() > 127:
        raise UnsupportedError("the weights have more than 8 bits without their zero points")
    return QuantisedWeights(numbers, np.broadcast_to(scale.astype(np.float64).reshape(-1), (channels,)), axis)


def _constant(graph: Graph, value: int) -> Any:
    found = graph.constants.get(value)
    if found is None:
        raise UnsupportedError("scales, zero points or weights are no constants")
    return np.asarray(found)


CONVOLUTIONS = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
MAX_POOLS = frozenset({"nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"})


@dataclass(frozen=True)
class QuantisedTask:
    """A chain whose epilogue ends with the steps of the result, as the task that is planned for float32.

    Of a sum of two values that is the ``chain`` itself. ``dtypes`` are those of the kernel's tensors, by the numbers of
    their arguments.
    """

    chain: Chain
    wide: ConvTask | ProductTask | PoolTask | Chain
    dtypes: tuple[tuple[int | PostOpOperand, str], ...]


def is_quantised(subgraph: Subgraph) -> bool:
    """Whether some operator turns integers of few bits into floats, or the other way round."""
    return any(node.op in (QUANTIZE, DEQUANTIZE) for node in subgraph.operators)


def problem(graph: Graph, node: Node) -> str:
    """Why no float32 chain begins with the node. Those that are quantised have a rule of their own."""
    return f"{node.op} is quantised"


def read(subgraph: Subgraph) -> QuantisedTask:
    """The subgraph as one kernel. Raises UnsupportedError when it is none."""
    roots = [node for node in subgraph.operators if node.op in _READERS]
    sums = [node for node in subgraph.operators if node.op == "add"]
    if len(subgraph.outputs) != 1:
        raise UnsupportedError("a result inside the chain is used outside")
    if len(roots) == 1:
        return _READERS[roots[0].op](subgraph, roots[0])
    if not roots and len(sums) == 1:
        return _read_sum(subgraph, sums[0])
    raise UnsupportedError("there is no convolution, product, sum or maximum among these operators, or several")


def variants(task: QuantisedTask, threads: int) -> list[Variant]:
    """Return those of float32 with channels last, and also plain ones where there is no convolution."""
    wide = task.wide
    if isinstance(wide, ConvTask):
        found = conv_plan.variants(wide, threads)
        return [each for each in found if {*each.inputs, *each.outputs} == {CHANNELS_LAST}]
    if isinstance(wide, ProductTask):
        # oneDNN has only its reference code for columns that do not lie together.
        whole = wide.product.dst[-2] > 1
        found = [each for each in matmul.variants(wide, threads) if not (whole and each.split == COLUMNS)]
        return found or [Variant(split=WHOLE)]
    found = _planner_of(wide).variants(wide, threads)
    return [each for each in found if BLOCKED not in (*each.inputs, *each.outputs)]


def plan(task: QuantisedTask, variant: Variant, threads: int) -> Draft:
    """The plan of float32 with the dtypes of the task."""
    draft = _planner_of(task.wide).plan(task.wide, variant, threads)
    return typed(draft, dict(task.dtypes))


def _planner_of(task: Any) -> Any:
    """The module with the ``variants`` and the ``plan`` of a float32 task."""
    if isinstance(task, Chain):
        return elementwise
    if isinstance(task, ProductTask):
        return matmul
    return pooling if isinstance(task, PoolTask) else conv_plan


def _refuse_overflow(numbers: npt.NDArray[Any]) -> None:
    """Raise UnsupportedError if the sum of a row's products with 8-bit numbers may be too large for 32 bits."""
    most = 255 * int(np.abs(numbers.astype(np.int64)).sum(1).max(initial=0))
    if most >= 2**31:
        raise UnsupportedError(f"sums of products may be {most:.1e}, more than 32 bits hold")


def _read_conv(subgraph: Subgraph, root: Node) -> QuantisedTask:
    data, weights = steps_of(subgraph, root.inputs[0]), weights_of(subgraph, root, 0)
    conv = read_conv(subgraph.model.graph, root, weights.numbers.astype(np.float32))
    _refuse_overflow(weights.numbers.reshape(len(weights.numbers), -1))
    taps = weights.numbers.sum(1)  # of all inputs of an output channel
    seen = taps.reshape(len(taps), -1).sum(1).reshape(-1, *[1] * (taps.ndim - 1))
    if data.zero and any(each > 0 for each in (*conv.pad_begin, *conv.pad_end)):
        if conv.dst[0] > 1:
            raise UnsupportedError("there is padding of several items, and zero is another number than 0")
        seen = _seen_sums(conv, taps)
    inner, after = _inside(subgraph, root)
    chain, shift = _weighted_chain(subgraph, root, (data, weights, after), inner, seen[None])
    wide = ConvTask(chain, conv, Folded(None, shift, chain.epilogue))
    return QuantisedTask(chain, wide, ((SRC, DTYPES[data.dtype]), (WEIGHTS, INT8), *_result(after)))


def _read_product(subgraph: Subgraph, root: Node) -> QuantisedTask:
    data, weights = steps_of(subgraph, root.inputs[0]), weights_of(subgraph, root, 1)
    inner, after = _inside(subgraph, root)
    _refuse_overflow(weights.numbers.T)
    sums = weights.numbers.sum(0).reshape(*[1] * (len(inner.shape) - 1), -1)
    chain, shift = _weighted_chain(subgraph, root, (data, weights, after), inner, sums)
    known = {**chain.graph.constants, root.inputs[1]: weights.numbers.astype(np.float32)}
    graph = replace(chain.graph, constants=known)
    product = ProductChain(
        *(
            graph,
            chain.operators,
            chain.inputs,
            chain.root,
            chain.base,
            chain.epilogue,
            chain.output,
            chain.own,
        )
    )
    wide = _WholeProduct(product, read_product(graph, product.root), shift)
    return QuantisedTask(product, wide, ((SRC, DTYPES[data.dtype]), (WEIGHTS, INT8), *_result(after)))


@dataclass(frozen=True)
class _WholeProduct(ProductTask):
    """A product of whole numbers, into which no factors are folded; ``shift`` is added to the sums of each column."""

    shift: Floats | None = None

    @cached_property
    def folded(self) -> Folded:
        return Folded(None, self.shift, self.chain.epilogue)


def _seen_sums(conv: Conv, taps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each output channel and place the sum of the weights that meet data there, and not padding."""
    found = taps
    for axis in range(2, len(conv.src)):
        at = axis - 2
        places = np.arange(conv.dst[axis])[:, None] * conv.strides[at] - conv.pad_begin[at]
        places = places + np.arange(conv.weights.shape[axis]) * conv.dilation[at]
        inside = ((places >= 0) & (places < conv.src[axis])).astype(np.int64)
        found = np.tensordot(found, inside, (1, 1))  # the next axis of taps is then the second one
    return found


def _weighted_chain(
    subgraph: Subgraph,
    root: Node,
    about: tuple[Steps, QuantisedWeights, Steps | None],
    inner: Chain,
    sums: npt.NDArray[np.int64],
) -> tuple[Chain, Floats | None]:
    """The chain of sums of whole numbers: their factors, the bias, what follows in the model, and its steps.

    ``sums`` of the weights broadcast to the result. They tell what the zero point of the data adds. It is taken away
    before anything is rounded, so that the result is the bias exactly where the data is its zero point. Where it is one
    number for each channel, it is returned as the bias of the sums, and else the chain begins with it.
    """
    data, weights, after = about
    if len(subgraph.inputs) != 1:
        raise UnsupportedError("there are other operands than the data")
    dst, axis = inner.shape, -1 if weights.axis else 1
    folded = fold(inner, dst, axis % len(dst))
    scale = weights.scale * data.scale * (1.0 if folded.scale is None else folded.scale.astype(np.float64))
    shape = [1] * len(dst)
    shape[axis] = len(scale)
    own = [*inner.own]
    epilogue: list[EpilogueOp] = []
    shift = (-data.zero * sums).astype(np.float64)
    per_channel = shift.size == len(scale)
    if shift.any() and not per_channel:
        epilogue.append(_constant_step(DnnlAlgorithm.ADD, shift, own))
    epilogue.append(_constant_step(DnnlAlgorithm.MULTIPLY, scale.reshape(shape), own))
    if folded.bias is not None and folded.bias.any():
        epilogue.append(_constant_step(DnnlAlgorithm.ADD, folded.bias.astype(np.float64).reshape(shape), own))
    epilogue += [*folded.epilogue, *_ending(after)]
    node = replace(root, inputs=(data.value, root.inputs[1]))
    chain = replace(
        inner,
        inputs=subgraph.inputs,
        root=node,
        base=root.outputs[0],
        epilogue=tuple(epilogue),
        output=subgraph.outputs[0],
        own=tuple(own),
    )
    return chain, shift.reshape(-1).astype(np.float32) if shift.any() and per_channel else None


def _read_sum(subgraph: Subgraph, root: Node) -> QuantisedTask:
    graph = subgraph.model.graph
    left, right = (steps_of(subgraph, value) for value in root.inputs)
    inner, after = _inside(subgraph, root)
    shapes = {graph.type_of(value).shape for value in (left.value, right.value, root.outputs[0])}
    if len(shapes) > 1 or left.value == right.value or len(subgraph.inputs) != 2:
        raise UnsupportedError("the operands of the sum are of different shapes, or the same")
    if after is None:
        raise UnsupportedError("the sum is not quantised")
    shape = graph.type_of(left.value).shape
    own = [*inner.own]
    # left.scale (l - left.zero) + right.scale (r - right.zero) = right.scale (ratio l + r) - shift
    shift = left.scale * left.zero + right.scale * right.zero
    ratio = np.array([left.scale / right.scale])
    epilogue: list[EpilogueOp] = [
        _constant_step(DnnlAlgorithm.MULTIPLY, ratio.reshape((1,) * len(shape)), own),
        Combine(DnnlAlgorithm.ADD, right.value, shape),
        Eltwise(DnnlAlgorithm.LINEAR, right.scale, -shift),
        *inner.epilogue,
        *_ending(after),
    ]
    node = replace(root, inputs=(left.value, right.value))
    chain = replace(
        inner,
        inputs=subgraph.inputs,
        root=node,
        base=left.value,
        epilogue=tuple(epilogue),
        output=subgraph.outputs[0],
        own=tuple(own),
    )
    operands = (SRC, DTYPES[left.dtype]), (PostOpOperand(0), DTYPES[right.dtype])
    return QuantisedTask(chain, chain, (*operands, *_result(after)))


def _read_pool(subgraph: Subgraph, root: Node) -> QuantisedTask:
    """A maximum of steps, which is one of them, so that their scale does not matter."""
    data = steps_of(subgraph, root.inputs[0])
    inner, after = _inside(subgraph, root)
    if inner.epilogue or after is None or replace(after, value=data.value) != data:
        raise UnsupportedError("the maximum is not quantised in the same steps as the data")
    node = replace(root, inputs=(data.value,))
    chain = replace(inner, inputs=subgraph.inputs, root=node, epilogue=(), output=subgraph.outputs[0], own=())
    dtype = DTYPES[data.dtype]
    return QuantisedTask(chain, PoolTask(chain, read_pool(inner.graph, root)), ((SRC, dtype), (DST, dtype)))


_READERS = {
    **dict.fromkeys(CONVOLUTIONS, _read_conv),
    **dict.fromkeys(MAX_POOLS, _read_pool),
    "matmul": _read_product,
}
"""What reads a kernel, by the operator that it is about. Sums are read where there is none of these."""


def _inside(subgraph: Subgraph, root: Node) -> tuple[Chain, Steps | None]:
    """What happens to the root's result in float32, and what it is quantised to, if it is."""
    model = subgraph.model
    after = [node for node in subgraph.operators if node.op == QUANTIZE]
    made, path = constants_made(subgraph, root), weights_path(model.graph, root)
    nodes = [
        node
        for node in subgraph.operators
        if node.op not in (QUANTIZE, DEQUANTIZE) and node.outputs[0] not in made and node not in path
    ]
    known = replace(model, graph=replace(model.graph, constants={**model.graph.constants, **made}))
    inner = Subgraph(known, tuple(node.id for node in nodes))
    rest = {node.id: node for node in nodes if node.id != root.id}
    chain = read_part(inner, root, root.outputs[0], rest)
    if len(after) > 1 or (after and after[0].inputs[0] != chain.output):
        raise UnsupportedError("something else than the result is quantised")
    if chain.viewed:
        raise UnsupportedError("the result is reshaped")
    if not after:
        return chain, None
    return chain, steps_at(model.graph, after[0], after[0].outputs[0])


def _constant_step(algorithm: DnnlAlgorithm, numbers: npt.ArrayLike, own: list[Floats]) -> Combine:
    """A function with a constant operand of the chain's own, which is added to ``own``."""
    own.append(np.asarray(numbers, np.float32))
    return Combine(algorithm, -len(own), own[-1].shape)


def _ending(after: Steps | None) -> Sequence[EpilogueOp]:
    return () if after is None else (Eltwise(DnnlAlgorithm.LINEAR, 1 / after.scale, float(after.zero)),)


def _result(after: Steps | None) -> list[tuple[int | PostOpOperand, str]]:
    return [] if after is None else [(DST, DTYPES[after.dtype])]
