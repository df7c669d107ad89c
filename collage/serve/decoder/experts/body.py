"""What one expert computes of its rows, without steps that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array
from collage.serve.decoder.experts.values import ExpertStep, Operand
from collage.serve.decoder.onnx_graph import OnnxGraph


@dataclass(frozen=True)
class Body:
    """The steps on which ``made`` depends, in order."""

    steps: tuple[ExpertStep, ...]
    made: Operand

    @staticmethod
    def of(steps: Sequence[ExpertStep], made: Operand) -> Body:
        """The body of an expert: those of its steps on which ``made`` depends."""
        wanted, waiting = set[int](), [made]
        while waiting:
            each = waiting.pop()
            if each.kind == "step" and each.step not in wanted:
                wanted.add(each.step)
                waiting += steps[each.step].operands
        places = {step: place for place, step in enumerate(sorted(wanted))}

        def moved(each: Operand) -> Operand:
            return Operand("step", step=places[each.step]) if each.kind == "step" else each

        kept = (steps[step] for step in places)
        return Body(
            tuple(
                ExpertStep(each.operator, each.attributes, tuple(map(moved, each.operands))) for each in kept
            ),
            moved(made),
        )

    def all(self, kind: str) -> list[Operand]:
        """The operands of a kind."""
        return [each for step in self.steps for each in step.operands if each.kind == kind]

    def common(self, graph: OnnxGraph) -> object:
        """What all experts of a mixture must have in common: everything but the parameters' numbers."""

        def of(each: Operand) -> object:
            if each.kind == "weight":
                dims = tuple(graph.weights[each.name].dims)
                return each.turned, dims if each.number is None else dims[1:]
            if each.kind == "same":
                return number_of(graph, each).tobytes()
            return each

        return [(step.operator, step.attributes, tuple(map(of, step.operands))) for step in self.steps]


def number_of(graph: OnnxGraph, operand: Operand) -> Array:
    """The number of one element that all experts have in common, without axes."""
    found = graph.constants.get(operand.name)
    return (array_of(graph.weights[operand.name]) if found is None else found).reshape(())
