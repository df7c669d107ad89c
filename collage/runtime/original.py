"""The model as it was loaded, in ONNX Runtime: it answers calls that a placement cannot answer."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from collage.backends.onnxruntime import UNOPTIMISED, OnnxRuntime
from collage.core.library_text import library_text
from collage.errors import CollageError, InputError
from collage.graph.dataflow import Array
from collage.graph.given_array import MismatchError
from collage.graph.magnitudes import LIMIT, is_scanned
from collage.graph.value_type import TENSOR, ValueType
from collage.kernel.frames import Artifact, Framed
from collage.kernel.kernel import Session
from collage.kernel.model_artifact import model_artifact
from collage.kernel.options import BuildOptions
from collage.native.scan import Scanned, are_all_ordinary, new_flag, scan_call
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort

log = logging.getLogger(__name__)


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

        from collage.frontend.engine_models import in_one_piece
        from collage.frontend.rewrite.expand import expand

        proto = onnx.load_from_string(in_one_piece(model))
        expanded = expand(proto)
        if expanded is proto:
            raise
    return OnnxRuntime().session(expanded.SerializeToString(), options)


class Careful:
    """The original model in ONNX Runtime without optimisations, which outputs are checked against.

    It is loaded when it is first needed.
    """

    def __init__(self, model: Artifact, threads: int) -> None:
        self._original = OriginalModel(model, BuildOptions(threads=threads, profile=UNOPTIMISED))

    @property
    def is_loaded(self) -> bool:
        """Whether a call has needed it."""
        return self._original.is_loaded

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs in order, for the caller's inputs in order. The first run logs a warning.

        Raises CollageError with ONNX Runtime's message.
        """
        self._original.tell_once(_warn)
        try:
            return list(self._original.run(inputs))
        except CollageError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = library_text(error)
            raise CollageError(f"ONNX Runtime fails on these inputs: {text}") from error


def are_ordinary(values: Sequence[Any]) -> bool:
    """Whether all numbers in the values, of any type, are finite and within the limits of a scan."""
    return are_all_ordinary([*_arrays(values)])


def unusual_finder(read: Sequence[Any]) -> Callable[[], bool]:
    """A function that says whether there are unusual numbers in the values, which may have changed since."""
    scanned = [each for each in read if isinstance(each, np.ndarray) and is_scanned(each.dtype.name)]
    if not all(map(is_plain, read)):
        return lambda: not are_ordinary(read)
    if not scanned:
        return lambda: False
    flag = new_flag()
    scan = scan_call([*map(Scanned, scanned)], flag)

    def look() -> bool:
        flag[0] = 0
        scan()
        return bool(flag[0])

    return look


def is_plain(value: Any) -> bool:
    """Whether the value is a contiguous array of numbers, whose memory stays where it is."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and bool(value.flags.c_contiguous)


def _arrays(values: Sequence[Any]) -> Iterator[Array]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


_WHY = (
    f"an input leads to NaN, infinities, magnitudes above {LIMIT:.0e} or, if values are stored in 8 bits, numbers far "
    "beyond the samples, or has a value that the module was not placed for"
)


def _warn() -> None:
    log.warning(
        "this call and others like it are answered by ONNX Runtime, more slowly: %s (see `collage show`). This warning "
        "is shown once",
        _WHY,
    )


def no_original() -> CollageError:
    """The error of a run that has to be a careful one if the original model is not at hand."""
    return CollageError(f"this call needs the original model, and the original model is not at hand: {_WHY}.")


class Fallback:
    """Runs an artifact of an ONNX model whose inputs may have open dimensions. It is loaded on first use."""

    def __init__(
        self,
        model: Artifact,
        inputs: Sequence[Port | ValuePort],
        outputs: Sequence[Port | ValuePort],
        threads: int,
    ) -> None:
        """``inputs`` and ``outputs`` have the names and dtypes. Their shapes are those of a placement, and not used."""
        self._original = OriginalModel(model, BuildOptions(threads=threads))
        self._inputs, self._outputs = inputs, outputs

    @property
    def model(self) -> Artifact:
        """The model as an artifact."""
        return self._original.model

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name for inputs by name, of any shapes that the model takes.

        Several threads may call it at the same time. Raises InputError for shapes or dtypes that it does not take.
        """
        arrays = {port.name: _checked(port, inputs[port.name]) for port in self._inputs}
        try:
            values = self._original.run(list(arrays.values()))
        except CollageError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = library_text(error)
            shapes = ", ".join(f"{name}: {each.shape}" for name, each in arrays.items() if isinstance(each, np.ndarray))
            raise InputError(f"the model does not run on inputs of shapes {shapes}: {text}") from error
        return dict(zip([port.name for port in self._outputs], values, strict=True))

    def tell_once(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` the first time only, so that a warning is given once."""
        self._original.tell_once(tell)


def _checked(port: Port | ValuePort, value: Any) -> Any:
    """The value as an array of the port's dtype, and of any shape; values of other kinds as they are."""
    if isinstance(port, ValuePort) and port.type.kind != TENSOR:
        return value
    try:
        return ValueType(TENSOR, port.type.dtype).check(value)
    except MismatchError as error:
        raise InputError(f"input {port.name} {error}.") from error
