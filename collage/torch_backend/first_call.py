"""The first call of a subgraph, which PyTorch answers, and what it shows: mutations, random numbers and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collage.graph.torch_tensors import is_tensor


@dataclass(frozen=True)
class FirstCall:
    """The arguments and outputs of a call."""

    args: Sequence[Any]
    outputs: Sequence[Any]
    reason: str
    """Why no module can stand for the subgraph, or ""."""

    @staticmethod
    def of(eager: Callable[..., Any], args: Sequence[Any]) -> FirstCall:
        """Call the subgraph in PyTorch. Raises what it raises."""
        import torch

        state, versions = torch.get_rng_state(), _versions(args)
        outputs = eager(*args)
        reason = ""
        if any(is_tensor(each) and each.requires_grad for each in outputs):
            reason = "its outputs need gradients. Call it within torch.no_grad(), or torch.inference_mode()."
        elif versions != _versions(args):
            reason = "it changes its inputs in place."
        elif not torch.equal(state, torch.get_rng_state()):
            reason = "it draws random numbers, which are those of PyTorch's generator."
        elif any(is_tensor(each) and each.device.type != "cpu" for each in outputs):
            reason = "its outputs are not on the CPU."
        return FirstCall(args, outputs, reason)


def _versions(args: Sequence[Any]) -> list[int]:
    """How often each argument was written to. Tensors of the inference mode do not count that."""
    return [each._version for each in args if is_tensor(each) and not each.is_inference()]
