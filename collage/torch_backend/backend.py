"""The backend of ``torch.compile``: subgraphs compiled on their first call, or left to PyTorch, with a log line.

A subgraph comes from TorchDynamo, which calls it with tensors of the same types and shapes each time. PyTorch answers
the first call, and what Collage makes of the subgraph has to give the same outputs.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from collage.check.compare import difference, dtypes_of, region_tolerance
from collage.core.library_text import library_text
from collage.errors import CollageError, UsageError, unknown_names
from collage.frontend.pytorch.from_torch import values_that_count
from collage.frontend.pytorch.torch_export import exported, to_onnx
from collage.graph.dataflow import Array
from collage.graph.torch_tensors import array_over, is_tensor
from collage.module.torch_outputs import as_tensors
from collage.torch_backend.dynamo_graph import DynamoGraph, NotCompiledError
from collage.torch_backend.first_call import FirstCall
from collage.torch_backend.module_cache import cached
from collage.torch_backend.output_memory import Fresh, assembled, output_memory

log = logging.getLogger(__name__)

Answer: TypeAlias = Callable[..., Sequence[Any]]

BUDGET_S = 60.0
"""The default budget of a subgraph in seconds."""
_OPTIONS = frozenset(
    "backends budget_s cache db effort exact level progress quick reassociate remeasure seed streams threads "
    "time_limit_s tolerance tune_trials".split()
)
_MODULES = 32
"""The most modules of a subgraph. Instances of one module share a subgraph, and each has weights of its own."""
_WHOLE = 4.0
"""The error of a whole subgraph may be this many times that of a kernel: PyTorch sums in another order in each
operation, and rounds each to 16 bits if tensors have as many."""
_PIECE = 64
"""Elements of each constant that every call compares."""
_WHAT = "the subgraph"


def compile_subgraph(
    graph: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Answer:
    """The backend that ``torch.compile`` calls for each subgraph, a ``torch.fx.GraphModule``.

    ``options`` are ``torch.compile``'s: those of ``collage.compile`` for one model, with ``budget_s`` for each subgraph
    (60 s unless it is given), and ``cache``: a folder for compiled subgraphs, or False for none. Parameters and
    buffers become constants. Raises UsageError for unknown options, and for a mode; the first call of a subgraph raises
    it for values of options that are wrong.
    """
    options = {"budget_s": BUDGET_S, **(options or {})}
    if unknown := options.keys() - _OPTIONS:
        raise unknown_names("option of the backend collage", unknown, _OPTIONS)
    if mode not in (None, "default"):
        raise UsageError(f"the backend collage has no mode {mode}: give options={{'budget_s': seconds}} instead.")
    subgraph = DynamoGraph(graph, example_inputs)
    if subgraph.reason:
        _tell(subgraph, subgraph.reason)
    return CompiledGraph(subgraph, options) if subgraph.operations and not subgraph.reason else subgraph.eager


_compiling = threading.Lock()
"""Held while a subgraph is compiled. PyTorch's exporter is not for several threads."""


def _renew_lock() -> None:
    """Make a new lock in a forked child, since another thread of the parent may have held it."""
    global _compiling
    _compiling = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class CompiledGraph:
    """A subgraph that is compiled when it is called first. Calls of other threads meanwhile are PyTorch's."""

    def __init__(self, subgraph: DynamoGraph, options: Mapping[str, Any]) -> None:
        self._graph = subgraph
        self._options = options
        self._answers: dict[tuple[int, ...], Answer] = {}
        """Answers to calls, by the addresses of the constants."""

    def __call__(self, *args: Any) -> Sequence[Any]:
        """The outputs, as PyTorch gives them. Raises what the subgraph raises in PyTorch."""
        key = tuple(args[at].data_ptr() for at in self._graph.constants)
        answer = self._answers.get(key)
        if answer is not None:
            return answer(*args)
        lock = _compiling
        if len(self._answers) > _MODULES or not lock.acquire(blocking=False):
            return self._graph.eager(*args)
        try:
            call = FirstCall.of(self._graph.eager, args)
            self._answers[key] = self._answer(call)
        finally:
            lock.release()
        return call.outputs

    def _answer(self, call: FirstCall) -> Answer:
        """The subgraph by Collage, or by PyTorch with a line that says why. Raises UsageError for wrong options."""
        try:
            if len(self._answers) == _MODULES:
                raise NotCompiledError(f"it has been compiled for {_MODULES} sets of weights, which are enough.")
            return _Running(self._graph, call, self._options)
        except UsageError:  # the options
            raise
        except (NotCompiledError, CollageError) as error:
            _tell(self._graph, str(error))
        except Exception as error:  # tracing, exporters and engines raise anything, and PyTorch can always go on
            log.debug("a subgraph is not compiled", exc_info=True)
            _tell(self._graph, library_text(f"{type(error).__name__}: {error}"))
        return self._graph.eager


