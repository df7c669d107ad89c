"""The compiled module, which can be called, saved to a file, and shown as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.errors import UsageError, refuse_fixed
from collage.graph.dataflow import Array
from collage.module.background import Background
from collage.module.batched import Batched, joinable
from collage.module.learned import LearnedShapes
from collage.module.predict import as_array, predicted, probabilities, table_inputs
from collage.module.save import save_modules
from collage.module.torch_outputs import as_tensors, holds_tensor
from collage.report.report import Report
from collage.runtime.bound_engine import BoundEngine, BoundSuffix
from collage.runtime.executor import Executor
from collage.runtime.inputs import by_name, check_rows, collect_inputs, extents
from collage.runtime.parts import Parts
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.program import Program

if TYPE_CHECKING:
    from collage.report.page_data import ShownModule
    from collage.runtime.bound import BoundCall


def summary_of(report: Report, program: Program) -> dict[str, Any]:
    """A placement's summary (``Report.summary``) with the shapes that it is for, and the inputs that it assumes."""
    shapes = {port.name: list(extents(port)) for port in program.model_inputs}
    return {"inputs": shapes, "assumes": program.assumptions, **report.summary(program.regions)}


NOT_PICKLED = (
    "a compiled module is not pickled or copied: clone() shares its kernels, and save(path) writes a file that "
    "collage.load(path) reads in another process."
)


