"""Which engines are right about a whole model: their outputs are compared with those of a judge.

The first judge is ONNX Runtime without optimisations. Where that cannot run the model, or an engine disagrees with it,
onnx's own evaluator decides, which is the standard's word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from collage.check.compare import difference, dtypes_of, is_tolerable, region_tolerance, tolerance
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.scopes import all_nodes
from collage.graph.dataflow import Array

JUDGES = ("ONNX Runtime without optimisations", "onnx's reference evaluator")
_SINGLE = frozenset(
    "Abs Add BatchNormalization Cast Clip Div Elu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Max Min Mish "
    "Mul Neg PRelu Pow Relu Selu Sigmoid Softplus Sqrt Sub Tanh".split()
)
"""Operators after a convolution that leave an element where it is."""


@dataclass(frozen=True)
class Verdict:
    """Errors of the engines that are right (as in Trial), what is wrong with the others, and notes."""

    errors: Mapping[str, tuple[float, float]]
    wrong: Mapping[str, str]
    notes: tuple[str, ...]

    @staticmethod
    def unchecked(engines: Iterable[str], reason: str) -> Verdict:
        """All engines count as right, since there is nothing to compare with."""
        return Verdict(dict.fromkeys(engines, (0.0, 0.0)), {}, (f"outputs are not checked: {reason}",))


def compared(
    model: onnx.ModelProto,
    inputs: Sequence[Any],
    outputs: Mapping[str, Sequence[Any]],
    expected: Sequence[Any],
    judge: str,
    nearby: Callable[[], Sequence[Sequence[Any]]] = tuple,
) -> Verdict:
    """The verdict of a judge, who expects these outputs of the model for the inputs, on each engine's outputs.

    ``nearby`` gives outputs for inputs that differ in their last bits. Engines whose outputs are as good as float
    arithmetic lets them be are right, too: the outputs of a detector for noise, for example, depend on last bits.
    """
    drawn = Randomness(model).outputs
    outputs = {name: _without_ties(made, expected) for name, made in outputs.items()}
    errors = {name: difference(made, expected, drawn=drawn) for name, made in outputs.items()}
    allowed = region_tolerance(dtypes_of([*inputs, *expected]))
    notes = [] if judge == JUDGES[0] else [f"outputs are checked with {judge}"]
    if drawn:
        notes.append("outputs that depend on random numbers are checked for type, shape and finite numbers only")
    right = {name for name, error in errors.items() if error[1] <= allowed}
    if not right and allowed == tolerance("float64"):  # it is better than nothing, and the note tells
        right = {name for name, error in errors.items() if error[1] <= tolerance("float32")}
        notes += ["computes in float32 what the model has in float64"] if right else []
    if not right and any("Quantize" in node.op_type for node in all_nodes(model.graph)):
        steps = {name: difference(made, expected, rounded=True, drawn=drawn) for name, made in outputs.items()}
        right = {name for name, error in steps.items() if error[1] <= region_tolerance((), rounded=True)}
        notes += ["rounds to integers another way"] if right else []
        errors = {name: steps[name] if name in right else error for name, error in errors.items()}
    if len(right) < len(outputs) and all(isinstance(each, np.ndarray) for each in expected):
        around = nearby()
        if around:
            right |= {
                name for name in outputs.keys() - right if _is_tolerable(model, outputs[name], expected, around, drawn)
            }
    wrong = {
        name: f"inaccurate: differs from {judge} by {error[1]:.2g} of the scale ({allowed:.0e} allowed)"
        for name, error in errors.items()
        if name not in right
    }
    return Verdict({name: errors[name] for name in errors if name in right}, wrong, tuple(notes))


def _without_ties(made: Sequence[Any], expected: Sequence[Any]) -> Sequence[Any]:
    """The outputs, with the labels that are expected of rows whose two best scores differ by no more than roundings.

    Labels are an array of integers or texts, a number for each row, beside an array of scores, rows x classes. ONNX
    Runtime itself chooses by the number of threads there, since that decides the order of sums.
    """
    arrays = [each for each in expected if isinstance(each, np.ndarray) and each.ndim == 2]
    scores = [each for each in arrays if each.dtype.kind == "f" and each.shape[1] > 1]
    if len(scores) != 1 or len(made) != len(expected):
        return made
    best = np.sort(scores[0], axis=1)
    margin = tolerance(scores[0].dtype.name) * np.maximum(1.0, np.abs(best[:, -1]))
    tied = best[:, -1] - best[:, -2] <= margin
    return [_tied(each, wanted, tied) for each, wanted in zip(made, expected, strict=True)]


def _tied(made: Any, expected: Any, tied: Array) -> Any:
    kinds = all(isinstance(each, np.ndarray) and each.dtype.kind in "iOU" for each in (made, expected))
    if not kinds or made.shape != tied.shape or made.shape != expected.shape or made.dtype != expected.dtype:
        return made
    return np.where(tied, expected, made)


def _is_tolerable(
    model: onnx.ModelProto,
    outputs: Sequence[Any],
    expected: Sequence[Array],
    nearby: Sequence[Sequence[Any]],
    drawn: Collection[int],
) -> bool:
    """Whether all outputs are as good as float arithmetic lets them be (see ``compare.is_tolerable``)."""
    allowed = region_tolerance(dtypes_of(expected))

    def is_good(position: int, made: Any) -> bool:
        if position in drawn:
            return difference([made], [expected[position]], drawn=(0,))[1] == 0
        channels_first = of_convolution(model.graph, model.graph.output[position].name)
        around = [each[position] for each in nearby]
        return isinstance(made, np.ndarray) and is_tolerable(
            made, expected[position], allowed, around, channels_first=channels_first
        )

    return all(is_good(*each) for each in enumerate(outputs))


def of_convolution(graph: onnx.GraphProto, output: str) -> bool:
    """Whether a convolution makes the output, perhaps followed by functions of single elements."""
    producers = {name: node for node in graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in _SINGLE:
        node = next((producers[name] for name in node.input if name in producers), None)
    return node is not None and node.op_type in ("Conv", "ConvTranspose")
