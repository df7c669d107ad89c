"""One operator on one backend: each kind of values, compared with ONNX Runtime without optimisations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from collage.backends.base import Backend
from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.graph.dataflow import Array
from collage.kernel.options import BuildOptions
from collage.testing.onnx_cases import Case, Feed, as_model
from tests.helpers.semantics.cases import feeds_of, is_bounded, is_divisor, name_of
from tests.helpers.semantics.cover import conversion, covers
from tests.helpers.semantics.values import Kind, draw, kinds_of

__all__ = ["CONVERSION", "Cell", "same", "try_case"]

CONVERSION = "conversion"
"""A name in the place of a backend's: ONNX Runtime on the imported operator."""

_TOLERANCES = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-8}
_ABSENT = 1e-37
"""The least magnitude that does not count as zero."""


@dataclass(frozen=True)
class Cell:
    """The outcome of a case; ``status`` is "same", "wrong", "failed", "not offered" or "no reference"."""

    op: str
    case: str
    dtype: str
    backend: str
    kind: str
    status: str
    message: str = ""


def try_case(each: Case, backends: dict[str, Backend], threads: int = 1) -> Iterator[Cell]:
    """A cell for each backend and kind of values."""
    name = name_of(each)
    dtype = next((f.dtype for f in each.inputs if isinstance(f, Feed)), "constants")

    def cell(backend: str, kind: str, status: str, message: str = "") -> Cell:
        return Cell(each.op, name, dtype, backend, kind, status, library_text(message))

    try:
        proto = as_model(each)
        expected = {kind: _outputs(each, proto, kind) for kind in kinds_of(feeds_of(each))}
        model = import_model(proto)
    except (CollageError, Exception) as error:  # ORT's exceptions share no base class but Exception
        yield cell("", "", "no reference", str(error))
        return
    if not model.graph.nodes:
        return
    options = BuildOptions(threads=threads)
    for backend_name, backend in {CONVERSION: None, **backends}.items():
        try:
            if backend is None:
                found, why = [conversion(model)], ""
            else:
                found, why = covers(model, backend_name, backend, options)
        except Exception as error:  # a backend raises anything, and the table tells it
            yield cell(backend_name, "", "failed", f"{type(error).__name__}: {error}")
            continue
        if not found:
            yield cell(backend_name, "", "not offered", why)
            continue
        for kind, (feeds, outputs) in expected.items():
            status, message = "same", ""
            for cover in found:
                try:
                    problem = _difference(cover.run(feeds), outputs, feeds)
                except Exception as error:  # a backend raises anything, and the table tells it
                    status, message = "failed", f"{cover.text}: {type(error).__name__}: {error}"
                    continue
                if problem:
                    status, message = "wrong", f"{cover.text}: {problem}"
                    break
            yield cell(backend_name, kind.value, status, message)


def _outputs(each: Case, proto: onnx.ModelProto, kind: Kind) -> tuple[dict[str, Array], list[Array]]:
    feeds = {
        f"x{i}": draw(given, kind, 100 * i + 7, divisor=is_divisor(each, i), bounded=is_bounded(each, i))
        for i, given in enumerate(each.inputs)
        if isinstance(given, Feed)
    }
    return feeds, reference_run(proto, feeds)


def _difference(actual: list[Array], expected: list[Array], feeds: dict[str, Array]) -> str:
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        wrong = np.logical_not(same(a, e))
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            given = ", ".join(str(f[place]) for f in feeds.values() if f.shape == a.shape)
            what = f"output {position}: {int(wrong.sum())} of {e.size} differ: {a[place]} for {e[place]}"
            return f"{what} at {place}" + (f" from {given}" if given else "")
    return ""


def same(actual: Array, expected: Array) -> Array:
    """Where two arrays are equal, apart from rounding, the sign of zeros, and denormals, which may be zeros."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return np.zeros(expected.shape, bool)
    if expected.dtype.kind != "f":
        return np.asarray(actual == expected)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    with np.errstate(all="ignore"):
        scale = float(np.abs(e[finite]).max(initial=0.0))
        close = np.abs(a - e) <= _TOLERANCES[expected.dtype.name] * scale + _ABSENT
        return np.where(finite, close & np.isfinite(a), (a == e) | (np.isnan(a) & np.isnan(e)))