class CompiledModule:
    """A compiled model. Call it with arrays by position or name; ``run`` takes and returns dictionaries."""

    def __init__(
        self,
        parts: Parts,
        report: Report,
        executor: Executor | SuffixExecutor,
        *,
        stored: Parts | None = None,
        instead: str = "",
    ) -> None:
        self.parts = parts
        """The program, the kernels' artifacts and the constants, which run."""
        self.stored = parts if stored is None else stored
        """Those that the module's file holds."""
        self.instead = instead
        """The reason why the original model runs instead of the placement, or ""."""
        self.learned: LearnedShapes | None = None
        """Counts the shapes of calls, if ``collage.load`` was asked to."""
        self.report = report
        self.executor = executor
        """Runs the program on given inputs."""
        self._background = Background(1)  # as one run is in turn at a time

    @property
    def inputs(self) -> dict[str, str]:
        """The names of the inputs, with dtype and shape."""
        return {port.name: str(port.type) for port in self.parts.program.model_inputs}

    @property
    def outputs(self) -> dict[str, str]:
        """The names of the outputs, with dtype and shape."""
        return {port.name: str(port.type) for port in self.parts.program.model_outputs}

    @property
    def program(self) -> Program:
        """The launch list with its memory plan."""
        return self.parts.program

    @property
    def placement(self) -> list[dict[str, Any]]:
        """The regions in launch order: backend, ops, nodes, layout, threads, stream, cost_us."""
        return [region.summary() for region in self.parts.program.regions]

    def summary(self) -> dict[str, Any]:
        """The JSON contract of ``show --json``."""
        return summary_of(self.report, self.parts.program)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run the model: returns one array, or a tuple in the model's order when there are several outputs.

        Inputs are numpy arrays, tensors of PyTorch or anything with DLPack. If one of them is a tensor, the outputs are
        tensors, too, on the CPU. Where the model takes other values, inputs are lists for
        sequences, None for optionals, and arrays of Python strings. Raises InputError for a wrong name, shape or dtype.
        """
        outputs = self._run(args, named)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """Run the model on inputs by name, in a mapping or as keywords, and return the outputs by name.

        Raises InputError like a call.
        """
        outputs = self._run((), by_name(inputs, named))
        return {port.name: array for port, array in zip(self.parts.program.model_outputs, outputs, strict=True)}

    async def run_async(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """``run`` in a thread, for event loops, which go on meanwhile.

        Several may wait at once, and are served in the order in which they came. One that is cancelled before its turn
        is not run. Inputs must not change before it returns. Raises what ``run`` raises.
        """
        return await self._background.run(partial(self.run, by_name(inputs, named)))

    def batched(self, max_batch: int, max_wait_ms: float = 2.0) -> Batched:
        """An object whose ``run`` and ``run_async`` join concurrent requests along their first axis to one call.

        A call has at most ``max_batch`` rows, and waits for at most ``max_wait_ms`` milliseconds for more. A module of
        any number of rows takes as many as there are. A call of any other is padded to the batch that the module was
        compiled for. Use it as a context manager, or close it. Raises UsageError if the first axis of an input or
        output is not the batch.
        """
        joint = joinable([self.program], self.run, any_rows=self.report.rows > 0, fixed=self.report.fixed)
        return Batched(joint, max_batch, max_wait_ms)

    def _run(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        outputs = self.executor.run(self._collected(args, named))
        return as_tensors(outputs) if holds_tensor(args, named) else outputs

    def predict(self, table: Any) -> Array:
        """The predictions for a table: a number or a class for each row, or several numbers.

        ``table`` is an array, nested lists, a sparse matrix, a DataFrame or anything else that numpy makes an array of,
        in any numeric dtype; it is converted to the input's as the model's library does it. A model with an input for
        each column, or with names of its columns, takes a DataFrame with them in any order, or a mapping from names to
        columns. The result is the output that the file names (``collage.predict`` in an ONNX model's metadata), or the
        first one; of rows x 1 values it has one axis. Labels have the dtype that the model's library gives.

        Raises InputError for a table that does not fit.
        """
        return predicted(self.run(self._table(table)), self.report)

    def predict_proba(self, table: Any) -> Array:
        """The probability of each class for each row of a table (see ``predict``), as rows x classes.

        The result is the output that the file names (``collage.predict_proba`` in an ONNX model's metadata), or the
        second one of a classifier. Raises UsageError for a model without probabilities, and InputError for a table that
        does not fit.
        """
        name = probabilities(self.report)
        return as_array(self.run(self._table(table))[name])

    def trace(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The time line of one warm run; written as JSON, Chrome's trace viewer and Perfetto can read it.

        Raises InputError like ``run``, and UsageError where an engine runs the model, or its dynamic suffix.
        """
        from collage.runtime.trace import trace

        # A clone, since other threads may be calling this module.
        own = self._launches("no launches to draw a time line of").clone()
        return trace(own, self._collected((), inputs))

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLED)

    def _table(self, table: Any) -> dict[str, Any]:
        return table_inputs(self.parts.program.model_inputs, table, self.report.columns)

    def _collected(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        program = self.parts.program
        found = collect_inputs(program.model_inputs, args, named, program.assumed, self.report.fixed)
        if self.report.rows and len(found) > 1:
            check_rows(program.model_inputs, found)
        if self.learned is not None:
            ports = zip(program.model_inputs, found, strict=True)
            self.learned.count({port.name: each.shape for port, each in ports if hasattr(each, "shape")})
        return found

    def clone(self) -> CompiledModule:
        """The same module with an arena of its own, so that calls of the two do not wait for each other's copies.

        Kernels and their weights are shared. Of all clones one at a time runs on the team of threads, and one at a time
        on an engine that runs the whole model.
        """
        executor = self.executor.clone()
        found = CompiledModule(self.parts, self.report, executor, stored=self.stored, instead=self.instead)
        found.learned = self.learned
        return found

    def bind(
        self, inputs: Mapping[str, Array] | None = None, outputs: Mapping[str, Array] | None = None
    ) -> BoundCall | BoundEngine | BoundSuffix:
        """A call on fixed arrays, which kernels read and write without a copy.

        It is a ``BoundCall``, or where an engine runs the whole model a ``BoundEngine``, or where it runs a dynamic
        suffix, or makes outputs of unknown shapes, a ``BoundSuffix``. A module of any number of rows needs all inputs,
        whose rows it is bound to.

        Arrays that are not given are made, of zeros. Raises InputError for an array of a wrong name, dtype or shape,
        and for one that is not contiguous, does not start at a 64-byte boundary, or overlaps another. Engines that make
        outputs take inputs at any place, and raise it for what they could not read in place: nested lists, and strings
        in other arrays than those of Python strings (dtype object). Raises UsageError for outputs that an engine makes
        during the call: those of a dynamic suffix, and of unknown shapes.
        """
        from collage.runtime.bound import bind

        refuse_fixed(inputs or {}, self.report.fixed)
        if isinstance(self.executor, SuffixExecutor):
            if self.report.rows and (bound := self.executor.bind_rows(inputs or {}, outputs or {})) is not None:
                return bound
            if self.executor.writes_in_place:
                return self.executor.bind_engine(inputs or {}, outputs or {})
            if outputs:
                what = "dynamic suffix" if self.parts.program.launches else "whole graph"
                raise UsageError(f"{self._engine} runs the model's {what} and makes the outputs: give inputs only.")
            return self.executor.bind(inputs or {})
        return bind(self.executor, inputs or {}, outputs or {})

    def _launches(self, missing: str) -> Executor:
        if isinstance(self.executor, SuffixExecutor):
            what = "the model's dynamic suffix" if self.parts.program.launches else "the model"
            raise UsageError(f"{self._engine} runs {what} whole: there are {missing}.")
        return self.executor

    @property
    def _engine(self) -> str:
        return self.parts.program.executed[-1].backend

    def save(self, path: str | Path) -> None:
        """Write one file that ``collage.load`` runs in a fresh process. An existing file is replaced atomically."""
        save_modules(Path(path), [(self.stored, self.report)])

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for region in self.parts.program.executed:
            counts[region.backend] = counts.get(region.backend, 0) + 1
        mix = ", ".join(f"{count}x {name}" for name, count in counts.items())
        time = "instead of its placement" if self.instead else self.report.time_text
        return f"<collage module {self.report.model}: {mix}; {time}>"

    @property
    def shown(self) -> ShownModule:
        """The module as its page shows it."""
        from collage.module.file import suffix_model
        from collage.report.page_data import ShownModule

        return ShownModule(self.report, self.parts.program, suffix_model(self.parts))

    def _repr_html_(self) -> str:
        from collage.report.show_html import as_notebook_view

        return as_notebook_view([self.shown])
