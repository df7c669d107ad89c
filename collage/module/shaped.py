"""A model that is compiled for several sets of input shapes; a call runs the placement for its shapes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from collage.errors import InputError, UsageError
from collage.graph.dataflow import Array
from collage.graph.given_array import MismatchError, shape_of
from collage.graph.value_type import TENSOR
from collage.module.background import Background
from collage.module.batched import Batched, joinable
from collage.module.learned import LearnedShapes
from collage.module.module import CompiledModule
from collage.module.predict import as_array, predicted, probabilities, table_inputs
from collage.module.save import save_modules
from collage.module.torch_outputs import as_tensors, holds_tensor
from collage.report.report import Report
from collage.runtime.bound_engine import BoundEngine, BoundSuffix
from collage.runtime.inputs import by_name, extents, in_order, shape_arguments, shapes_text
from collage.runtime.original import Fallback
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort

if TYPE_CHECKING:
    from collage.runtime.bound import BoundCall

log = logging.getLogger(__name__)

Shapes = tuple[tuple[int, ...], ...]
"""The extents of each input, in the model's order."""


class ShapedModule:
    """A module that is called like a ``CompiledModule``, and runs the placement for exactly its inputs' shapes.

    Calls with other shapes run on ONNX Runtime, with one warning. Where there is no fallback, they raise InputError.
    """

    def __init__(self, modules: Sequence[CompiledModule], fallback: Fallback | None) -> None:
        """``modules`` are of one model. Raises UsageError when two of them have the same shapes."""
        self.modules = tuple(modules)
        self.fallback = fallback
        self.learned: LearnedShapes | None = None
        """Counts the shapes of calls, if ``collage.load`` was asked to."""
        self._fixed = modules[0].report.fixed
        self._background = Background(len(modules) + 1)  # as each module, and the fallback, runs on its own
        self._by_shapes: dict[Shapes, CompiledModule] = {}
        for module in modules:
            shapes = tuple(extents(port) for port in module.program.model_inputs)
            if self._by_shapes.setdefault(shapes, module) is not module:
                raise UsageError(f"two sets of shapes are the same: {shapes_text(module.program)}.")

    @property
    def inputs(self) -> dict[str, str]:
        """The names of the inputs, with the dtype and each shape."""
        return self._types([module.inputs for module in self.modules])

    @property
    def report(self) -> Report:
        """The report of the first placement."""
        return self.modules[0].report

    @property
    def placement(self) -> list[dict[str, Any]]:
        """The regions of the first placement (see ``CompiledModule.placement``)."""
        return self.modules[0].placement

    @property
    def outputs(self) -> dict[str, str]:
        """The names of the outputs, with the dtype and each shape."""
        return self._types([module.outputs for module in self.modules])

    @staticmethod
    def _types(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
        return {name: " or ".join(dict.fromkeys(types[name] for types in each)) for name in each[0]}

    def for_shapes(self, shapes: Mapping[str, Sequence[int]]) -> CompiledModule:
        """The module for exactly these shapes, by input. Raises InputError when there is none."""
        ports = self.modules[0].program.model_inputs
        wanted = tuple(tuple(shape) for shape in in_order(ports, (), shapes, self._fixed))
        return self._by_shapes.get(wanted) or self._refuse(wanted)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run the model: returns one array, or a tuple in the model's order when there are several outputs.

        Tensors of PyTorch give tensors. Raises InputError for a wrong name, dtype or shape.
        """
        outputs = tuple(self._run(args, named).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """Run the model on inputs by name, in a mapping or as keywords, and return the outputs by name.

        Raises InputError like a call.
        """
        return self._run((), by_name(inputs, named))

    async def run_async(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """``run`` in a thread, for event loops, as that of a ``CompiledModule``."""
        return await self._background.run(partial(self.run, by_name(inputs, named)))

    def batched(self, max_batch: int, max_wait_ms: float = 2.0) -> Batched:
        """An object that joins concurrent requests, as that of a ``CompiledModule``.

        A call is padded to the next batch that the module was compiled for; rows of other shapes, and more rows than
        the largest batch, go to the fallback.
        """
        programs = [module.program for module in self.modules]
        joint = joinable(programs, self.run, any_rows=False, fallback=self.fallback is not None, fixed=self._fixed)
        return Batched(joint, max_batch, max_wait_ms)

    def predict(self, table: Any) -> Array:
        """The predictions for a table, as those of a ``CompiledModule``."""
        return predicted(self.run(self._table(table)), self.report)

    def predict_proba(self, table: Any) -> Array:
        """The probability of each class for each row of a table, as that of a ``CompiledModule``."""
        name = probabilities(self.report)
        return as_array(self.run(self._table(table))[name])

    def _table(self, table: Any) -> dict[str, Any]:
        return table_inputs(self.modules[0].program.model_inputs, table, self.report.columns)

    def _run(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        ports = self.modules[0].program.model_inputs
        values = in_order(ports, args, named, self._fixed)
        shapes = _shapes(ports, values)
        ordered = dict(zip([port.name for port in ports], values, strict=True))
        module = self._by_shapes.get(shapes)
        if self.learned is not None and (module is not None or self.fallback is not None):
            self.learned.count({port.name: shape for port, shape in zip(ports, shapes, strict=True)})
        if module is not None:
            return module.run(ordered)
        if self.fallback is None:
            self._refuse(shapes)
        self.fallback.tell_once(
            partial(
                log.warning,
                "%s was not compiled for %s, but for %s. Such calls run on ONNX Runtime. Compile it for these "
                "shapes, too (--shape, or compile_shapes in Python). This warning is shown once",
                self.modules[0].report.model,
                self._describe(shapes),
                self._placed(),
            )
        )
        outputs = self.fallback.run(ordered)
        return dict(zip(outputs, as_tensors(outputs.values()), strict=True)) if holds_tensor(values, {}) else outputs

    def _refuse(self, shapes: Shapes) -> NoReturn:
        raise InputError(
            f"the module was not compiled for {self._describe(shapes)}, but for "
            f"{self._placed()}. Compile it again for these, too (--shape, or compile_shapes in Python)."
        )

    def _describe(self, shapes: Shapes) -> str:
        return shape_arguments([port.name for port in self.modules[0].program.model_inputs], shapes)

    def _placed(self) -> str:
        return "; ".join(shapes_text(module.program) for module in self.modules)

    def trace(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The time line of a warm run; see ``CompiledModule.trace``. Raises InputError for other shapes."""
        ports = self.modules[0].program.model_inputs
        shapes = _shapes(ports, in_order(ports, (), inputs, self._fixed))
        return (self._by_shapes.get(shapes) or self._refuse(shapes)).trace(inputs)

    def bind(
        self, inputs: Mapping[str, Array] | None = None, outputs: Mapping[str, Array] | None = None
    ) -> BoundCall | BoundEngine | BoundSuffix:
        """A call on fixed arrays of the placement for the inputs' shapes, or of the first one without inputs.

        See ``CompiledModule.bind``. Raises InputError for other shapes, too.
        """
        module = self.for_shapes({name: array.shape for name, array in inputs.items()}) if inputs else self.modules[0]
        return module.bind(inputs, outputs)

    def clone(self) -> ShapedModule:
        """A module with clones of the modules and the same fallback."""
        found = ShapedModule([module.clone() for module in self.modules], self.fallback)
        found.learned = self.learned
        return found

    def summary(self) -> dict[str, Any]:
        """The JSON contract of ``show --json``: the first module's summary, with all summaries under ``shapes``."""
        return summarise([m.summary() for m in self.modules], self.fallback is not None)

    def save(self, path: str | Path) -> None:
        """Write one file that ``collage.load`` runs in a fresh process. An existing file is replaced atomically."""
        modules = [(each.stored, each.report) for each in self.modules]
        save_modules(Path(path), modules, shaped=True, model=None if self.fallback is None else self.fallback.model)

    def __repr__(self) -> str:
        placed = "; ".join(f"{shapes_text(each.program)}: {each.report.time_text}" for each in self.modules)
        return f"<collage module {self.modules[0].report.model} for {placed}>"

    def _repr_html_(self) -> str:
        from collage.report.show_html import as_notebook_view

        return as_notebook_view([each.shown for each in self.modules])


def summarise(found: Sequence[Mapping[str, Any]], fallback: bool) -> dict[str, Any]:
    """The first summary, with all of them under ``shapes``."""
    return {**found[0], "shapes": list(found), "fallback": "onnxruntime" if fallback else None}


def _shapes(ports: Sequence[Port | ValuePort], values: Sequence[Any]) -> Shapes:
    return tuple(_shape(port, value) for port, value in zip(ports, values, strict=True))


def _shape(port: Port | ValuePort, value: Any) -> tuple[int, ...]:
    """The value's extents, as ``extents`` has them: none for sequences and optional values. Raises InputError."""
    if isinstance(port, ValuePort) and port.type.kind != TENSOR:
        return ()
    try:
        return shape_of(value)
    except MismatchError as error:
        raise InputError(f"input {port.name} {error}.") from error