class _Running:
    """A subgraph as a compiled module, as long as its constants are what they were."""

    def __init__(self, subgraph: DynamoGraph, call: FirstCall, options: Mapping[str, Any]) -> None:
        """Raises NotCompiledError, and what exporting and compiling raises."""
        if call.reason:
            raise NotCompiledError(call.reason)
        self._graph = subgraph
        self._is_current = True
        self._memory = output_memory(call.args, call.outputs)
        made = [at for at, each in enumerate(self._memory) if isinstance(each, Fresh)]
        if not made:
            raise NotCompiledError("all of its outputs are inputs of it, or views of them.")
        self._held = [call.args[at].detach() for at in subgraph.constants]  # so that no other tensor has their address
        self._versions = self._versions_of(call.args)
        self._pieces = [_piece(_array(each)) for each in self._held]
        self._contents = [each.tobytes() for each in self._pieces]
        self._module = _module(subgraph, call, made, options)
        self._check(call, float(options.get("tolerance", 0.0)))

    def __call__(self, *args: Any) -> Sequence[Any]:
        if self._is_current and self._has_changed(args):
            _tell(
                self._graph,
                "its parameters or buffers have changed since it was compiled. torch.compiler.reset() lets it be "
                "compiled again.",
            )
            self._is_current = False
        return self._outputs(args) if self._is_current else self._graph.eager(*args)

    def _has_changed(self, args: Sequence[Any]) -> bool:
        """Whether a constant was written to. PyTorch does not count fused optimizers, NumPy and ``.data``."""
        return self._versions_of(args) != self._versions or [each.tobytes() for each in self._pieces] != self._contents

    def _versions_of(self, args: Sequence[Any]) -> list[int]:
        """How often each constant was written to. Tensors of the inference mode do not count that."""
        found = [args[at] for at in self._graph.constants]
        return [0 if each.is_inference() else each._version for each in found]

    def _outputs(self, args: Sequence[Any]) -> list[Any]:
        import torch

        with torch.no_grad():  # the outputs need no gradients, and inputs may
            made = self._module(*(args[at] for at in self._graph.inputs))
            return assembled(self._memory, args, as_tensors(made if isinstance(made, tuple) else (made,)))

    def _check(self, call: FirstCall, tolerance: float) -> None:
        """Raise NotCompiledError if the outputs are not PyTorch's."""
        dtypes = dtypes_of([_array(each) for each in (*call.args, *call.outputs) if is_tensor(each)])
        allowed = _WHOLE * max(region_tolerance(dtypes), tolerance)
        for actual, expected in zip(self._outputs(call.args), call.outputs, strict=True):
            if not is_tensor(expected):
                continue
            error = difference(_array(actual), _array(expected))[1]
            if error > allowed or actual.stride() != expected.stride():
                raise NotCompiledError(
                    f"its outputs differ from PyTorch's by {error:.2g} of their scale ({allowed:.0e} allowed)."
                )


def _module(subgraph: DynamoGraph, call: FirstCall, made: Sequence[int], options: Mapping[str, Any]) -> Any:
    """The module of the outputs at these positions, compiled or from the cache."""
    given = {f"input_{number}": call.args[at] for number, at in enumerate(subgraph.inputs)}
    program = exported(subgraph.with_constants(call.args, made), [*given.values()], {}, _WHAT)
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise NotCompiledError("it changes its inputs in place.")
    model = to_onnx(program, [*given], [f"output_{number}" for number in range(len(made))], _WHAT)
    arrays = {name: array_over(tensor.detach()) for name, tensor in given.items()}
    return cached(model, values_that_count(arrays), options)


def _array(tensor: Any) -> Array:
    return np.asarray(array_over(tensor.detach()))


def _piece(array: Array) -> Array:
    """Some neighbouring elements from the middle of an array, as a view."""
    flat = array.ravel("K")
    if flat.size and not np.may_share_memory(flat, array):  # with gaps
        flat = array[(0,) * (array.ndim - 1)]
    middle = flat.size // 2
    return flat[max(0, middle - _PIECE // 2) : middle + _PIECE // 2 + 1]


def _tell(subgraph: DynamoGraph, reason: str) -> None:
    count = subgraph.operations
    log.warning(
        "torch.compile: a subgraph of %d operation%s runs in PyTorch's eager mode: %s",
        *(count, "" if count == 1 else "s", reason),
    )
