"""Functions of single elements, and of several tensors element by element."""

from __future__ import annotations

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import BINARY, Chain, Combine
from collage.backends.chains.eltwise_table import FUNCTIONS
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.backends.chains.strided import AxisRange, cut
from collage.backends.onednn_kernels.builder import Draft, StepBuilder, variant_of
from collage.backends.onednn_kernels.description import outermost
from collage.backends.onednn_kernels.operations import Combination, Function, Operation
from collage.backends.onednn_kernels.plan import DST, SRC, SRC_1, Buffer
from collage.graph.dataflow import Graph, Node
from collage.graph.formats import has_channels
from collage.graph.storage import BLOCK, BLOCKED, PLAIN, STORAGES, Storage
from collage.kernel.options import Variant

ELEMENTS, OUTERMOST, WHOLE = "elements", "outermost axis", ""
SMALL_ELEMENTS = 1 << 17
"""Below this (512 KB), one thread may do all of it: some 20 us."""

_LINE = 16  # elements in a cache line


def elementwise_problem(graph: Graph, node: Node) -> str:
    """Why no chain of functions begins with an operator, or ""."""
    out = graph.type_of(node.outputs[0]).shape
    if not any(graph.type_of(v).shape == out and not graph.is_constant(v) for v in node.inputs):
        return f"{node.op} gives another shape"
    return "" if node.op in (*FUNCTIONS, *BINARY, "nn.batch_norm") else f"oneDNN has no {node.op}"


def variants(chain: Chain, threads: int) -> list[Variant]:
    """Every layout, split into even shares of the elements, or along the outermost axis where operands broadcast."""
    kind = chain.type_of(chain.base)
    operands = [each.shape for each in chain.epilogue if isinstance(each, Combine)]
    if not all(_broadcasts(shape, chain.shape) for shape in operands):
        return []
    layouts = [PLAIN]
    if has_channels(kind) and not chain.viewed and all(_per_channel(o, chain.shape) for o in operands):
        layouts = list(STORAGES)
    found = []
    for layout in layouts:
        splits = [_split(chain, layout)] if threads > 1 else []
        splits += [WHOLE] if not splits or kind.size < SMALL_ELEMENTS else []
        found += [variant_of(chain, (chain.base,), layout, layout, split) for split in splits]
    return found


def plan(chain: Chain, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    if not chain.epilogue:
        raise UnsupportedError("there is nothing to compute")
    first, *rest = chain.epilogue
    alone = _alone(chain)
    shape = chain.shape or (1,)
    builder = StepBuilder(chain, variant, shape, tuple(rest) if alone else chain.epilogue)
    layout = builder.output_layout
    if chain.viewed and layout != PLAIN:
        raise UnsupportedError("a reshaped result has only the plain layout")
    if builder.input_layout(chain.base) != layout:
        raise UnsupportedError(f"an elementwise kernel cannot go from {builder.input_layout(chain.base)} to {layout}")
    builder.flat = variant.split == ELEMENTS and threads > 1
    for where in _ranges(chain, variant.split, layout, threads):
        src, source = builder.input_part(chain.base, shape, where)
        dst, output = builder.output_part(where)
        arguments: list[tuple[int, Buffer]] = [(SRC, source), (DST, output)]
        operation: Operation
        if isinstance(first, Combine):
            second, buffer = builder.operand(first, where)
            operation = Combination(first.algorithm, src, second, dst)
            arguments.append((SRC_1, buffer))
        elif alone:
            operation = Function(first.algorithm, first.alpha, first.beta, src, dst)
        else:  # eltwise primitives take no eltwise post-ops, but a binary one, max(x, x), does
            operation = Combination(DnnlAlgorithm.MAXIMUM, src, src, dst)
            arguments.append((SRC_1, source))
        builder.add(operation, arguments, where)
    return builder.draft()


def in_place(chain: Chain) -> int | None:
    """The base, if the result may overwrite it: oneDNN allows it for functions, and for the first of two tensors."""
    once = all(isinstance(each, Eltwise) or each.operand != chain.base for each in chain.epilogue)
    return chain.base if once and not chain.viewed and chain.epilogue and _alone(chain) else None


def _alone(chain: Chain) -> bool:
    """Whether the first function can be the primitive, with the others as its post-ops."""
    return isinstance(chain.epilogue[0], Combine) or len(chain.epilogue) == 1


def _per_channel(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an operand has the result's shape, or one number for each channel, or one number."""
    return operand == shape or all(n == 1 for i, n in enumerate(operand) if i != 1)


def _broadcasts(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether oneDNN has more than its reference code for such an operand."""
    last = (*[1] * (len(shape) - 1), *shape[-1:])
    return operand == last or _per_channel(operand, shape)


def _split(chain: Chain, layout: Storage) -> str:
    """Split into even shares of the elements as they lie, if all tensors lie alike and have no padding."""
    whole = all(isinstance(each, Eltwise) or each.shape == chain.shape for each in chain.epilogue)
    padded = layout == BLOCKED and chain.shape[1] % BLOCK
    return ELEMENTS if whole and not padded else OUTERMOST


def _ranges(chain: Chain, split: str, layout: Storage, threads: int) -> list[AxisRange | None]:
    if split == WHOLE or threads == 1:
        return [None]
    if split == ELEMENTS:
        return [AxisRange(0, a, b) for a, b in cut(chain.type_of(chain.base).size, threads, _LINE)]
    if split != OUTERMOST:
        raise UnsupportedError(f"an elementwise kernel is not split by {split!r}")
    shape = chain.shape or (1,)
    axis = outermost(shape, layout)
    unit = BLOCK if layout == BLOCKED and axis == 1 else 1
    return [AxisRange(axis, a, b) for a, b in cut(shape[axis], threads, unit)]
