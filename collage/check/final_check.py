"""The last check: a module's outputs against those of ONNX Runtime, without optimisation, on the original model.

It uses other numbers than the checks of single kernels did, and numbers of several kinds (see ``input_kinds``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx

from collage.check.compare import Rule, difference, of_shared_digits, region_tolerance
from collage.check.input_kinds import WHOLE_KINDS
from collage.check.metrics import OUTPUT, Metric
from collage.check.sample import USUAL, Sample
from collage.check.whole_verdict import of_convolution
from collage.core.deadline import Deadline
from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.model import Model
from collage.frontend.random_inputs import free_integers, indexed_rows, random_inputs
from collage.frontend.relax.op_kinds import rounds
from collage.frontend.session import Reference, reference_run
from collage.graph.dataflow import Array

log = logging.getLogger(__name__)

Run: TypeAlias = Callable[[Sequence[Array]], "tuple[Sequence[Array], bool]"]
"""Runs a module: takes inputs in the model's order, and gives outputs in order, and whether a guard tripped."""

BEYOND_GUARDS = "the model's usual values are beyond the range of its guarded kernels"
"""The complaint about a module whose every call would be a careful run."""

_SEED = 0x5EED
"""Combined with the seed of a compile, so that the numbers are not those that kernels were compared on."""

_BUDGET_S = 60.0
"""Seconds for the reference on inputs of other kinds than the usual one."""

_REDUCED = 0.25
"""The error that outputs of a module of reduced precision may have here, on inputs of whatever kind. It only tells
wrong modules from right ones."""


@dataclass(frozen=True)
class Finding:
    """The largest absolute and relative error on usual inputs, and a complaint ("" where nothing is wrong).

    ``ordinary`` tells that the module is wrong on inputs that networks are made for (see ``InputKind``).
    """

    absolute: float
    relative: float
    complaint: str
    ordinary: bool = True


@dataclass(frozen=True)
class FinalCheck:
    """What is expected of a module. Make it with ``of``; ``names`` are those of the inputs.

    A module that ``may_decide_otherwise`` may be off by any finite error on other inputs than the usual ones. With
    ``of_outputs`` errors on the usual ones are shares of the largest magnitude in all of an output.
    """

    original: onnx.ModelProto
    names: tuple[str, ...]
    samples: tuple[Sample, ...]
    may_decide_otherwise: bool = False
    of_outputs: bool = False

    @staticmethod
    def of(original: onnx.ModelProto, model: Model, seed: int, deadline: Deadline) -> FinalCheck:
        """Run the original model on inputs of all kinds, which are made from ``seed``.

        Raises ModelError where ONNX Runtime does not run it on usual inputs, and BudgetOverError after ``deadline``.
        """
        names = tuple(model.input_names)
        try:
            samples = tuple(_samples(original, model, seed, deadline))
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = library_text(error)
            raise ModelError(f"ONNX Runtime cannot run the model: {text}") from error
        return FinalCheck(original, names, samples)

    def of_reduced(self, precisions: Iterable[str], *, of_outputs: bool = False) -> FinalCheck:
        """The check of modules of reduced precisions, whose errors are checked on samples (see ``accuracy``).

        On inputs that a network is not made for, such as outliers, it may decide otherwise for a few roundings. Where
        one large number costs all others their digits, that is no excuse. ``of_outputs`` is for users whose own metric
        does not look at single elements: a channel that is next to zero may be off by more than it holds then.
        """

        def reduced(rule: Rule) -> Rule:
            return replace(rule, allowed=max(rule.allowed, _REDUCED)) if rule.allowed else rule

        samples = (replace(each, rules=tuple(map(reduced, each.rules))) for each in self.samples)
        lenient = not of_shared_digits(precisions)
        return replace(self, samples=tuple(samples), may_decide_otherwise=lenient, of_outputs=of_outputs)

    def look(self, run: Run) -> Finding:
        """Run the module on each sample, and compare. A module whose guards trip on usual inputs is refused, too."""
        absolute = relative = 0.0
        for sample in self.samples:
            outputs, careful = run(sample.inputs)
            if sample.usual and careful:
                return Finding(absolute, relative, BEYOND_GUARDS)
            for position, (actual, rule) in enumerate(zip(outputs, sample.rules, strict=True)):
                expected, error = sample.outputs[position], sample.expected(position).error(actual)
                if sample.usual and not rule.drawn:
                    absolute = max(absolute, difference(actual, expected, rounded=rule.rounded)[0])
                    relative = max(relative, error)
                    if self.of_outputs:
                        error = Metric(OUTPUT).measured({USUAL: expected}, {USUAL: actual})
                elif self.may_decide_otherwise and not sample.usual and np.isfinite(error):
                    continue
                if error <= rule.allowed or self._excuses(sample, position, actual, error):
                    continue
                where = "" if sample.usual else f" where inputs hold {sample.kind}"
                how = f"by {error:.2g} of their scale" if np.isfinite(error) else "in NaN, type or integers"
                complaint = (
                    f"outputs differ from ONNX Runtime's{where}: output {position} {how} ({rule.allowed:.0e} allowed)"
                )
                return Finding(absolute, relative, complaint, sample.ordinary)
        return Finding(absolute, relative, "")

    def _excuses(self, sample: Sample, position: int, actual: Array, error: float) -> bool:
        return sample.may_be_rounding(position, error) and sample.excuses(
            position, actual, sample.rules[position].allowed, self.original, self.names, reference_run
        )


def _samples(original: onnx.ModelProto, model: Model, seed: int, deadline: Deadline) -> Iterator[Sample]:
    graph, rules = model.graph, tuple(output_rules(model))
    rng = np.random.default_rng([_SEED, seed])
    usual = random_inputs(model, rng)
    reference = Reference(original)

    def run(inputs: Sequence[Array]) -> tuple[Array, ...]:
        deadline.check()
        return tuple(reference.run(dict(zip(model.input_names, inputs, strict=True))))

    yield Sample(USUAL, tuple(usual), run(usual), True, rules)
    indices = [indexed_rows(model, value) is not None for value in graph.inputs]
    free = free_integers(graph, graph.inputs, range(len(graph.nodes)), indices)
    started = time.monotonic()
    for kind in WHOLE_KINDS:
        inputs = kind.inputs(usual, free, rng)
        if inputs is None:
            continue
        if time.monotonic() - started > _BUDGET_S:
            log.info("%s: no time is left to check on %s", model.name, kind.name)
            return
        try:
            yield Sample(kind.name, inputs, run(inputs), kind.ordinary, rules)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            log.info("%s: ONNX Runtime refuses %s: %s", model.name, kind.name, library_text(error))


def output_rules(model: Model) -> Iterator[Rule]:
    """The rule for each output, which follows from the dtypes and the roundings on the way to it."""
    graph = model.graph
    for output, name in zip(graph.outputs, model.output_names, strict=True):
        producer = graph.values[output].producer
        values = {output}
        nodes = []
        for node in reversed(graph.nodes[: 0 if producer is None else producer + 1]):
            if values.intersection(node.outputs):
                nodes.append(node)
                values.update((*node.inputs, *node.outputs))
        rounded = any(rounds(node.op) for node in nodes)
        allowed = region_tolerance((graph.type_of(v).dtype for v in values), rounded=rounded)
        drawn = any(node.id in model.random_nodes for node in nodes)
        yield Rule(allowed, rounded, of_convolution(model.onnx.graph, name), drawn)
