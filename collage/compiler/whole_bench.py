"""Engines on the whole model: its forms, the inputs that they are tried on, and what trials have shown."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx

from collage.backends.engine import as_engine, prepared
from collage.compiler.plan import FOLDED, WRITTEN, Whole
from collage.compiler.task import Task
from collage.core.progress import Progress
from collage.core.typed import typed
from collage.errors import ModelError
from collage.frontend.model_artifacts import artifact_of, fits_an_artifact
from collage.frontend.random_inputs import random_value
from collage.frontend.random_rows import random_rows
from collage.frontend.read.apart import weight_files, without_weights
from collage.frontend.read.index_limits import accepted_numbers, index_limits
from collage.frontend.read.load import as_written
from collage.frontend.read.shapes import Shapes, model_inputs
from collage.frontend.read.value_types import value_type
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed
from collage.measure.engines import Engines
from collage.measure.worker.process import Workers
from collage.measure.worker.whole_protocol import EngineTrial
from collage.measure.worker.whole_worker import whole_options
from collage.measure_db.database import Database
from collage.measure_db.keys import Fact, FactKey
from collage.measure_db.results import GATE
from collage.report.report import NodeReport
from collage.runtime.parts import Parts
from collage.schedule.program import make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort


@dataclass(frozen=True)
class WholeForm:
    """The model as Collage loaded it, or as its author wrote it. ``example_inputs`` are the user's inputs by name.

    Other inputs are made up from ``seed``. They have the ``shapes`` (elements per axis, by name) where the model leaves
    extents open, and all their elements are the one of ``numbers`` where that has one; or they are ``rows`` of tables.
    Those of a model that stays open have the ``sizes``.
    """

    original: onnx.ModelProto
    example_inputs: Mapping[str, Any]
    seed: int
    shapes: Shapes = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    sizes: Shapes = field(default_factory=dict)

    @cached_property
    def data(self) -> bytes | Framed:
        """The model as an artifact (see ``collage.kernel.model_artifact``)."""
        return artifact_of(self.original)

    @cached_property
    def digest(self) -> str:
        """A hash of the model and of the inputs that it is tried on."""
        digest = hashed(self.data)
        for name in sorted(self.example_inputs):
            # Pickled, since the text of a large array leaves out most of its elements.
            digest.update(pickle.dumps((name, self.example_inputs[name])))
        for made_up in (self.shapes, self.numbers, self.sizes):
            if made_up:
                digest.update(repr(sorted(made_up.items())).encode())
        return digest.hexdigest()

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """Values of all inputs in the model's order: the user's, and random ones for the others.

        Raises ModelError for an input of a type that cannot be made up.
        """
        rng = np.random.default_rng(self.seed)
        if self.rows:
            return random_rows(self.original, self.rows, rng)
        found = {}
        for port in self.ports[0]:
            name = port.name
            if name in self.example_inputs:
                found[name] = self.example_inputs[name]
                continue
            kind = replace(port.type, shape=tuple(self.sizes[name])) if name in self.sizes else port.type
            try:
                found[name] = random_value(kind, rng)
            except TypeError as error:
                raise ModelError(f"Input {name}: {error}; give one to compile with.") from error
            if name in self.numbers:
                found[name] = np.full_like(found[name], self.numbers[name])
        return found

    @property
    def ports(self) -> tuple[tuple[ValuePort, ...], tuple[ValuePort, ...]]:
        """The model's inputs, with ``shapes`` where there are any, and its outputs. Raises ModelError."""
        sides = model_inputs(self.original), self.original.graph.output
        inputs, outputs = ([ValuePort(i.name, value_type(i.type)) for i in infos] for infos in sides)
        for at, port in enumerate(inputs):
            if port.name in self.shapes:
                inputs[at] = replace(port, type=replace(port.type, shape=tuple(self.shapes[port.name])))
        return tuple(inputs), tuple(outputs)


log = logging.getLogger(__name__)

