"""Backends that do what broken libraries do, and a few that only look odd."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from collage.backends.base import UnsupportedError
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from tests.helpers.backends_for_tests import NumpyBackend


class _Around(Kernel):
    """A kernel whose calls go through its backend's ``run``."""

    def __init__(self, backend: Misbehaving, kernel: Kernel) -> None:
        self.backend, self.kernel = backend, kernel

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)
        state: dict[str, Any] = {"runs": 0}
        return lambda: self.backend.run(call, inputs, outputs, state)


class Misbehaving(NumpyBackend):
    """Right, but for what a subclass does around the run; ``only`` restricts that to one operator."""

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Around(self, super().load(artifact, options))

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        call()


class Slow(Misbehaving):
    """Right, and takes a millisecond longer than others."""

    name: ClassVar[str] = "slow"
    longer_s: ClassVar[float] = 0.001

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        time.sleep(self.longer_s)
        call()


class Slowest(Slow):
    """The same, four milliseconds longer."""

    name: ClassVar[str] = "slowest"
    longer_s: ClassVar[float] = 0.004


class Segfault(Misbehaving):
    name: ClassVar[str] = "segfault"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        print("about to read address 8", file=sys.stderr, flush=True)
        ctypes.string_at(8)


class Hang(Misbehaving):
    name: ClassVar[str] = "hang"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        while True:
            time.sleep(10)


class HangWithLock(Misbehaving):
    """Hangs without letting any other Python thread run."""

    name: ClassVar[str] = "hang-with-lock"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        ctypes.PyDLL(None).sleep(1000)


class Wrong(Misbehaving):
    name: ClassVar[str] = "wrong"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        call()
        np.multiply(outputs[0], 1.001, out=outputs[0])


class Unwritten(Misbehaving):
    name: ClassVar[str] = "unwritten"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        last = outputs[0].reshape(-1)[-3:].copy()
        call()
        outputs[0].reshape(-1)[-3:] = last


class Forgetful(Misbehaving):
    """Right once: accumulates into what the last run left."""

    name: ClassVar[str] = "accumulates"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        call()
        state["runs"] += 1
        np.multiply(outputs[0], state["runs"], out=outputs[0])


class WritesInputs(Misbehaving):
    name: ClassVar[str] = "writes-inputs"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        call()
        inputs[0][...] = 1


class Bomb(Misbehaving):
    name: ClassVar[str] = "bomb"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        held = []
        while True:
            held.append(np.empty(1 << 24))


class Killed(Misbehaving):
    """What the kernel's out-of-memory killer does."""

    name: ClassVar[str] = "killed"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Terminates(Misbehaving):
    """An uncaught std::bad_alloc in a library's thread."""

    name: ClassVar[str] = "terminates"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()


class Exits(Misbehaving):
    name: ClassVar[str] = "exits"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        os._exit(7)


class SystemExits(Misbehaving):
    name: ClassVar[str] = "system-exits"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        sys.exit("enough")


class RaisesLater(Misbehaving):
    """Fails in the third run only, when it is already being timed."""

    name: ClassVar[str] = "raises-later"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        call()
        state["runs"] += 1
        if state["runs"] > 2:
            raise RuntimeError("worn out")


class BreaksPipes(Misbehaving):
    """Closes every file of the process, its channel to the parent too."""

    name: ClassVar[str] = "closes-files"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        os.closerange(0, 1000)
        time.sleep(30)


class Chatty(Misbehaving):
    """Prints to stdout and reads stdin, from Python and from C."""

    name: ClassVar[str] = "chatty"

    def run(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], state: dict[str, Any]) -> None:
        if state["runs"] < 3:
            print("hello " * 100, flush=True)
            os.write(1, b"hello from C\n" * 100)
            sys.stdin.readline()
        state["runs"] += 1
        call()


class RaisesInCodegen(NumpyBackend):
    name: ClassVar[str] = "raises-codegen"

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        raise ValueError("no such\nlayout")


class RaisesInLoad(NumpyBackend):
    name: ClassVar[str] = "raises-load"

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        raise OSError("missing symbol")


class RaisesInBind(NumpyBackend):
    name: ClassVar[str] = "raises-bind"

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        class Unbound(Kernel):
            def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
                raise TypeError("odd buffers")

        return Unbound()


class Unsupported(NumpyBackend):
    name: ClassVar[str] = "unsupported"

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        raise UnsupportedError("needs a 4-D tensor")


ALL = [
    Segfault(), Hang(), HangWithLock(), Wrong(), Unwritten(), Forgetful(), WritesInputs(), Bomb(), Killed(),
    Terminates(), Exits(), SystemExits(), RaisesLater(), BreaksPipes(), Chatty(), RaisesInCodegen(),
    RaisesInLoad(), RaisesInBind(), Unsupported(), NumpyBackend(),
]  # fmt: skip
