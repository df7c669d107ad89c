"""A subgraph of TorchDynamo: which of its inputs are constants, and what speaks against compiling it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from collage.graph.torch_tensors import is_tensor
from collage.torch_backend.fused import plain_form

_DYNAMIC = "its shapes are dynamic. torch.compile(..., dynamic=False) has a subgraph for each shape."


class NotCompiledError(Exception):
    """A subgraph stays PyTorch's. The message is the reason."""


class DynamoGraph:
    """A ``torch.fx.GraphModule``, with the positions of its inputs."""

    def __init__(self, graph: Any, example_inputs: Sequence[Any]) -> None:
        """``example_inputs`` are like those of all calls."""
        self.eager: Callable[..., Sequence[Any]] = graph.forward
        """The subgraph in PyTorch."""
        self._graph = graph
        self.operations = sum(each.op.startswith("call_") for each in graph.graph.nodes)
        """The number of its operations."""
        self.constants = [at for at, each in enumerate(example_inputs) if _is_constant(each)]
        """Positions of parameters and buffers of modules, which are constants of a compiled subgraph."""
        self.inputs = [at for at in range(len(example_inputs)) if at not in {*self.constants}]
        """Positions of the other inputs."""
        nodes = graph.graph.find_nodes(op="placeholder")
        self.reason = next(filter(None, map(_reason, example_inputs, nodes)), "")
        """Why it cannot be compiled, as far as its inputs show, or ""."""

    def with_constants(self, args: Sequence[Any], outputs: Sequence[int]) -> Any:
        """The subgraph with constants for the inputs that are some, and with the outputs at these positions only."""
        from torch.fx import Graph, GraphModule

        graph, values = Graph(), {}
        attributes: dict[str, Any] = {}
        at = -1
        for node in self._graph.graph.nodes:
            at += node.op == "placeholder"
            if node.op == "placeholder" and at in self.constants:
                name = f"constant_{at}"
                attributes[name] = args[at].detach()
                values[node] = graph.get_attr(name)
            elif node.op == "output":
                graph.output(tuple(values[node.args[0][each]] for each in outputs))
            else:
                values[node] = graph.node_copy(node, values.__getitem__)
                values[node].target = plain_form(node.target) or node.target
                if node.op in ("get_attr", "call_module"):
                    attributes[node.target] = attrgetter(node.target)(self._graph)
        return GraphModule(attributes, graph)


def _is_constant(example: Any) -> bool:
    """Whether TorchDynamo has an input from a module: it marks buffers and parameters."""
    import torch

    return isinstance(example, torch.nn.Parameter) or bool(getattr(example, "_dynamo_static_input_type", None))


def _reason(example: Any, node: Any) -> str:
    """Why a subgraph with such an input, which is this node, cannot be compiled, or ""."""
    import torch

    if not is_tensor(example):
        return _DYNAMIC  # a number that stays open
    if type(example) not in (torch.Tensor, torch.nn.Parameter):
        return f"an input is a {type(example).__name__}."
    if any(not isinstance(extent, int) for extent in getattr(node.meta.get("example_value"), "shape", ())):
        return _DYNAMIC
    if example.device.type != "cpu":
        return f"an input is on {example.device}, and Collage takes tensors of the CPU."
    if example.layout != torch.strided or example.is_quantized:
        return "an input is no dense tensor."
    return ""
