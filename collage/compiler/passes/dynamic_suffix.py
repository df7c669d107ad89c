"""DynamicSuffix: the part of a model before shapes depend on data is placed, and an engine runs the rest.

A detector, for example, is a network of static shapes that ends with a suppression of overlapping boxes. The number of
boxes differs from picture to picture. The two parts, one after the other, are compared with the fastest engine on the
whole model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.course import Course
from collage.compiler.events import Noted
from collage.compiler.pipeline import compiled
from collage.compiler.state import Compilation, Context, Source
from collage.compiler.suffix_comparison import SuffixComparison
from collage.errors import ModelError, NoPlacementError
from collage.frontend.original import AsLoaded
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.rewrite.split import split
from collage.measure.timing.effort import QUICK


@dataclass(frozen=True)
class DynamicSuffix:
    """Splits the model where shapes begin to depend on data, compiles the prefix, and selects.

    ``problem`` is why the model was not placed. The engine on the whole model stays selected in a quick compile, and
    where ``problem`` is not that shapes depend on data.
    """

    problem: Exception

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection where the two parts are faster. Raises DatabaseError and MeasurementError."""
        form, problem = compilation.form, self.problem
        if form is None or form.original is not compilation.source.original:
            return compilation
        if not isinstance(problem, DataDependentError) or context.options.effort is QUICK:
            return compilation
        if not compilation.result.timings:  # there is nothing to compare with
            return compilation
        declared = compilation.source.as_loaded.declared
        parts = split(simplify(form.original, halves=context.halves, declared=declared), problem.nodes)
        if parts is None:
            return compilation
        wanted = {info.name for info in parts.prefix.graph.input}
        example_inputs = {n: v for n, v in form.example_inputs.items() if n in wanted}
        source = Source(parts.prefix, AsLoaded.of(parts.prefix), compilation.source.name, example_inputs)
        # The course of the prefix is not that of the whole: its times are those of a part.
        course: Course[Compilation] = Course(context.course.show, context.course.deadline)
        # A tolerance is for the outputs of the whole model, which are not those of a part.
        apart = replace(context, course=course, options=replace(context.options, tolerance=0.0))
        try:
            prefix = compiled(apart, source)
        except (ModelError, NoPlacementError) as error:
            return compilation.told(Noted(f"its static part has no placement: {error}"))
        return SuffixComparison(context, compilation, prefix, parts, form, problem).select()
