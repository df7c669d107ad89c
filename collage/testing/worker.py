"""The kit's process: it has a backend, imports models, and checks one kernel after another. The kit survives it."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.backends.base import Availability, Backend, UnsupportedError
from collage.backends.engine import Engine
from collage.check.bound_kernel import KernelSource
from collage.check.reference import evaluate
from collage.check.samples import Samples
from collage.check.stages import RejectedError
from collage.check.store import ValueStore
from collage.core.child_process import Failure, read_message, take_over_pipes, write_message
from collage.core.library_text import library_text, raised
from collage.errors import CollageError
from collage.frontend.model import Model, from_simplified, import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node, TensorType
from collage.graph.storage import CUDA, HOST, PLAIN, Storage
from collage.kernel.kernel import Kernel
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.target import reduced_precisions
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.transform import measure_transform
from collage.measure_db.results import Rejection
from collage.patterns.context import MatchContext
from collage.patterns.match import Match, find_matches
from collage.testing.buffers import DefectError
from collage.testing.finding import Where
from collage.testing.kernel import (
    RefusedError,
    Trial,
    check_further,
    check_numbers,
    check_session,
    kind_of_wrong,
    stored,
    unsupported,
)
from collage.testing.protocol import Begin, Begun, Claim, Open, Opened, Reload, Seen, Tried, Try, TryFurther

_SLOW_S = 3.0
_SAMPLES_S = 10.0
_ATTRS_CHARS = 160
_LARGE = 1 << 14
_TRANSFORMED = ((1,), (5, 7), (3, 16, 5), (2, 16, 5, 7), (1, 3, 4, 9), (1, 8, 2, 5, 3))


def main() -> None:
    """Serve one parent, until the pipe from it closes."""
    source, sink = take_over_pipes()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # TVM's handler prints a page of stack
    worker: Worker | None = None
    while True:
        try:
            message = read_message(source)
        except BaseException:  # the parent is gone
            os._exit(0)
        os.ftruncate(2, 0)
        try:
            if isinstance(message, Begin):
                gc.freeze()  # collections need not look at what TVM has made
                worker = Worker(message)
                reply: Any = worker.begin()
            else:
                assert worker is not None
                reply = worker.answer(message)
        except CollageError as error:
            reply = Failure(str(error))
        write_message(sink, reply)


class Worker:
    """Answers messages about one backend."""

    def __init__(self, begin: Begin) -> None:
        self._folder = Path(begin.folder)
        os.chdir(self._folder)
        try:
            self._backend: Backend = pickle.loads(begin.backend)
        except Exception as error:  # unpickling runs the backend's own code
            raise CollageError(f"cannot be recreated in another process: {raised(error)}") from error
        precisions = reduced_precisions()
        self._options = BuildOptions(threads=begin.threads, precisions=precisions)
        self._trials: list[Trial] = []
        self._last: tuple[Trial, bytes, Kernel] | None = None
        """The kernel that was tried last, if it is right."""

    def answer(self, message: object) -> Seen:
        """The reply to a message of the protocol."""
        if isinstance(message, Open):
            return self._open(message)
        if isinstance(message, Try):
            return self._try(message)
        if isinstance(message, TryFurther):
            return self._further()
        assert isinstance(message, Reload)
        return self._reload(message)

    def begin(self) -> Begun:
        """Check what needs no model."""
        found: list[tuple[str, str]] = []
        missing = ""
        began = time.perf_counter()
        try:
            probe: object = self._backend.available()
            if not isinstance(probe, Availability):
                found.append(("available", f"available() gives {probe!r}, which is no collage.Availability"))
            elif not probe:
                missing = probe.reason
        except Exception as error:  # a third party's code
            found.append(("available", f"available() raises {raised(error)}"))
        if (taken := time.perf_counter() - began) > _SLOW_S:
            found.append(("available", f"available() takes {taken:.1f} s"))
        if not missing:
            found += self._sources()[1]
            found += self._transforms()
        return Begun(tuple(found), missing)

    def _sources(self) -> tuple[list[Any], list[tuple[str, str]]]:
        """The patterns and rules, and what is wrong with them."""
        try:
            given: Any = [*self._backend.sources(self._options)]
        except UnsupportedError:
            return [], []
        except Exception as error:  # a third party's code
            return [], [("rules", f"sources() has to return a list of patterns and rules: {raised(error)}")]
        good = [each for each in given if not isinstance(each, type) and callable(getattr(each, "find", None))]
        bad = [each for each in given if each not in good]
        return good, [("rules", f"sources() has {each!r}, which is no instance of a rule") for each in bad]

    def _transforms(self) -> Iterator[tuple[str, str]]:
        """Layout transforms from and to the backend's own formats, which have to move each element to its place."""
        own = [Storage(HOST, each) for each in self._backend.formats()]
        for storage in own:
            for shape in _TRANSFORMED:
                kind = TensorType(shape, "float32")
                if storage.format.problem(kind):
                    continue
                for ends in ((PLAIN, storage), (storage, PLAIN)):
                    transform = LayoutTransform(kind, *ends)
                    if self._backend.transforms(transform):
                        outcome = measure_transform(transform, self._backend, self._options, 0.001)
                        if isinstance(outcome, Rejection):
                            yield "formats", f"the layout transform {transform}: {outcome.message}"
                            return

    def _open(self, message: Open) -> Opened:
        """Import a model. Nodes that TVM converts wrongly stay whole, as in a compile."""
        self._trials, self._last = [], None
        try:
            model = import_model(onnx.load_model_from_string(message.model), name=message.name)
            while True:
                # Opaque nodes change the values' numbers.
                store = ValueStore(f"{message.values}-{len(model.opaque)}")
                opened = self._claims(model, message.name, store)
                if not opened.claims:
                    return opened
                if (wrong := store.complete()) is None:
                    wrong = evaluate(model, random_inputs(model, np.random.default_rng(0)), store)
                    store.mark_complete(wrong)
                if not wrong:
                    return opened
                model = from_simplified(model.onnx, message.name, {**model.opaque, **wrong})
        except Exception as error:  # no backend's fault
            return Opened(problem=library_text(error))

    def _claims(self, model: Model, name: str, store: ValueStore) -> Opened:
        """What the backend takes of a model."""
        samples = Samples(store)
        samples.keep_within(4 * _SAMPLES_S)
        self._trials = []
        found: list[tuple[str, str]] = []
        claims: list[Claim] = []
        context = MatchContext(model)
        why: dict[str, str] = {}
        matches: list[Match] = []
        for each in self._sources()[0]:
            try:
                [*each.find(context)]
            except Exception as error:  # a third party's code
                found.append(("rules", f"{getattr(each, 'name', type(each).__name__)} raises {raised(error)}"))
                continue
            taken, rejected = find_matches(context, self._backend.name, [each])
            matches += taken
            why |= {str(Subgraph(model, match.nodes)): match.reason for match in rejected}
        for match in {each.nodes: each for each in matches}.values():
            subgraph = Subgraph(model, match.nodes)
            try:
                variants = [*self._backend.variants(subgraph, self._options)]
            except UnsupportedError as error:
                why[str(subgraph)] = str(error)
                continue
            except Exception as error:  # a third party's code
                found.append(("claims", f"variants() raises {raised(error)} for {subgraph}"))
                continue
            found += _bad_variants(variants, subgraph)
            for variant in dict.fromkeys(variants):
                if _fits(variant, subgraph) and not _on_gpu(variant):
                    where = _where(name, subgraph, variant, self._options)
                    claims.append(Claim(where, match.pattern, _is_large(subgraph)))
                    self._trials.append(self._trial(subgraph, variant, samples))
        if isinstance(self._backend, Engine) and model.graph.nodes:
            subgraph = Subgraph(model, tuple(range(len(model.graph.nodes))))
            if subgraph.outputs == model.graph.outputs and subgraph.inputs == model.graph.inputs:
                where = replace(_where(name, subgraph, ALL_PLAIN, self._options), variant=WHOLE)
                claims.append(Claim(where, "whole models", _is_large(subgraph)))
                self._trials.append(replace(self._trial(subgraph, ALL_PLAIN, samples), whole=True))
        return Opened(tuple(found), tuple(claims), why)

    def _trial(self, subgraph: Subgraph, variant: Variant, samples: Samples) -> Trial:
        return Trial(KernelSource(subgraph, self._backend, replace(self._options, variant=variant)), samples)

    def _try(self, message: Try) -> Tried:
        trial = self._trials[message.number]
        try:
            self._stage("codegen()")
            artifact = trial.compiled()
        except RejectedError as rejected:
            if unsupported(rejected.rejection):
                return Tried(refused=rejected.rejection.message)
            return Tried((("claims", str(rejected)),))
        try:
            self._stage("load() or a call")
            kernel = trial.loaded(artifact)
            check_numbers(trial, kernel)
            if trial.whole:
                check_session(trial)
            self._stage(READ_ONLY)
            bound = trial.bound(kernel)
            bound.run_read_only(stored(bound, trial.usual))
        except RefusedError as refused:
            return Tried(refused=str(refused))
        except DefectError as defect:
            kind = defect.kind
            if kind == "numbers":
                if trial.source.options.variant.precision:
                    # Rounding may decide anything, so that this is wrong only if it is never right.
                    return Tried(refused=str(defect))
                self._stage("a call in another variant")
                kind = kind_of_wrong(trial)
            return Tried(((kind, str(defect)),))
        except RejectedError as rejected:  # no reference values
            return Tried(refused=str(rejected))
        self._last = trial, artifact, kernel
        return Tried(artifact=artifact)

    def _further(self) -> Seen:
        assert self._last is not None
        self._stage("several kernels, threads or loads")
        return Seen(tuple(check_further(*self._last)))

    def _reload(self, message: Reload) -> Seen:
        trial = self._trials[message.number]
        self._stage("load() in another process")
        try:
            trial.check(trial.bound(trial.loaded(message.artifact)), trial.usual)
        except DefectError as defect:
            return Seen((("load", f"right in the process that made it, but not in another one: {defect}"),))
        return Seen()

    def _stage(self, text: str) -> None:
        """Note for the kit what this process does, should it not survive that."""
        (self._folder / STAGE).write_text(text)


