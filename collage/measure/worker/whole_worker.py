"""The worker's side of models that engines run whole: they are loaded, run, and compared with each other."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.engine import Engine, as_engine, prepared, session_on
from collage.check.compare import slightly_changed
from collage.core.library_text import library_text
from collage.frontend.model_artifacts import artifact_in, in_one_piece
from collage.frontend.read.apart import filled, load_model, with_changed
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.weights import WeightFiles, forget_borrowed
from collage.kernel.frames import Framed
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions, Variant
from collage.measure.machine.quiet import quiet_machine
from collage.measure.timing.interleave import take_turn
from collage.measure.worker.protocol import Ask
from collage.measure.worker.whole_protocol import WRITTEN, InitWhole, Opened, Whole
from collage.runtime.executor import Executor
from collage.runtime.parts import load_parts
from collage.runtime.suffix import SuffixExecutor


class WholeWorker:
    """One model, the engines that have loaded it, and modules made of it."""

    def __init__(self, init: InitWhole) -> None:
        forget_borrowed()  # the files of the model before this one
        self._init = init
        self._sessions: dict[str, Session | Executor | SuffixExecutor] = {}
        self._reference: _Reference | None = None
        self._input_positions: dict[str, tuple[int, ...]] = {}

    def answer(self, message: Ask) -> object:
        """What the method gives, or Opened with a message if it raises: engines and references may raise anything."""
        try:
            return getattr(self, message.method)(*message.args)
        except BaseException as error:
            return Opened(None, message=_one_line(error))

    def open(self, plan: Whole, unchecked: bool = False) -> Opened:
        """Load the model in an engine and run it twice: what the engine keeps between calls shows in the second run.

        The plan's label stands for it from then on. ``unchecked`` is for an engine whose arithmetic is too narrow.
        """
        try:
            engine, path = as_engine(pickle.loads(self._init.backends[plan.engine])), self._path(plan.form)
            options = whole_options(plan, self._init.threads)
            model = artifact_in(path)
            if not unchecked:
                try:
                    self._check(engine, model, path)
                except UnsupportedError as refusal:
                    return Opened(None, loaded=False, message=str(refusal), narrow=True)
            ready = prepared(engine, load_model(path), options) if plan.precision else None
            self._sessions[plan.label] = session_on(engine, ready or model, options)
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

    def turn(self, name: str, settle_s: float, turn_s: float) -> list[float]:
        """Nanoseconds of the calls of a turn with what is open (see ``interleave.take_turn``)."""
        self._reference = None  # outputs were compared before, and its memory may be needed
        with quiet_machine():
            return take_turn(partial(self._run, name), settle_s, turn_s)

    def expect(self, inputs: tuple[Any, ...] | None = None) -> Opened:
        """Run ONNX Runtime without optimisations, which loads the model once for several inputs."""
        if self._reference is None:
            self._reference = _Reference(self._path(WRITTEN))
        return Opened(tuple(self._reference.run(self._init.inputs if inputs is None else inputs)))

    def expect_standard(self) -> Opened:
        """Run the reference implementation of ONNX."""
        return Opened(tuple(_standard(self._path(WRITTEN), self._init.inputs)))

    def expect_changed(self, seed: int) -> Opened:
        """Run ONNX Runtime with weights that are changed in their last bits."""
        return Opened(tuple(_with_changed_weights(self._path(WRITTEN), self._init.inputs, seed)))

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


class _Reference:
    """A model in ONNX Runtime without optimisations, for inputs in the model's order."""

    def __init__(self, file: Path) -> None:
        from collage.frontend.session import Reference

        model = load_model(file)
        self._names = [info.name for info in model_inputs(model)]
        self._session = Reference(model, file)

    def run(self, inputs: tuple[Any, ...]) -> list[Any]:
        return self._session.run(dict(zip(self._names, inputs, strict=True)))


def _with_changed_weights(file: Path, inputs: tuple[Any, ...], seed: int) -> list[Any]:
    from collage.frontend.session import Reference

    rng, model = np.random.default_rng(seed), load_model(file)
    names = [info.name for info in model_inputs(model)]
    with WeightFiles() as files:
        changed = with_changed(model, lambda array: slightly_changed(array, rng), files)
        return Reference(changed).run(dict(zip(names, inputs, strict=True)))


def _standard(file: Path, inputs: tuple[Any, ...]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    model = filled(load_model(file))
    names = [each.name for each in model_inputs(model)]
    return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {library_text(error)}"
