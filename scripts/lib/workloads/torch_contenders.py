"""PyTorch in a race: the module that a workload's ONNX file was made from, in inference mode.

Each function takes the race's setup and gives a call and its outputs (``collage.bench.worker.Setup``). Like all other
contenders, they are given plain arrays and leave plain arrays.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from collage.bench.worker import Outputs, Setup
from collage.kernel.buffers import aligned_copy

from .catalogue import ENTRIES
from .recipe import read_recipe
from .workload import Workload

Call: TypeAlias = Callable[[], None]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the dimensions of a tensor
_TRIALS = 5


def pytorch(setup: Setup) -> tuple[Call, Outputs]:
    """PyTorch without a compiler, in plain or channels-last memory format, whichever is faster."""
    workload = _workload(setup)
    ways = [_bind(workload.model, workload, setup)]
    dims = max((each.dim() for each in workload.model.parameters()), default=0)
    if dims in _CHANNELS_LAST:
        last = _CHANNELS_LAST[dims]
        model: Any = deepcopy(workload.model)
        ways.append(_bind(model.to(memory_format=last), workload, setup, last))
    return _fastest(ways)


def inductor(setup: Setup) -> tuple[Call, Outputs]:
    """`torch.compile` with frozen weights, called from Python or from C++, whichever is faster (C++: 3 % on DCGAN).

    It chooses memory formats by itself.
    """
    from torch._inductor import config

    config.freezing = True  # among the options of `torch.compile` it does nothing
    workload = _workload(setup)
    ways = []
    for cpp_wrapper in (False, True):
        options: dict[str, Any] = {"cpp_wrapper": cpp_wrapper}
        ways.append(_bind(torch.compile(workload.model, dynamic=False, options=options), workload, setup))
    return _fastest(ways)


def _workload(setup: Setup) -> Workload:
    """The network of the file, with the weights that it was made with. Raises ValueError when there is none."""
    recipe = read_recipe(Path(setup.path))
    if recipe is None or recipe.workload not in ENTRIES:
        raise ValueError("the file was not made by scripts/models, so there is no torch module of it")
    torch.set_num_threads(setup.threads)
    return ENTRIES[recipe.workload].build(batch=recipe.batch, small=recipe.small)


def _bind(
    model: Callable[..., Any], workload: Workload, setup: Setup, memory_format: Any = torch.contiguous_format
) -> tuple[Call, Outputs]:
    arrays = [torch.from_numpy(aligned_copy(setup.inputs[name])) for name in workload.input_names]
    last: list[Tensor] = []

    @torch.inference_mode()
    def run() -> None:
        outputs = model(*(each.contiguous(memory_format=memory_format) for each in arrays))
        last[:] = (each.contiguous() for each in (outputs if isinstance(outputs, tuple) else (outputs,)))

    def outputs() -> Sequence[Any]:
        found = dict(zip(workload.output_names, last, strict=True))
        return [found[name].numpy() for name in setup.outputs]

    return run, outputs


def _fastest(ways: Sequence[tuple[Call, Outputs]]) -> tuple[Call, Outputs]:
    """The call with the least median of a few runs, after one that is not timed."""

    def seconds(way: tuple[Call, Outputs]) -> float:
        way[0]()
        return statistics.median(timeit.repeat(way[0], number=1, repeat=_TRIALS))

    return min(ways, key=seconds)
