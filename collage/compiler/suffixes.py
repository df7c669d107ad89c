"""Plans of a model with a dynamic suffix: the placed prefix, and then an engine on the rest.

A detector, for example, is a network of static shapes that ends with a suppression of overlapping boxes. The number of
boxes differs from picture to picture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collage.check.compare import difference, dtypes_of, region_tolerance
from collage.compiler.executable import Executable
from collage.compiler.plan import Placed
from collage.errors import CollageError
from collage.frontend.model_artifacts import artifact_of
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.scopes import all_nodes, operators
from collage.frontend.read.shapes import model_inputs
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, load_suffix
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix

if TYPE_CHECKING:
    from collage.compiler.bench import Bench


class Suffixes:
    """Makes, checks and runs modules of such plans, in the process of the engines."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.names: dict[Placed, str] = {}
        """The names of opened plans in the process of the engines."""
        self.errors: dict[Placed, tuple[float, float]] = {}
        """The largest absolute and relative error of plans that were opened."""

    def parts(self, plan: Placed, prefix: Parts) -> Parts:
        """The parts of the plan's module: the prefix, and the suffix on the plan's engine."""
        bench, task = self._bench, self._bench.task
        model = bench.imported.suffix
        assert model is not None
        nodes, first = operators(model.graph), len(bench.model.graph.nodes)
        region = Region(
            backend=plan.suffix,
            ops=tuple(f"onnx.{node.op_type}" for node in nodes),
            nodes=tuple(range(first, first + len(nodes))),
            sources=tuple(node.name for node in nodes),
            inputs=(),
            outputs=(),
            threads=task.target.threads,
        )
        reads = tuple(info.name for info in model_inputs(model))
        writes = tuple(info.name for info in model.graph.output)
        suffix = Suffix(region, *bench.whole.ports(), reads, writes)
        versions = {**prefix.versions, plan.suffix: task.versions[plan.suffix]}
        program = prefix.program.followed_by(suffix)
        return replace(prefix, program=program, artifacts=[*prefix.artifacts, artifact_of(model)], versions=versions)

    def open(self, plan: Placed, executable: Executable) -> None:
        """Load the plan's module beside the engines, and compare its outputs with the reference's.

        Raises CollageError if it fails, or its outputs are other numbers; and what opening the prefix raises.
        """
        if plan in self.names:
            return
        bench = self._bench
        bench.runs.open(executable)
        engines, name = bench.whole.engines, f"{plan.label} {len(self.names)}"
        found = engines.open_parts(
            name, self.parts(plan, bench.assembler.parts(executable)), range(len(engines.inputs))
        )
        if found.outputs is None:
            raise CollageError(f"its static part fails before {plan.suffix}: {found.message}")
        expected = engines.expected().outputs
        if expected is not None:
            original = bench.whole.form.original
            rounded = any("Quantize" in node.op_type for node in all_nodes(original.graph))
            allowed = region_tolerance(dtypes_of([*engines.inputs, *expected]), rounded=rounded)
            drawn = Randomness(original).outputs
            absolute, relative = difference([*found.outputs], [*expected], rounded=rounded, drawn=drawn)
            if not relative <= allowed:
                raise CollageError(f"its outputs differ from ONNX Runtime's by {relative:.2g} of their scale")
            self.errors[plan] = absolute, relative
        self.names[plan] = name

    def load(self, plan: Placed, prefix: Parts, executor: Executor) -> tuple[Parts, SuffixExecutor]:
        """The plan's module with its suffix, loaded in this process. Raises CollageError."""
        parts = self.parts(plan, prefix)
        return parts, load_suffix(parts, executor, self._bench.task.backends)
