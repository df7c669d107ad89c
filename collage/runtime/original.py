"""The model as it was loaded, in ONNX Runtime, for calls that a placement cannot answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from collage.backends.onnxruntime import OnnxRuntime
from collage.errors import CollageError
from collage.kernel.frames import Artifact, Framed
from collage.kernel.kernel import Session
from collage.kernel.model_artifact import model_artifact
from collage.kernel.options import BuildOptions


class OriginalModel:
    """An artifact of an ONNX model that is loaded on first use. Several threads may call it at the same time."""

    def __init__(self, model: Artifact, options: BuildOptions) -> None:
        self.model = model
        self._options = options
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._process = os.getpid()
        self._told = False
        _made.add(self)

    @property
    def is_loaded(self) -> bool:
        """Whether a call has needed the model."""
        return self._session is not None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs of the model in order. Raises whatever ONNX Runtime raises, and CollageError after a fork."""
        return self._loaded().run(inputs)

    def tell_once(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` the first time only, so that a warning is given once."""
        with self._own_lock():
            first, self._told = not self._told, True
        if first:
            tell()

    def _loaded(self) -> Session:
        with self._own_lock():
            if self._session is None:
                self._session = _session(model_artifact(self.model), self._options)
            return self._session

    def _own_lock(self) -> threading.Lock:
        if self._process != os.getpid():
            if self._session is not None:
                raise CollageError(
                    "this module ran on ONNX Runtime before the process forked, and ONNX Runtime's threads did not "
                    "come along: load it again in the child, or start the child by spawning."
                )
            self._process = os.getpid()
        return self._lock


def _renew_locks() -> None:
    """Make new locks in a forked child, since another thread of the parent may have held one."""
    for each in list(_made):
        each._lock = threading.Lock()


_made: WeakSet[OriginalModel] = WeakSet()
os.register_at_fork(after_in_child=_renew_locks)


def _session(model: bytes | Framed, options: BuildOptions) -> Session:
    """A session of the model. Operators that ONNX Runtime lacks are replaced by those that define them."""
    try:
        return OnnxRuntime().session(model, options)
    except Exception:  # ONNX Runtime's exceptions share no base class but Exception
        import onnx

        from collage.frontend.model_artifacts import in_one_piece
        from collage.frontend.rewrite.expand import expand

        proto = onnx.load_from_string(in_one_piece(model))
        expanded = expand(proto)
        if expanded is proto:
            raise
    return OnnxRuntime().session(expanded.SerializeToString(), options)
