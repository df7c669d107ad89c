"""A PyTorch module as a graph of blocks: exported, cut where single tensors of samples pass, and coarsened (§3.4).

Everything here follows from the module and its inputs alone, so that each process finds the same blocks.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import math
import operator
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graphpipe.coarsen import coarsened

EXAMPLES = 4
"""The samples with which a module is exported."""

_logger = logging.getLogger(__name__)
_QUIET: Mapping[str, Any] = {"p": 1.0, "dropout": 0.0, "dropout_p": 0.0, "train": False, "training": False}
"""The values of arguments with which an operation of torch is not random: ``p`` is the probability of a one."""
_BATCH_NORMS = ("batch_norm",)
_BY_SAMPLES = "training"
_CLOSE = {2: 1e-2, 4: 2e-5, 8: 1e-9}
"""The relative difference of losses that rounding explains, by the bytes of a number."""


class TraceError(CollageError):
    """A module cannot become a graph of blocks; the message names the operation."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor [samples, *shape] that a block reads from another one. ``grad``: its gradient is sent back."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    grad: bool

    @property
    def nbytes(self) -> int:
        """The bytes of a sample."""
        count: int = self.dtype.itemsize
        for each in self.shape:
            count *= each
        return count


@dataclass(frozen=True, eq=False)
class Piece:
    """Some blocks as a module of their own, with their parameters.

    ``module(samples, *data, *reads)`` gives a tuple of the values ``gives`` and the losses that are left. ``data`` are
    positions of the whole module's inputs, ``reads`` are values of other blocks.
    """

    module: Any
    data: tuple[int, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Traced:
    """An exported module and its blocks, each the names of its nodes, in a topological order.

    ``values`` are the tensors between blocks. ``activation_bytes`` of each block are kept for the backward pass, for
    each sample.
    """

    module: Any
    names: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    values: Mapping[str, Value]
    activation_bytes: tuple[float, ...]

    @cached_property
    def nodes(self) -> dict[str, Any]:
        """The nodes of the exported graph by name."""
        return {each.name: each for each in self.module.graph.nodes}

    @cached_property
    def home(self) -> dict[str, int]:
        """The block of each node that is in one."""
        return {name: at for at, block in enumerate(self.blocks) for name in block}

    @cached_property
    def reads(self) -> tuple[frozenset[str], ...]:
        """For each block, the values that it reads from other blocks."""
        found: list[set[str]] = [set() for _ in self.blocks]
        for name in self.values:
            for user in _users(self.nodes[name], self.home):
                if self.home[user.name] != self.home[name]:
                    found[self.home[user.name]].add(name)
        return tuple(map(frozenset, found))

    def piece(self, blocks: Iterable[int], gives: Iterable[str] | None = None) -> Piece:
        """The module of some blocks. It gives the values ``gives``, by default all that other blocks read."""
        inside = {*blocks}
        if gives is None:
            gives = {name for at, names in enumerate(self.reads) if at not in inside for name in names}
        given = tuple(name for name in self.values if self.home[name] in inside and name in {*gives})
        read = {name for at in inside for name in self.reads[at] if self.home[name] not in inside}
        return _cut(self, inside, tuple(name for name in self.values if name in read), given)


def trace(module: Any, inputs: Sequence[Any]) -> Traced:
    """The blocks of a module that gives its mean losses over the samples of ``inputs``.

    Each input is a tensor with the samples on its first axis, ``EXAMPLES`` of them. All outputs that have a gradient
    are losses, and are added up. Raises TraceError.
    """
    import torch

    for at, each in enumerate(inputs):
        if not isinstance(each, torch.Tensor) or not each.ndim or len(each) != len(inputs[0]):
            raise TraceError(f"input {at} is no tensor with the same number of samples on its first axis as input 0.")
    whole = _exported(module, tuple(inputs))
    tensors = _tensors(whole)
    _refuse(whole)
    if random := check_samples(whole, inputs):
        _logger.warning(
            "whether the loss is the mean over the samples is not checked, since the network is random by %s.",
            ", ".join(random),
        )
    _check_losses(whole, inputs)
    seen = _observed(whole, inputs, tensors)
    order = [each.name for each in whole.graph.nodes if each in tensors]
    inner = {*order}
    arcs = [(each.name, user.name) for each in whole.graph.nodes if each in tensors for user in _users(each, inner)]
    bound = [(one, other) for one, other in arcs if not seen[one].cuttable]
    bound += _bound_by_weights(whole, tensors)
    blocks = coarsened(order, arcs, bound, {name: seen[name].work for name in order})
    home = {name: at for at, block in enumerate(blocks) for name in block}
    values = {one: seen[one].value for one, other in arcs if home[one] != home[other]}
    kept: list[dict[int, int]] = [{} for _ in blocks]
    for name in order:
        kept[home[name]].update(seen[name].kept)
    sizes = tuple(sum(each.values()) / len(inputs[0]) for each in kept)
    return Traced(whole, _block_names(whole, blocks, seen), blocks, values, sizes)


def check_samples(whole: Any, inputs: Sequence[Any], size: int = 1, turn: int = 0, turns: int = 1) -> Sequence[str]:
    """Raise TraceError unless the loss of an exported module is the mean of those of its micro-batches of ``size``.

    The first micro-batch is taken together with each other one; of ``turns`` processes this one takes its share.
    Dropouts are switched off. A module that is random all the same is not checked: the result names its operations.
    """
    import torch

    parts = [[each[at : at + size] for each in inputs] for at in range(0, len(inputs[0]) if inputs else 0, size)]
    if len(parts) < 2:
        return ()
    mine = dict.fromkeys([1, *range(1 + turn, len(parts), turns)])  # most errors are the same in each process
    calm, left = _calm(whole)
    if left:
        return left
    with torch.no_grad():
        found = calm(*parts[0])
        first, close = _loss(found), _close(calm, found)
        for part in (parts[at] for at in mine):
            together = _loss(calm(*map(torch.cat, zip(parts[0], part, strict=True))))
            _compare(together, (first, _loss(calm(*part))), size, close)
    return ()


def _compare(together: float, alone: tuple[float, float], size: int, close: float) -> None:
    """Raise TraceError unless a loss is the mean of two; a loss that is not finite says nothing."""
    mean = sum(alone) / 2
    near = abs(together - mean) <= close * max(abs(together), *map(abs, alone), 1e-6)
    if math.isfinite(together) and not (math.isfinite(mean) and near):
        each = "each alone" if size == 1 else f"each {size} of them"
        raise TraceError(
            f"the loss of {2 * size} samples is {together:.6g}, and the mean of those of {each} is {mean:.6g}: "
            "the module has to give the mean over its samples, without operations from one sample to another."
        )


def _close(module: Any, outputs: Any) -> float:
    """The relative difference of losses that rounding explains."""
    tensors = [*_floats(outputs), *(each for each in module.parameters() if each.is_floating_point())]
    return _CLOSE[min((each.element_size() for each in tensors), default=4)]


def _exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    """The module as an fx.GraphModule, for any number of samples."""
    import torch

    shapes = tuple({0: torch.export.Dim("samples", min=1)} for _ in inputs)
    try:
        with _silent():
            return torch.export.export(module, inputs, dynamic_shapes=(shapes if inputs else None)).module(
                check_guards=False
            )
    except Exception as error:
        text = _first_line(error)
        if "Constraints violated" in text:
            text = f"a size in it is that of the example, {len(inputs[0])} samples: write -1 or x.shape[0] instead"
        raise TraceError(f"the module does not export: {_where(error)}{text}") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without torch's log and the graphs that it prints."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _where(error: BaseException) -> str:
    """The line of the module that an error of torch comes from, with its text."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith("<") and frame.f_code.co_name != "_exported":
            found = f"line {line} of {name}, `{linecache.getline(name, line).strip()}`: "
    return found


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return library_text(lines[0]) if lines else type(error).__name__


def _symbolic(value: Any) -> bool:
    """Whether a node's value is a number, which may depend on the number of samples, and no tensor."""
    import torch

    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _tensors(whole: Any) -> set[Any]:
    """The nodes that depend on data, weights or random numbers. All others are computed wherever they are needed."""
    import torch

    found: set[Any] = set()
    weights = dict(whole.named_parameters())
    used: set[Any] = set()
    for node in reversed(whole.graph.nodes):
        if node.op == "output" or any(user in used for user in node.users) or _mutates(node):
            used.add(node)
    for node in whole.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node not in used:
            continue
        if _symbolic(node.meta.get("val")):
            continue
        depends = any(
            each in found or each.op == "placeholder" or (each.op == "get_attr" and str(each.target) in weights)
            for each in node.all_input_nodes
        )
        tags = getattr(node.target, "tags", ())
        if depends or torch.Tag.nondeterministic_seeded in tags:
            found.add(node)
    return found


def _mutates(node: Any) -> bool:
    """Whether an operation changes an argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _users(node: Any, inside: Any) -> list[Any]:
    return [each for each in node.users if each.name in inside]


def _refuse(whole: Any) -> None:
    """Raise TraceError for operations whose results depend on how samples are divided into micro-batches."""
    for node in whole.graph.nodes:
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        if any(each in name for each in _BATCH_NORMS) and _argument(node, _BY_SAMPLES) is True:
            where = [*node.meta.get("nn_module_stack", {"": ("the module",)}).values()][-1][0] or "the module"
            raise TraceError(
                f"{where} is a BatchNorm ({name}), whose results depend on the micro-batch; replace it by GroupNorm "
                "or LayerNorm, or put it in evaluation mode."
            )


def _argument(node: Any, name: str) -> Any:
    """An argument of an operation by its name."""
    for at, each in enumerate(node.target._schema.arguments):
        if each.name == name:
            return node.args[at] if at < len(node.args) else node.kwargs.get(name, each.default_value)
    return None


def _calm(whole: Any) -> tuple[Any, Sequence[str]]:
    """The exported module without random operations, with buffers of its own, and the operations that stay random.

    Dropouts, also those of attention and of recurrent layers, do nothing; other operations have no such argument.
    """
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(whole.graph, {}))
    left: dict[str, None] = {}
    for node in graph.nodes:
        name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
        if "dropout" not in name and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        quiet = {each.name: at for at, each in enumerate(node.target._schema.arguments) if each.name in _QUIET}
        if not quiet or any(isinstance(_argument(node, each), torch.fx.Node) for each in quiet):
            left[name.removeprefix("aten::")] = None
            continue
        for name, at in quiet.items():
            if at < len(node.args):
                node.update_arg(at, _QUIET[name])
            else:
                node.update_kwarg(name, _QUIET[name])
    calm = torch.fx.GraphModule(whole, graph)
    for name, each in [*calm.named_buffers()]:
        place, _, last = name.rpartition(".")
        setattr(calm.get_submodule(place), last, each.clone())
    return calm, [*left]


def _loss(found: Any) -> float:
    return sum(float(each.double().mean()) for each in _floats(found))


def _floats(found: Any) -> list[Any]:
    """The outputs that may be losses."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(found)
    return [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]


def _check_losses(whole: Any, inputs: Sequence[Any]) -> None:
    """Raise TraceError unless there is an output with a gradient, and each is one number, or one for each sample."""
    losses = [each for each in _floats(whole(*inputs)) if each.requires_grad]
    if not losses:
        raise TraceError("no output of the module has a gradient: it has to give its mean loss over the samples.")
    for each in losses:
        if each.ndim > 1:
            raise TraceError(
                f"an output of the module has the shape {list(each.shape)}, and would be a loss, as all outputs that "
                "have a gradient: give losses only, or detach it."
            )


@dataclass(eq=False)
class _Seen:
    """A node as it ran: its value, its work, and the storages that it keeps for the backward pass."""

    value: Value
    cuttable: bool
    work: float
    kept: dict[int, int] = field(default_factory=dict)


def _observed(whole: Any, inputs: Sequence[Any], tensors: set[Any]) -> dict[str, _Seen]:
    """Run the graph once, and see what each node gives and keeps. Nothing that is kept is freed meanwhile."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    weights = {each.untyped_storage().data_ptr() for each in whole.state_dict().values()}
    weights |= {each.untyped_storage().data_ptr() for each in inputs}
    found: dict[str, _Seen] = {}
    alive: list[Any] = []
    batch = _batch_symbols(whole.graph)

    class Observer(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            kept: dict[int, int] = {}

            def pack(tensor: Any) -> Any:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in weights:
                    kept[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor.detach())
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
                if node not in tensors:
                    return super().run_node(node)
                with FlopCounterMode(display=False) as counter:
                    result = super().run_node(node)
            found[node.name] = _seen(node, result, float(counter.get_total_flops()), kept, batch)
            return result

    try:
        Observer(whole).run(*inputs)
    except Exception as error:
        raise TraceError(f"the exported module does not run: {_first_line(error)}") from error
    mutated = {
        str(each.name)
        for node in tensors
        if _mutates(node)
        for each, argument in zip(node.args, node.target._schema.arguments, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(each, torch.fx.Node)
    }
    for name in mutated & {*found}:
        found[name].cuttable = False
    return found


def _seen(node: Any, result: Any, flops: float, kept: dict[int, int], batch: set[str]) -> _Seen:
    """A tensor can be sent if its first axis, and no other one, is the number of samples."""
    import torch

    if not isinstance(result, torch.Tensor):
        return _Seen(Value(node.name, (), None, False), False, flops, kept)
    shape = tuple(result.shape)
    symbols = node.meta["val"].shape
    fixed = all(isinstance(each, int) for each in symbols[1:])
    cuttable = bool(shape) and fixed and not isinstance(symbols[0], int) and str(symbols[0]) in batch
    value = Value(node.name, shape[1:], result.dtype, bool(result.requires_grad))
    return _Seen(value, cuttable, flops + 10.0 * result.nbytes, kept)  # 10 operations in the time of a byte


def _batch_symbols(graph: Any) -> set[str]:
    """The number of samples, as the shapes of the graph spell it."""
    return {str(each.meta["val"].shape[0]) for each in graph.nodes if each.op == "placeholder"}


def _bound_by_weights(whole: Any, tensors: set[Any]) -> list[tuple[str, str]]:
    """Pairs of nodes that read the same weight, which have to be in one block."""
    users: dict[int, list[str]] = {}
    named = dict(whole.named_parameters(remove_duplicate=False))
    for node in whole.graph.nodes:
        if node.op == "get_attr" and node.target in named:
            users.setdefault(id(named[node.target]), []).extend(each.name for each in node.users if each in tensors)
    return [(each[0], other) for each in users.values() for other in each[1:]]


def _block_names(whole: Any, blocks: Sequence[Sequence[str]], seen: Mapping[str, _Seen]) -> tuple[str, ...]:
    """A name for each block: the module with most of its work, with a number if there are several."""
    nodes = {each.name: each for each in whole.graph.nodes}
    found: list[str] = []
    for block in blocks:
        heaviest = nodes[max(block, key=lambda name: seen[name].work)]
        stack = [str(each[0]) for each in heaviest.meta.get("nn_module_stack", {}).values()]
        stack = [each for each in stack if each and not each.startswith("_")]
        found.append(stack[-1] if stack else heaviest.name)
    return tuple(
        f"{name}#{found[: at + 1].count(name)}" if found.count(name) > 1 else name for at, name in enumerate(found)
    )


def _cut(traced: Traced, inside: set[int], reads: tuple[str, ...], gives: tuple[str, ...]) -> Piece:
    """The piece of some blocks. Numbers and constants that they need are computed inside."""
    import torch

    whole = traced.module
    graph = torch.fx.Graph()
    samples = graph.placeholder("samples")
    inputs = [each for each in whole.graph.nodes if each.op == "placeholder"]
    own = [each for each in whole.graph.nodes if traced.home.get(each.name) in inside]
    outputs = [each for each in whole.graph.output_node().all_input_nodes if each in own and _is_loss(each)]
    needed = _needed(own, traced.home, {*reads})
    data = tuple(at for at, each in enumerate(inputs) if each in needed)
    new: dict[Any, Any] = {inputs[at]: graph.placeholder(inputs[at].name) for at in data}
    new |= {traced.nodes[name]: graph.placeholder(name) for name in reads}
    batch = _batch_symbols(whole.graph)
    for node in whole.graph.nodes:
        if node in new or not (node in needed or traced.home.get(node.name) in inside):
            continue
        value = node.meta.get("val")
        if _symbolic(value) and node.target is torch.ops.aten.sym_size.int:
            new[node] = _size(graph, samples, value, batch, node)
        else:
            new[node] = graph.node_copy(node, lambda each: new[each])
    graph.output(tuple(new[traced.nodes[name]] for name in gives) + tuple(new[each] for each in outputs))
    return Piece(torch.fx.GraphModule(whole, graph), data, reads, gives)


def _is_loss(node: Any) -> bool:
    """Whether an output of the module is a loss: it has a floating-point type."""
    return bool(node.meta["val"].is_floating_point())


def _needed(own: Sequence[Any], home: Mapping[str, int], reads: set[str]) -> set[Any]:
    """The inputs of nodes outside of all blocks: inputs of the network, weights, numbers and constants."""
    found: set[Any] = set()
    todo = [*own]
    while todo:
        for each in todo.pop().all_input_nodes:
            free = each.name not in home and each not in found
            if free:
                found.add(each)
                # The number of samples is known without the tensor that has it.
                todo += [each] if not _symbolic(each.meta.get("val")) or not _is_size(each) else []
    return found


def _is_size(node: Any) -> bool:
    import torch

    return bool(node.target is torch.ops.aten.sym_size.int)


def _size(graph: Any, samples: Any, value: Any, batch: set[str], node: Any) -> Any:
    """A size as a multiple of the number of samples. Raises TraceError if it is none."""
    if isinstance(value, int):
        return value
    factor = value.node.expr / next(iter(value.node.expr.free_symbols), 1)
    if {str(each) for each in value.node.expr.free_symbols} <= batch and factor.is_integer:
        return graph.call_function(operator.mul, (samples, int(factor)))
    raise TraceError(f"the size {node.name} = {value} depends on data; only the number of samples may be variable.")
