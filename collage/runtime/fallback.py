"""The original model in ONNX Runtime, for shapes that nothing was placed for."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from collage.backends.base import BuildOptions, Session
from collage.backends.onnxruntime import OnnxRuntime
from collage.errors import CollageError, InputError
from collage.graph.dataflow import Array, np_dtype
from collage.runtime.frames import Buffer
from collage.schedule.program import Port
from collage.schedule.tail import ValuePort


class Fallback:
    """Runs a serialised ONNX model whose inputs may have open dimensions; it is loaded on first use."""

    def __init__(
        self,
        model: Buffer,
        inputs: Sequence[Port | ValuePort],
        outputs: Sequence[Port | ValuePort],
        threads: int,
    ) -> None:
        """``inputs`` and ``outputs`` tell names and dtypes; their shapes are those of some other placement."""
        self.model = model
        self._inputs, self._outputs = inputs, outputs
        self._threads = threads
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._process = os.getpid()
        self._warned = False
        _made.add(self)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name for inputs by name, of any shapes that the model takes.

        Calls may run side by side. Raises InputError for shapes or dtypes that it does not take.
        """
        arrays = {port.name: _checked(port, inputs[port.name]) for port in self._inputs}
        session = self._loaded()
        try:
            values = session.run(list(arrays.values()))
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = " ".join(str(error).split())[:400]
            shapes = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
            raise InputError(f"the model does not run on inputs of shapes {shapes}: {text}") from None
        return dict(zip([port.name for port in self._outputs], values, strict=True))

    def first_use(self) -> bool:
        """Whether nobody has asked before: a warning is given once."""
        with self._lock:
            first, self._warned = not self._warned, True
        return first

    def _loaded(self) -> Session:
        if self._process != os.getpid():
            if self._session is not None:
                raise CollageError(
                    "this module ran on ONNX Runtime before the process forked, and ONNX Runtime's threads did not "
                    "come along: load it again in the child, or start the child by spawning."
                )
            self._process = os.getpid()
        with self._lock:
            if self._session is None:
                options = BuildOptions(threads=self._threads)
                self._session = OnnxRuntime().session(bytes(self.model), options)
            return self._session


def _renew_locks() -> None:
    """In a forked child: another thread of the parent may have held one."""
    for each in list(_made):
        each._lock = threading.Lock()


_made: WeakSet[Fallback] = WeakSet()
os.register_at_fork(after_in_child=_renew_locks)


def _checked(port: Port | ValuePort, value: Any) -> Array:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    wanted = np_dtype(port.type.dtype)
    if array.dtype != wanted and isinstance(value, (list, tuple, int, float)):
        array = array.astype(wanted)  # a Python list has no dtype of its own
    if array.dtype != wanted:
        raise InputError(
            f"input {port.name} has dtype {array.dtype}, the model takes {wanted}: convert it with "
            f".astype({wanted.name!r})."
        )
    return array
