"""Keys of requests and layout transforms: what a time depends on, and where it is in the database.

Nothing is measured or looked up here. Keys are in users' databases, so their text must stay as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import onnxruntime

from collage.backends.base import Backend
from collage.backends.layout import maker_of
from collage.backends.tuner import Tuner
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.measured_model import MeasuredModel
from collage.measure.settings import MeasureSettings
from collage.measure.timing.cache_state import weights_among
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import KernelKey
from collage.measure_db.fingerprint import model_digest

_VARIANT = re.compile(r"\[[^\]]*\] (?:in (\w+) )?")
"""What ``variant_text`` gives, at the beginning of a key's settings."""

_COMPARISON = 2
"""The edition of how conversions are compared with ONNX Runtime. The second one looks at those without operators."""


class RequestKeys:
    """The keys of what is measured of one model with certain settings."""

    def __init__(self, measured: MeasuredModel, settings: MeasureSettings) -> None:
        self._measured = measured
        self._settings = settings
        self._makers: dict[LayoutTransform, Backend | None] = {}

    def key(self, request: CandidateRequest) -> KernelKey:
        """The key that the request's outcome is recorded under."""
        settings, subgraph = self._settings, self._measured.subgraph(request.nodes)
        about = settings.backends[request.backend].settings(self.options(request))
        on_gpu = settings.backends[request.backend].device == CUDA
        among = 0 if on_gpu else weights_among(subgraph)  # a GPU's own cache is flushed for each sample
        return KernelKey(
            digest=subgraph.digest,
            backend=request.backend,
            backend_version=settings.versions[request.backend],
            settings=variant_text(request.variant)
            + about
            + (f" among {among >> 20} MiB" if among else "")
            + settings.effort.mark,
            threads=settings.threads,
            hardware=settings.hardware,
            tvm_version=_tvm_version(),
        )

    def options(self, request: CandidateRequest) -> BuildOptions:
        """What the candidate will be built for in a module. A candidate that is all of the model has the cores alone.

        Trials are only for what the backend tunes, so that the others' measurements serve with and without them.
        """
        settings = self._settings
        backend = settings.backends[request.backend]
        tunes = isinstance(backend, Tuner) and backend.tunes(self._measured.subgraph(request.nodes))
        return replace(
            settings.build,
            exclusive=len(request.nodes) == len(self._measured.model.graph.nodes),
            tune_trials=settings.build.tune_trials if tunes else 0,
            variant=request.variant,
        )

    def transform_key(self, transform: LayoutTransform) -> KernelKey:
        """The key of a layout transform that one of the backends makes. It is the same in all models."""
        backend = self.transform_maker(transform).name
        return KernelKey(
            digest=str(transform),
            backend=backend,
            backend_version=self._settings.versions[backend],
            settings=self._settings.effort.mark,
            threads=self._settings.threads,
            hardware=self._settings.hardware,
            tvm_version="",
        )

    def transform_backend(self, transform: LayoutTransform) -> Backend | None:
        """The first of the backends that makes the transform, or None."""
        if transform not in self._makers:
            self._makers[transform] = maker_of(transform, self._settings.backends)
        return self._makers[transform]

    def transform_maker(self, transform: LayoutTransform) -> Backend:
        """The backend of a transform that was measured, so that one of the backends makes it."""
        found = self.transform_backend(transform)
        assert found is not None
        return found

    def conversions_key(self) -> str:
        """The key of which ONNX nodes of the model the importer converts wrongly, with these libraries."""
        model = self._measured.model
        versions = f"tvm {_tvm_version()} onnxruntime {onnxruntime.__version__} comparison {_COMPARISON}"
        return f"{model_digest(model)}{_digest(model.example_inputs)} {versions}"

    def values_key(self) -> str | None:
        """The key of what depends on the content of the model's weights, too; None where that is not hashed."""
        content = self._measured.serialised_digest
        return None if content is None else f"{self.conversions_key()} of {content}"


def _digest(example_inputs: Mapping[str, Array]) -> str:
    """A hash of the example inputs' content, or "" without any: on other inputs other conversions may be wrong."""
    if not example_inputs:
        return ""
    hasher = hashlib.sha256()
    for name, array in sorted(example_inputs.items()):
        hasher.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return f" on {hasher.hexdigest()}"


def variant_text(variant: Variant) -> str:
    """The variant with the storage of each input and output, as a key's settings begin; "" for ``ALL_PLAIN``."""
    if variant == ALL_PLAIN:
        return ""
    sides = [" ".join(map(str, side)) for side in (variant.inputs, variant.outputs)]
    precision = f"in {variant.precision} " if variant.precision else ""
    return f"[{sides[0]} -> {sides[1]}; {variant.split}] {precision}"


def variant_in(key: KernelKey) -> str:
    """The ``variant_text`` that the key's settings begin with."""
    found = _VARIANT.match(key.settings)
    return found[0] if found else ""


@cache  # races ask for each pair of candidates of a region
def precision_in(text: str) -> str:
    """The precision of a variant, given its ``variant_text``."""
    found = _VARIANT.match(text)
    return (found[1] or "") if found else ""


def _tvm_version() -> str:
    import tvm  # it takes a second, and nobody needs keys before a graph is made, which takes TVM, too

    return str(tvm.__version__)
