"""What a compile has found, as plain values: a fact in the database, which the next compile recalls.

A plan is written as the names of its kernels. Their costs are in the database already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnxruntime

from collage.compiler.events import Bounded
from collage.core.typed import typed
from collage.measure_db.database import Json
from collage.measure_db.fingerprint import fingerprint, model_digest
from collage.measure_db.keys import Fact
from collage.measure_db.results import GATE, Timing
from collage.report.report import GraphLevelReport

if TYPE_CHECKING:
    from collage.compiler.bench import Bench

EDITION = 4
"""The edition of the search and of these values. Count it up if either changes, and every model is searched again."""

Named: TypeAlias = tuple[tuple[int, ...], str, str]
"""A kernel: its nodes, its backend, and its variant as text."""


@dataclass(frozen=True)
class NamedStreams:
    """A ``StreamPlan`` in plain values: for each launch the kernel on one thread, a conversion's cost, or None."""

    algorithm: str
    order: tuple[int, ...]
    streams: tuple[int, ...]
    single_threaded: tuple[Named | float | None, ...]


@dataclass(frozen=True)
class Finished:
    """What a compile has found.

    - ``complete``: whether it has ended by itself; another compile goes on from the plan if not.
    - ``kernels``, ``suffix``, ``streams``: the placement, the engine of its suffix, and its schedule.
    - ``kernel_errors``: what each kernel is predicted to add to the error of the outputs (see ``Candidate``).
    - ``whole``: engine, form, profile and precision of a plan without a placement.
    - ``kernels_us``: the times of the launches' kernels by themselves; None for a view.
    - ``timings``: those of the last race by label, in microseconds. ``label`` is that of the plan.
    - ``launches_us``, ``predicted_us``: the times of the plan's launches, and what they add up to.
    - ``errors``: the largest absolute and relative error of the outputs, and the error on samples.
    - ``engines``: the plans without a placement that ran, with their times in microseconds.
    - ``suggested``: offers that no pattern has made, with their purpose.
    """

    complete: bool
    label: str
    kernels: tuple[Named, ...]
    suffix: str
    streams: NamedStreams | None
    whole: tuple[str, str, str, str] | None
    kernels_us: tuple[float | None, ...]
    timings: Mapping[str, Timing]
    launches_us: tuple[float, ...]
    predicted_us: float
    kernel_errors: tuple[float, ...]
    errors: tuple[float, float, float | None]
    epsilon_us: float
    notes: tuple[str, ...]
    bounded: Bounded | None
    evolved: GraphLevelReport | None
    engines: tuple[tuple[tuple[str, str, str, str], float], ...]
    suggested: tuple[tuple[tuple[int, ...], str, str, str], ...]


def _write(found: Finished) -> Json:
    value: Json = asdict(found)
    return value


def _read(value: Any) -> Finished:
    return typed(Finished, value)


FINISHED: Fact[Finished] = Fact("compile", _write, _read)


def finished_key(bench: Bench) -> str | None:
    """The key of a compile: a digest of all that decides what it finds.

    There is none if the model is too large to be hashed, or the metric is the user's own function. A budget and a
    cluster do not decide what a compile finds that ends by itself, so they are no part of the key.
    """
    task = bench.task
    source, options = task.source, task.options
    if options.metric.own is not None:
        return None
    forms: list[object] = [] if source.family else [bench.whole.form.digest]
    offers: list[str] = []
    if bench.has_graph:
        measurer, model = bench.measurer, bench.model
        if measurer.as_loaded_digest is None:
            return None
        forms += [measurer.as_loaded_digest, fingerprint(model.graph), model_digest(model)]
        forms.append(_digest([source.example_inputs, *([model.assumed] if model.assumed else [])]))
        # The keys of kernels have the backends' settings, and the offers depend on the patterns of the registry.
        offers = [f"{each.request.nodes} {measurer.key(each.request)}" for each in bench.known.offers]
        offers += [f"{each.nodes} view" for each in bench.known.views]
    libraries = (
        EDITION,
        GATE,
        onnxruntime.__version__,
        [*task.keyed_versions.items()],
        str(task.target),
        task.target.measured_on,
        task.target.threads,
    )
    asked = *options.key, _digest(source.samples) if options.tolerance else ""
    hasher = hashlib.sha256(repr((forms, libraries, asked)).encode())
    for text in sorted(offers):
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
