"""The worker's side of models that engines run whole: they are loaded, run, and compared with each other."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from collage.backends.base import UnsupportedError
from collage.backends.engine import Engine, as_engine, prepared, session_on
from collage.core.library_text import library_text
from collage.core.quiet import quiet_machine
from collage.frontend.engine_models import in_one_piece
from collage.frontend.model_artifacts import artifact_in
from collage.frontend.read.apart import filled, load_model
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.weights import forget_borrowed
from collage.kernel.frames import Framed
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions, Variant
from collage.measure.timing.interleave import take_turn
from collage.measure.worker.protocol import Ask
from collage.measure.worker.whole_protocol import WRITTEN, InitWhole, Opened, Whole
from collage.runtime.executor import Executor
from collage.runtime.parts import load_parts
from collage.runtime.suffix import SuffixExecutor

if TYPE_CHECKING:
    from collage.frontend.session import Reference


class WholeWorker:
    """One model, the engines that have loaded it, and modules made of it."""

    def __init__(self, init: InitWhole) -> None:
        forget_borrowed()  # the files of the model before this one
        self._init = init
        self._sessions: dict[str, Session | Executor | SuffixExecutor] = {}
        self._reference: tuple[onnx.ModelProto, Reference] | None = None
        self._input_positions: dict[str, tuple[int, ...]] = {}

    def answer(self, message: Ask) -> object:
        """What the method gives, or Opened with a message if it raises: engines and references may raise anything."""
        try:
            return getattr(self, message.method)(*message.args)
        except BaseException as error:
            return Opened(None, message=_one_line(error))

    def open(self, plan: Whole) -> Opened:
        """Load the model in an engine and run it twice: what the engine keeps between calls shows in the second run.

        The plan's label stands for it from then on.
        """
        try:
            engine, path = as_engine(pickle.loads(self._init.backends[plan.engine])), self._path(plan.form)
            options = whole_options(plan, self._init.threads)
            model = artifact_in(path)
            self._check(engine, model, path)
            ready = prepared(engine, load_model(path), options) if plan.precision else None
            self._sessions[plan.label] = session_on(engine, ready or model, options)
        except UnsupportedError as refusal:
            return Opened(None, loaded=False, message=str(refusal))
        except BaseException as error:
            return Opened(None, loaded=False, message=_one_line(error))
        self._run(plan.label)
        return Opened(tuple(self._run(plan.label)))

    def open_parts(self, name: str, path: str, inputs: tuple[int, ...]) -> Opened:
        """Load a module whose parts are pickled in a file, and run it twice; ``name`` stands for it from then on.

        ``inputs`` are the positions of its inputs among the model's.
        """
        try:
            parts = pickle.loads(Path(path).read_bytes())
            names = {region.backend for region in parts.program.executed} & self._init.backends.keys()
            backends = {name: pickle.loads(self._init.backends[name]) for name in names}
            self._sessions[name] = load_parts(parts, backends)
            self._input_positions[name] = inputs
        except BaseException as error:
            return Opened(None, loaded=False, message=_one_line(error))
        self._run(name)
        return Opened(tuple(self._run(name)))

    def close(self, names: tuple[str, ...]) -> None:
        """Forget what was opened under these names."""
        for name in names:
            self._sessions.pop(name, None)

    def run(self, name: str, inputs: tuple[Any, ...] | None = None) -> Opened:
        """Run what is open on inputs, by default the usual ones."""
        return Opened(tuple(self._run(name) if inputs is None else self._sessions[name].run(inputs)))

    def turn(self, name: str, settle_s: float, turn_s: float, by_row: bool) -> list[float]:
        """Nanoseconds of the calls of a turn with what is open (see ``Engines.turn``)."""
        self._reference = None  # outputs were compared before, and its memory may be needed
        run, inputs = self._sessions[name].run, self._init.inputs
        some = cycle([[each[at : at + 1] for each in inputs] for at in range(min(map(len, inputs)))] if by_row else [])
        with quiet_machine():
            return take_turn((lambda: run(next(some))) if by_row else partial(self._run, name), settle_s, turn_s)

    def expect(self, inputs: tuple[Any, ...] | None = None) -> Opened:
        """Run ONNX Runtime without optimisations, which loads the model once for several inputs."""
        model, reference = self._loaded()
        return Opened(tuple(reference.run(self._feeds(model, inputs))))

    def expect_standard(self) -> Opened:
        """Run the reference implementation of ONNX."""
        from onnx.reference import ReferenceEvaluator

        model = filled(load_model(self._path(WRITTEN)))
        return Opened(tuple(ReferenceEvaluator(model).run(None, self._feeds(model))))

    def nearby(self) -> list[list[Any]]:
        """What ONNX Runtime without optimisations makes of inputs or weights that are changed in their last bits."""
        from collage.check.sample import nearby_outputs  # imports onnx's own evaluator
        from collage.frontend.session import Reference

        model, reference = self._loaded()

        def run(each: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
            return (reference if each is model else Reference(each)).run(feeds)

        return [*nearby_outputs(model, self._feeds(model), run)]

    def _loaded(self) -> tuple[onnx.ModelProto, Reference]:
        """The model as written, in the reference."""
        from collage.frontend.session import Reference

        if self._reference is None:
            path = self._path(WRITTEN)
            model = load_model(path)
            self._reference = model, Reference(model, path)
        return self._reference

    def _feeds(self, model: onnx.ModelProto, inputs: tuple[Any, ...] | None = None) -> dict[str, Any]:
        names = [info.name for info in model_inputs(model)]
        return dict(zip(names, self._init.inputs if inputs is None else inputs, strict=True))

    def _path(self, form: str) -> Path:
        return Path(self._init.folder) / form / "model.onnx"

    @staticmethod
    def _check(engine: Engine, model: bytes | Framed, path: Path) -> None:
        """Raises what the engine says against the model."""
        if isinstance(model, Framed) and engine.takes_apart:
            engine.check_proto(load_model(path))
        else:
            engine.check_model(in_one_piece(model))

    def _run(self, name: str) -> list[Any]:
        inputs = self._init.inputs
        if name in self._input_positions:
            inputs = tuple(inputs[position] for position in self._input_positions[name])
        return self._sessions[name].run(inputs)


def whole_options(plan: Whole, threads: int) -> BuildOptions:
    """What an engine's session on the whole model is loaded with."""
    variant = Variant(precision=plan.precision)
    return BuildOptions(threads=threads, exclusive=True, variant=variant, profile=plan.profile)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {library_text(error)}"
