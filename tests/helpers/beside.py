"""A backend whose kernels are right and fast alone, and misbehave in a network."""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

import collage
from collage.backends.base import BackendKind, UnsupportedError
from collage.backends.onnxruntime import OnnxRuntime
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel, Session
from collage.kernel.options import BuildOptions
from tests.helpers.backends_for_tests import NumpyBackend


class _Bound:
    """A kernel on its buffers."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.reads = {array.ctypes.data for array in inputs}
        self.writes = {array.ctypes.data for array in outputs}
        self.calls = 0


_bound: weakref.WeakSet[_Bound] = weakref.WeakSet()


def _beside_others(own: _Bound) -> bool:
    """Whether another kernel wrote what this one reads: alone, nobody does."""
    return any(own.reads & other.writes for other in list(_bound) if other is not own)


def _misbehave(way: str, outputs: Sequence[Array]) -> None:
    if way == "segfaults":
        ctypes.string_at(8)
    elif way == "hangs":
        time.sleep(1000)
    elif way == "raises":
        raise RuntimeError("worn out")
    elif way == "errs":
        np.multiply(outputs[0], 1.1, out=outputs[0])


class TakeAll(collage.BasePatternRule):
    """Every operator by itself."""

    @staticmethod
    def op_rule(op: Any) -> bool | str:
        return True


class Beside(NumpyBackend):
    """Misbehaves in a ``way`` at a ``moment``: where others are loaded, too; in a network at once,
    in its third or seventh call, or where nobody takes the time of its launches. ``log`` gets a line for each codegen.
    """

    name: ClassVar[str] = "beside"
    victim: ClassVar[str] = "tanh"

    def __init__(self, way: str = "", moment: str = "", log: Path | None = None) -> None:
        self.way, self.moment, self.log = way, moment, log
        self.home = os.getpid()

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{os.getpid()} {self.name} {subgraph.nodes}\n")
        if self.way == "refuses":
            raise UnsupportedError("not today")
        return super().codegen(subgraph, options)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        kernel = super().load(artifact, options)
        is_victim = kernel.steps[0][0] == self.victim  # type: ignore[attr-defined]
        if is_victim and self.way == "loads elsewhere" and os.getpid() == self.home:
            raise OSError("not here")
        return _Misbehaving(kernel, self.way if is_victim else "", self.moment)


class Sober(Beside):
    """The same, and always right."""

    name: ClassVar[str] = "sober"


class Late(Sober):
    """Always right, and never the fastest."""

    name: ClassVar[str] = "late"

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Slowed(super().load(artifact, options))


class Engine(Beside):
    """The same as an engine, which takes any part of the model."""

    name: ClassVar[str] = "engine"
    kind: ClassVar[BackendKind] = BackendKind.ENGINE

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        from collage.patterns.regions import EngineRule, WindowRule

        return (EngineRule(), WindowRule())


class Slow(OnnxRuntime):
    """Always right, and never the fastest. ``log`` gets a line for each codegen."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def codegen_model(self, model: onnx.ModelProto, options: BuildOptions) -> bytes:
        if self.log is not None:
            names = " ".join(node.name for node in model.graph.node)
            with self.log.open("a") as file:
                file.write(f"{os.getpid()} {self.name} {names} {options.profile}\n")
        return super().codegen_model(model, options)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Slowed(super().load(artifact, options))

    def session(self, model: bytes, options: BuildOptions) -> Session:
        return _SlowedSession(super().session(model, options))


_SLOW_S = 200e-6
"""Many times what the other kernels take, also where the machine is slow just then."""


class _Slowed(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)

        def run() -> None:
            call()
            _dawdle()

        return run


class _SlowedSession(Session):
    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        outputs = self.session.run(inputs)
        _dawdle()
        return outputs


def _dawdle() -> None:
    end = time.perf_counter() + _SLOW_S
    while time.perf_counter() < end:
        pass


class _Misbehaving(Kernel):
    def __init__(self, kernel: Kernel, way: str, moment: str) -> None:
        self.kernel, self.way, self.moment = kernel, way, moment
        self.binds = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)
        own = _Bound(inputs, outputs)
        _bound.add(own)
        self.binds += 1
        due = self._due(own, self.binds)

        def run() -> None:
            own.calls += 1
            call()
            if due():
                _misbehave(self.way, outputs)

        return run

    def _due(self, own: _Bound, bind: int) -> Callable[[], bool]:
        moments = {
            "third call": lambda: own.calls == 3 and _beside_others(own),
            "among others": lambda: len(_bound) > 1,
            "at once": lambda: _beside_others(own),
            "seventh call": lambda: own.calls == 7 and _beside_others(own),
            "unnoted": lambda: bind == 1 and own.calls == 2 and _beside_others(own),
        }
        return moments.get(self.moment, lambda: False)
