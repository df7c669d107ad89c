"""The key of a finished compile in the database: a digest of all that decides what a compile finds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import tvm

from collage.compiler.finished import EDITION
from collage.compiler.state import Compilation, Context
from collage.measure_db.fingerprint import fingerprint, model_digest, original_digest
from collage.measure_db.results import GATE


def finished_key(context: Context, compilation: Compilation) -> str | None:
    """The key of the compile of a model whose offers are known.

    There is none where the model is too large to be hashed, and where the metric is the user's own function.
    A budget and a cluster do not decide what a compile finds that ends by itself, so they are no part of the key.
    """
    measurer = context.workbench(compilation).measurer
    source, model, options = compilation.source, compilation.imported, context.options
    digest = measurer.as_loaded_digest
    if digest is None or options.metric.own is not None:
        return None
    forms = (
        digest,
        fingerprint(model.graph),
        model_digest(model),
        original_digest(source.original),
        _digest([source.example_inputs, *([model.assumed] if model.assumed else [])]),
    )
    libraries = (
        EDITION,
        GATE,
        tvm.__version__,
        onnxruntime.__version__,
        [*context.versions.items()],
        str(context.target),
        context.target.measured_on,
        context.target.threads,
        context.speeds,
    )
    asked = (
        options.effort,
        options.seed,
        options.tune_trials,
        options.time_limit_s,
        options.streams,
        options.graph_level_s,
        options.strict,
        options.exact,
        options.reassociate,
        options.tolerance,
        options.eight_bits,
        (options.metric.name, _digest(source.samples)) if options.tolerance else "",
    )
    hasher = hashlib.sha256(repr((forms, libraries, asked)).encode())
    # The keys of kernels have the backends' settings, and the offers depend on the patterns of the registry.
    offers = (f"{each.request.nodes} {measurer.key(each.request)}" for each in compilation.offers)
    views = (f"{each.nodes} view" for each in compilation.views)
    for text in sorted((*offers, *views)):
        hasher.update(text.encode())
    return hasher.hexdigest()


def _digest(samples: Iterable[Mapping[str, Any]]) -> str:
    """A hash of the content of arrays by name."""
    hasher = hashlib.sha256()
    for sample in samples:
        hasher.update(f"{len(sample)};".encode())
        for name, given in sorted(sample.items()):
            array = np.asarray(given)
            hasher.update(f"{name} {array.dtype} {array.shape};".encode())
            text = array.dtype.hasobject
            hasher.update(repr(array.tolist()).encode() if text else np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()