_TRIAL: Fact[EngineTrial] = Fact("engine_trial", asdict, partial(typed, EngineTrial))
_HOSTILE: Fact[tuple[str, bool]] = Fact("engine_on_hostile", list, lambda found: (str(found[0]), bool(found[1])))
_EDITION = "trial 5"
"""The edition of how engines are compared with references."""


class WholeBench:
    """Tries engines on the whole model. Engines are loaded when the database does not know what is asked.

    ``trials`` has what was found, by the plan's label; ``made`` counts the plans that were tried now.
    """

    def __init__(
        self,
        task: Task,
        database: Database,
        workers: Workers,
        show: Callable[[Progress], None],
        form: WholeForm | None = None,
    ) -> None:
        """Without a ``form`` it is the model as it was loaded, on numbers that it compares its inputs with."""
        source = task.source
        self.task = task
        about = source.original, source.example_inputs, task.options.seed
        numbers = accepted_numbers(source.original)
        self.form = form or WholeForm(*about, numbers=numbers, rows=source.rows, sizes=source.sizes)
        self.found = EngineTrial()
        self.made = 0
        self.cannot_run = False
        """Whether measuring has failed. What is not known of an engine then counts as right on finite inputs only."""
        self._folded: WholeForm | None = None
        self._database = database
        self._workers = workers
        self._show = show
        self._engines: Engines | None = None

    def close(self) -> None:
        """Put the process of the engines away. Closing twice does nothing."""
        if self._engines is not None:
            self._engines.close()

    @property
    def engines(self) -> Engines:
        """The engines' process. Raises ModelError if inputs cannot be made up, or the model is too large."""
        if self._engines is None:
            task, form = self.task, self.form
            if not fits_an_artifact(form.original):
                raise ModelError("Engines cannot take the model whole: its constants exceed protobuf's 2 GiB.")
            inputs = [*form.inputs.values()]
            about = task.backends, task.target.threads, task.options.time_limit_s, self._workers
            self._engines = Engines(form.original, inputs, *about, form.data)
            if self._folded is not None:
                self._engines.add_form(FOLDED, self._folded.original)
        return self._engines

    def others(self) -> list[WholeBench]:
        """Benches for other inputs, and for the model just as its author wrote it, if engines take neither of these.

        The last is for models which shapes cannot be written into. An example is a model with a network for each of
        two sampling rates, and a length that only one of the two accepts.
        """
        source, forms = self.task.source, [self.form]
        if source.written is not None and not source.rows:
            untouched = as_written(source.written, weight_files(source.original))
            if without_weights(untouched) != without_weights(source.original):
                forms.append(replace(self.form, original=untouched, shapes=source.shapes))
        if self.form.numbers:
            forms = [each for form in forms for each in (form, replace(form, numbers={}))]
        about = self.task, self._database, self._workers, self._show
        return [WholeBench(*about, form=form) for form in forms[1:]]

    def add_folded(self, model: onnx.ModelProto) -> None:
        """Let plans name the simplified model, whose inputs and outputs are those of the model."""
        if self._folded is not None:
            return
        self._folded = WholeForm(model, self.form.example_inputs, self.form.seed)
        if self._engines is not None:
            self._engines.add_form(FOLDED, model)

    def trial(self, plans: Sequence[Whole], meanwhile: Callable[[], None] | None = None) -> EngineTrial:
        """The trial of these plans, from the database or made now. Raises ModelError as ``engines`` does.

        If it is made now, ``meanwhile`` is called first, which begins something in a thread.
        """
        labels = ", ".join(plan.label for plan in plans)
        key = self._trial_key(plans)
        found = key.look_up(self._database)
        if found is None:
            self._show(Progress("measure", 0, 1, f"the whole model on {labels}"))
            if meanwhile is not None:
                meanwhile()
            found = self.engines.trial(plans)
            self.made += len(plans)
            key.record(self._database, found)
            for plan in plans if len(plans) > 1 else ():
                self._trial_key([plan]).record(self._database, found.of(plan.label))
        notes = [note for note in found.notes if note not in self.found.notes]
        self.found = EngineTrial(
            {**self.found.errors, **found.errors},
            {**self.found.refused, **found.refused},
            (*self.found.loaded, *found.loaded),
            (*self.found.notes, *notes),
        )
        return found

    def on_hostile(self, plan: Whole) -> tuple[str, bool]:
        """What is wrong with the plan on inputs of other kinds, or "", and if it is right on finite ones only.

        It is found once for an engine and a form, whatever the other settings.
        """
        usual = Whole(plan.engine, plan.form)
        key = _HOSTILE.at(self.mark(usual.label, self._form(usual.form).digest))
        if self.cannot_run:
            return key.look_up(self._database) or ("", True)
        return self._database.remember(key, lambda: self.engines.on_hostile(usual))

    def _trial_key(self, plans: Sequence[Whole]) -> FactKey[EngineTrial]:
        labels = ", ".join(plan.label for plan in plans)
        return _TRIAL.at(self.mark(labels, *sorted({self._form(p.form).digest for p in plans})))

    def mark(self, *about: str) -> str:
        """A database key for a fact about the model on the engines; ``about`` is what else it depends on."""
        task = self.task
        used = ", ".join(f"{name} {task.keyed_versions[name]}" for name in sorted(task.engines))
        limit_s = task.options.time_limit_s
        limit = "" if limit_s == type(task.options).time_limit_s else f" within {limit_s:g} s"
        machine = f"{task.target.measured_on}; {task.target.threads} threads"
        return "; ".join((self.form.digest, *about, machine, used, f"gate {GATE}, {_EDITION}{limit}"))

    def digest(self, plan: Whole) -> str:
        """What identifies the plan in keys of races."""
        return f"{plan.label} {self._form(plan.form).digest}"

    def parts(self, plan: Whole, us: float, nodes: Sequence[NodeReport] = ()) -> Parts:
        """The parts of the plan's module, whose call takes so many microseconds. ``nodes`` are those of the report.

        Indices that the model's inputs give are checked before each run: not every engine does that itself.
        """
        region = Region(
            backend=plan.engine,
            ops=tuple(node.op for node in nodes),
            nodes=tuple(range(len(nodes))),
            sources=tuple(node.source for node in nodes),
            inputs=(),
            outputs=(),
            split=plan.split,
            threads=self.task.target.threads,
            cost_us=us,
            exclusive=True,
            profile=plan.profile,
            original=plan.form == WRITTEN,
            finite_only=Whole(plan.engine, plan.form).label in self.found.errors and self.on_hostile(plan)[1],
            precision=plan.precision,
        )
        inputs, outputs = self.ports(plan.form)
        reads, writes = ([port.name for port in side] for side in (inputs, outputs))
        suffix = Suffix(region, inputs, outputs, tuple(reads), tuple(writes))
        program = make_program((), (), (), {}, self.task.target.threads).followed_by(suffix)
        versions = {plan.engine: self.task.versions[plan.engine]}
        original = self.task.source.as_loaded.serialised()
        return Parts(program, [self._data(plan)], {}, self.task.target, versions, original)

    def ports(self, form: str = WRITTEN) -> tuple[tuple[ValuePort, ...], tuple[ValuePort, ...]]:
        """The inputs of the whole model, with the numbers of rows that they index, and its outputs."""
        inputs, outputs = self._form(form).ports
        limits = index_limits(self.form.original)
        return tuple(replace(port, rows=limits.get(port.name)) for port in inputs), outputs

    def _data(self, plan: Whole) -> bytes | Framed:
        form, engine = self._form(plan.form), as_engine(self.task.backends[plan.engine])
        options = whole_options(plan, self.task.target.threads)
        return prepared(engine, form.original, options) or form.data

    def _form(self, name: str) -> WholeForm:
        if name == FOLDED:
            assert self._folded is not None
            return self._folded
        return self.form

    def inputs_for(self, names: Sequence[str], given: Sequence[np.ndarray]) -> list[object]:
        """Inputs of the whole model, in its order, with the given ones of these names."""
        return [*{**self.form.inputs, **dict(zip(names, given, strict=True))}.values()]
