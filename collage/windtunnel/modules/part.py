"""The base of all differentiable operators, the sources of their numbers, and the network that they make up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from collage.windtunnel.writer import Value, Writer

Tensor: TypeAlias = Any
"""A torch tensor."""


class Part(nn.Module):
    """An operator as tensors, and settings that JSON can hold.

    Parameters and constants become attributes, floating ones in float64, the precision in which a translated network
    equals its source. ``forward`` takes and gives [rows, width] in float64.
    """

    takes_missing = False
    """Whether NaN may come in."""
    takes_infinite = False
    settles = False
    """Whether its outputs are finite also if NaN or infinities come in."""
    exact: frozenset[str] = frozenset()
    """Constants that ``cast`` leaves as they are."""

    def __init__(
        self, parameters: Mapping[str, Any] | None = None, constants: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.settings = settings
        for name, value in (parameters or {}).items():
            self.set_parameter(name, value)
        for name, value in (constants or {}).items():
            self.set_constant(name, value)

    @property
    def width(self) -> int:
        """How many columns it gives."""
        return int(self.settings["width"])

    def set_parameter(self, name: str, value: Any) -> None:
        self.register_parameter(name, nn.Parameter(_tensor(value, keep=isinstance(value, torch.Tensor))))

    def set_constant(self, name: str, value: Any) -> None:
        keep = name in self.exact or isinstance(value, torch.Tensor)
        self.register_buffer(name, _tensor(value, keep=keep))

    def cast(self, dtype: Any) -> None:
        """Change the precision of the parameters and of the constants that are not exact."""
        for each in self.parameters(recurse=False):
            each.data = each.data.to(dtype)
        for name, value in self.named_buffers(recurse=False):
            if value.is_floating_point() and name not in self.exact:
                setattr(self, name, value.to(dtype))

    def randomise(self, generator: Any) -> None:
        """Forget what was learnt: a cold start. By default all parameters are kept, for they hold statistics."""

    def export(self, to: Writer, *inputs: Value) -> Value:
        """Write its operators into an ONNX graph. A source takes a number or code of each of its columns."""
        raise NotImplementedError


def _tensor(value: Any, keep: bool) -> Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    array = np.array(value, order="C")
    return torch.from_numpy(array.astype(np.float64) if array.dtype.kind == "f" and not keep else array)


def array(value: Tensor) -> Any:
    """A tensor as an array, for export; floating ones in float64."""
    found = value.detach().cpu().numpy()
    return found.astype(np.float64) if found.dtype.kind == "f" else found


class Numbers(Part):
    """A source: some of the columns that are numbers."""

    takes_missing = takes_infinite = True

    @classmethod
    def of(cls, columns: Sequence[int]) -> Numbers:
        return cls({}, {"columns": np.array(columns, np.int64)}, width=len(columns))

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers.index_select(1, self.columns)

    def export(self, to: Writer, *inputs: Value) -> Value:
        return tuple(segment for value in inputs for segment in value)


class Concat(Part):
    """Several inputs side by side."""

    takes_missing = takes_infinite = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, 1)

    def export(self, to: Writer, *inputs: Value) -> Value:
        return tuple(segment for value in inputs for segment in value)


class Select(Part):
    """Some columns of an input."""

    takes_missing = takes_infinite = True

    @classmethod
    def of(cls, columns: Sequence[int]) -> Select:
        return cls({}, {"columns": np.array(columns, np.int64)}, width=len(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.columns)

    def export(self, to: Writer, *inputs: Value) -> Value:
        missing = any(segment.missing for segment in inputs[0])
        found = to.op("Gather", to.dense(inputs[0]), to.constant(array(self.columns)), axis=1)
        return to.plain(found, self.width, missing=missing)


@dataclass(frozen=True)
class Step:
    """The place of a part in the pipeline, and the steps whose outputs it takes; sources take none."""

    path: str
    inputs: tuple[int, ...] = ()


class Network(nn.Module):
    """Parts in the order in which they run. The last one gives the scores, [rows, width]."""

    def __init__(self, parts: Sequence[Part], steps: Sequence[Step]) -> None:
        super().__init__()
        assert len(parts) == len(steps) and all(max(s.inputs, default=-1) < at for at, s in enumerate(steps))
        self.parts, self.steps = nn.ModuleList(parts), tuple(steps)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Scores of rows: ``numbers`` [rows, numeric columns], ``codes`` of categories [rows, other columns], int64."""
        return self.until(len(self.parts), numbers, codes)[-1]

    def until(self, stop: int, numbers: Tensor, codes: Tensor) -> list[Tensor]:
        """The outputs of the steps before ``stop``."""
        values: list[Tensor] = []
        for part, step in zip(self.parts[:stop], self.steps, strict=False):
            if step.inputs:
                given = [values[each] for each in step.inputs]
            else:
                given = [numbers if isinstance(part, Numbers) else codes]
            values.append(part(*given))
        return values

    def before(self, step: int) -> Iterator[int]:
        """The steps that a step rests on."""
        for each in self.steps[step].inputs:
            yield each
            yield from self.before(each)
