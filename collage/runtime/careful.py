"""Careful runs: ONNX Runtime answers calls whose inputs hold values that some kernels are not right on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from collage.backends.onnxruntime import UNOPTIMISED
from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.graph.magnitudes import LIMIT, is_scanned
from collage.kernel.frames import Artifact
from collage.kernel.options import BuildOptions
from collage.native.scan import Scanned, are_all_ordinary, new_flag, scan_call
from collage.runtime.original import OriginalModel

log = logging.getLogger(__name__)


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
