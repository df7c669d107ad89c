"""A training from a user's file: a network with its loss, the inputs of each step, and an optimizer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.core.library_text import raised
from collage.errors import CollageError, UsageError
from collage.graphpipe.plan import Plan
from collage.graphpipe.trace import EXAMPLES, Traced, check_samples, trace

_CHECKED_STEPS, _CHECKED_SAMPLES = 3, 16


def sgd(parameters: list[Any]) -> Any:
    """The optimizer of a training that names none."""
    import torch

    return torch.optim.SGD(parameters, 0.01)


@dataclass(frozen=True)
class Training:
    """A ``module`` that gives its mean loss over the samples of its inputs, and how it is trained.

    ``batch(step, samples)`` gives the inputs of a step as a tuple of tensors with the samples on their first axis; it
    gives the same ones in each process. ``optimizer`` makes a torch optimizer for a list of parameters.
    """

    module: Any
    batch: Callable[[int, int], tuple[Any, ...]]
    optimizer: Callable[[list[Any]], Any] = sgd

    def trace(self) -> Traced:
        """The blocks of the module. Raises CollageError, also if the same batch is not the same twice."""
        inputs = self.inputs(0, EXAMPLES)
        for at, (one, other) in enumerate(zip(inputs, self.inputs(0, EXAMPLES), strict=False)):
            same = one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
            if not same:
                raise UsageError(
                    f"batch(0, {EXAMPLES}) gives another tensor {at} when it is called again: it has to give the same "
                    "batch in each process, with a torch.Generator().manual_seed(step) for example."
                )
        return trace(self.module, inputs)

    def check_samples(self, traced: Traced) -> None:
        """Raise TraceError unless the loss is the mean over the samples, for some samples of the first steps."""
        for step in range(_CHECKED_STEPS):
            check_samples(traced.module, self.inputs(step, _CHECKED_SAMPLES))

    def check_micro_batches(self, traced: Traced, plan: Plan, turn: int, turns: int) -> None:
        """Raise TraceError unless the loss of the first mini-batch is the mean of those of a plan's micro-batches.

        Each of ``turns`` processes checks its share of them.
        """
        size = min(each.b // len(each.devices) for each in plan.stages)
        check_samples(traced.module, self.inputs(0, plan.mini_batch), size, turn, turns)

    def optimizer_of(self, parameters: list[Any]) -> Any:
        """The optimizer of parameters. Raises CollageError unless it is one of torch's that needs no closure."""
        import torch

        try:
            found = self.optimizer(parameters)
        except Exception as error:
            raise CollageError(f"the optimizer cannot be made: {raised(error)}.") from error
        if not isinstance(found, torch.optim.Optimizer) or isinstance(found, torch.optim.LBFGS):
            kind = type(found).__name__
            raise UsageError(f"the optimizer's function gives a {kind}: return a torch optimizer, other than LBFGS.")
        return found

    def inputs(self, step: int, samples: int) -> tuple[Any, ...]:
        """The inputs of a step. Raises CollageError unless they have so many samples."""
        import torch

        try:
            found = tuple(self.batch(step, samples))
        except Exception as error:
            raise CollageError(f"the batch of step {step} cannot be made: {raised(error)}.") from error
        for each in found:
            if not isinstance(each, torch.Tensor) or not each.ndim or len(each) != samples:
                raise UsageError(
                    f"the batch of step {step} has to be tensors with {samples} samples on the first axis."
                )
        return found


def load_training(text: str, seed: int = 0) -> Training:
    """The training that a function gives, named as ``FILE.py:function``. The seed of torch is set before.

    The function returns ``(module, batch)`` or ``(module, batch, optimizer)``, the fields of Training. Raises
    CollageError.
    """
    import torch

    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{text!r} names no function; write it as MODEL.py:function.")
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {file}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.append(str(path.parent))
    torch.manual_seed(seed)
    try:
        spec.loader.exec_module(module)
        make = getattr(module, name, None)
        found = make() if callable(make) else None
    except Exception as error:
        raise CollageError(f"{text} fails: {raised(error)}.") from error
    if make is None:
        raise UsageError(f"{file} has no function {name}.")
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not all(map(callable, found)):
        raise UsageError(f"{text} has to return (module, batch) or (module, batch, optimizer).")
    return Training(*found)