WHOLE = "the whole model"
"""The variant of an engine's kernel of a whole model, for people."""
STAGE = "stage"
"""The file, in the folder of Begin, that says what the process does."""
READ_ONLY = "a call whose inputs cannot be written"
"""What the process does, if its end means that a kernel writes to its inputs."""


def _where(name: str, subgraph: Subgraph, variant: Variant, options: BuildOptions) -> Where:
    attrs = "; ".join(filter(None, map(_attributes, subgraph.operators)))
    return Where(
        name,
        str(subgraph),
        tuple(map(str, subgraph.input_types)),
        tuple(map(str, subgraph.output_types)),
        attrs if len(attrs) <= _ATTRS_CHARS else attrs[: _ATTRS_CHARS - 4] + " ...",
        str(variant),
        options.threads,
        subgraph.nodes,
    )


def _attributes(node: Node) -> str:
    """An operator's attributes for people, without layouts, which are always the same."""
    found = ", ".join(f"{name}={value}" for name, value in node.attrs.items() if not name.endswith("layout"))
    return f"{node.op.rpartition('.')[2]}: {found}" if found else ""


def _is_large(subgraph: Subgraph) -> bool:
    return sum(each.size for each in subgraph.output_types) >= _LARGE


def _on_gpu(variant: Variant) -> bool:
    """Whether it has values in a GPU's memory, which has no guards."""
    return CUDA in {each.device for each in (*variant.inputs, *variant.outputs)}


def _fits(variant: Variant, subgraph: Subgraph) -> bool:
    sides = (variant.inputs, subgraph.input_types), (variant.outputs, subgraph.output_types)
    return all(not storages or len(storages) == len(types) for storages, types in sides)


def _bad_variants(variants: Sequence[Variant], subgraph: Subgraph) -> Iterator[tuple[str, str]]:
    if len({*variants}) < len(variants):
        yield "claims", f"variants() gives the same variant twice for {subgraph}"
    for each in variants:
        if not _fits(each, subgraph):
            yield (
                "claims",
                f"variants() gives {each} for {subgraph}, which has {len(subgraph.inputs)} inputs and "
                f"{len(subgraph.outputs)} outputs",
            )
            continue
        for storages, types in ((each.inputs, subgraph.input_types), (each.outputs, subgraph.output_types)):
            for storage, kind in zip(storages, types if storages else (), strict=True):
                if problem := storage.format.problem(kind):
                    yield "claims", f"variants() stores {kind} as {storage} in {subgraph}: {problem}"
