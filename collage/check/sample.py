"""Samples: inputs, the outputs that the reference makes of them, and what excuses a difference from these.

A difference is excused if the outputs for numbers that differ in their last bits are as far apart: no arithmetic in
floating-point numbers is more exact then. If the reference itself may be the worse one, float64 arithmetic decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from collage.check.compare import (
    ROUNDINGS,
    Expected,
    Rule,
    changed_by_steps,
    is_inexact,
    is_tolerable,
    slightly_changed,
)
from collage.frontend.precise import precise_run
from collage.frontend.read.apart import with_changed
from collage.frontend.read.proto_size import about_bytes
from collage.frontend.read.weights import WeightFiles
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, to_layout

USUAL = "usual"
_RUNS = 4
"""The number of runs on changed inputs. One alone may change the outputs little by chance."""
_RUNS_OF_WEIGHTS = 2
"""The number of runs with changed weights. Each of them loads the model once more."""
_RUNS_OF_BOTH = 8
"""The same with changed inputs, too. An output that is all that a slice has, such as the only one that ReLU leaves of a
channel, is judged by these runs alone. With four of them one of 25 such outputs would be taken for wrong, by chance."""
_MOST_BYTES = 256 << 20
"""The largest model whose weights are changed beside its inputs. A larger one takes seconds to load."""

Run: TypeAlias = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Any]]
"""Runs a model on inputs by name, and returns its outputs in order."""


def nearby_outputs(
    model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run, precision: str = "", *, steps: bool = False
) -> Iterator[list[Any]]:
    """Outputs of the model for inputs that are changed in their last bits, one list of arrays for each run.

    With a reduced ``precision`` they are changed as much as rounding to it does, and the weights are changed with them,
    since a kernel of that precision rounds them, too. With ``steps``, inputs are changed as even steps of 8 bits do,
    where the precision has these: a large number costs those beside it their digits. Where no input holds
    floating-point numbers only the weights are changed.
    """
    rng = np.random.default_rng(0)

    def changed(array: Array) -> Array:
        return (
            changed_by_steps(array, rng)
            if steps and ROUNDINGS[precision].even
            else slightly_changed(array, rng, precision)
        )

    def slightly(array: Array) -> Array:
        return slightly_changed(array, rng, precision)

    def around() -> dict[str, Array]:
        return {name: changed(array) for name, array in feeds.items()}

    if not any(map(is_inexact, feeds.values())):
        for _ in range(_RUNS_OF_WEIGHTS):
            with WeightFiles() as files:
                yield run(with_changed(model, slightly, files), feeds)
    elif precision and about_bytes(model) <= _MOST_BYTES:
        for _ in range(_RUNS_OF_BOTH):
            with WeightFiles() as files:
                yield run(with_changed(model, slightly, files), around())
    else:
        for _ in range(_RUNS):
            yield run(model, around())


@dataclass(frozen=True)
class Sample:
    """Plain inputs of a region or a model in order, and the outputs that ONNX Runtime makes of them.

    ``ordinary`` is that of the kind of inputs. ``rules`` has one rule for each output.
    """

    kind: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    ordinary: bool
    rules: tuple[Rule, ...]
    _stored: dict[tuple[int, Storage], Array] = field(default_factory=dict, repr=False)
    _expected: dict[tuple[int, Storage], Expected] = field(default_factory=dict, repr=False)
    _nearby: dict[str, list[list[Any]]] = field(default_factory=dict, repr=False)
    _precise: list[list[Any] | None] = field(default_factory=list, repr=False)

    @property
    def usual(self) -> bool:
        """Whether these are the usual inputs."""
        return self.kind == USUAL

    def stored(self, position: int, layout: Storage) -> Array:
        """An input as kernels read it, in the storage ``layout``."""
        if layout == PLAIN:
            return self.inputs[position]
        key = position, layout
        if key not in self._stored:
            self._stored[key] = to_layout(self.inputs[position], layout)
        return self._stored[key]

    def expected(self, position: int, layout: Storage = PLAIN) -> Expected:
        """What is expected of an output in the storage ``layout``."""
        key = position, layout
        if key not in self._expected:
            lenient = self.ordinary and not self.usual
            self._expected[key] = Expected.of(
                self.outputs[position], self.rules[position], layout=layout, lenient=lenient
            )
        return self._expected[key]

    def may_be_rounding(self, position: int, error: float) -> bool:
        """Whether an error may be excused at all: quantised and random values, and NaN, are not."""
        rule, of_integers = self.rules[position], self.outputs[position].dtype.kind in "iub"
        return not (rule.rounded or rule.drawn) and (of_integers or bool(np.isfinite(error)))

    def excuses(
        self,
        position: int,
        actual: Array,
        allowed: float,
        model: onnx.ModelProto,
        names: Sequence[str],
        run: Run,
        precision: str = "",
    ) -> bool:
        """Whether a plain output that is off by more than ``allowed`` is still as good as can be expected.

        ``run`` runs ``model``, whose inputs have these ``names``. ``precision`` is that of the kernel which made the
        output. Raises what ``run`` raises.
        """
        feeds = dict(zip(names, self.inputs, strict=True))
        if precision not in self._nearby:
            # Digits that outliers cost are no excuse: only what a kernel does to the usual inputs is charged.
            self._nearby[precision] = [*nearby_outputs(model, feeds, run, precision, steps=self.usual)]
        nearby = [outputs[position] for outputs in self._nearby[precision]]
        expected, channels_first = self.outputs[position], self.rules[position].channels_first
        about: dict[str, Any] = {"channels_first": channels_first, "precision": precision}
        if is_tolerable(actual, expected, allowed, nearby, **about):
            return True
        if not self._precise:
            self._precise.append(precise_run(model, feeds))
        (outputs,) = self._precise
        if outputs is None:
            return False
        judge = np.asarray(outputs[position]).astype(actual.dtype)
        return is_tolerable(actual, judge, allowed, [*nearby, expected], **about)
