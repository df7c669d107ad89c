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
from collage.core.child_process import Failure
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
from collage.measure.worker.whole_protocol import (
    WRITTEN,
    CloseWhole,
    InitWhole,
    Opened,
    OpenParts,
    OpenWhole,
    ReferWhole,
    RunWhole,
    TurnWhole,
    Whole,
)
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

    def answer(self, message: Any) -> object:
        """The reply to a message of the protocol."""
        if isinstance(message, OpenWhole):
            return self._open(message.plan, message.unchecked)
        if isinstance(message, OpenParts):
            return self._open_parts(message)
        if isinstance(message, CloseWhole):
            for name in message.names:
                self._sessions.pop(name, None)
            return Opened(())
        if isinstance(message, ReferWhole):
            return self._refer(message.standard)
        if isinstance(message, RunWhole):
            return self._other(message)
        if isinstance(message, TurnWhole):
            return self._turn(message)
        return Failure(f"unknown message {type(message).__name__}")

    def _path(self, form: str) -> Path:
        return Path(self._init.folder) / form / "model.onnx"

    def _open(self, plan: Whole, unchecked: bool) -> Opened:
        """Load the model in an engine and run it twice: what the engine keeps between calls shows in the second run."""
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
        except BaseException as error:  # an engine may raise anything
            return Opened(None, loaded=False, message=_one_line(error))
        return self._ran(plan.label)

    def _turn(self, message: TurnWhole) -> list[float] | Opened:
        self._reference = None  # outputs were compared before, and its memory may be needed
        try:
            with quiet_machine():
                return take_turn(partial(self._run, message.name), message.settle_s, message.turn_s)
        except BaseException as error:  # an engine may raise anything
            return Opened(None, message=_one_line(error))

    @staticmethod
    def _check(engine: Engine, model: bytes | Framed, path: Path) -> None:
        """Raises what the engine says against the model."""
        if isinstance(model, Framed) and engine.takes_apart:
            engine.check_proto(load_model(path))
        else:
            engine.check_model(in_one_piece(model))

    def _open_parts(self, message: OpenParts) -> Opened:
        try:
            parts = pickle.loads(Path(message.path).read_bytes())
            names = {region.backend for region in parts.program.executed} & self._init.backends.keys()
            backends = {name: pickle.loads(self._init.backends[name]) for name in names}
            self._sessions[message.name] = load_parts(parts, backends)
            self._input_positions[message.name] = message.inputs
        except BaseException as error:  # backends may raise anything
            return Opened(None, loaded=False, message=_one_line(error))
        return self._ran(message.name)

    def _ran(self, name: str) -> Opened:
        try:
            self._run(name)
            return Opened(tuple(self._run(name)))
        except BaseException as error:  # an engine may raise anything
            return Opened(None, message=_one_line(error))

    def _other(self, message: RunWhole) -> Opened:
        name, seed = message.name, message.weights_seed
        inputs = self._init.inputs if message.inputs is None else message.inputs
        try:
            if name:
                return Opened(tuple(self._sessions[name].run(inputs)))
            if seed is not None:
                return Opened(tuple(_with_changed_weights(self._path(WRITTEN), inputs, seed)))
            return Opened(tuple(self._onnx_runtime(inputs)))
        except BaseException as error:  # an engine may raise anything
            return Opened(None, message=_one_line(error))

    def _run(self, name: str) -> list[Any]:
        inputs = self._init.inputs
        if name in self._input_positions:
            inputs = tuple(inputs[position] for position in self._input_positions[name])
        return self._sessions[name].run(inputs)

    def _refer(self, standard: bool) -> Opened:
        inputs = self._init.inputs
        try:
            return Opened(
                tuple(_standard(self._path(WRITTEN), inputs) if standard else self._onnx_runtime(inputs))
            )
        except BaseException as error:  # both references may raise anything
            return Opened(None, loaded=False, message=_one_line(error))

    def _onnx_runtime(self, inputs: tuple[Any, ...]) -> list[Any]:
        """Outputs of ONNX Runtime without optimisations, which loads the model once for several inputs."""
        if self._reference is None:
            self._reference = _Reference(self._path(WRITTEN))
        return self._reference.run(inputs)


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
