"""Inputs and expected outputs of regions: the reference values of the model, and changed ones for each region.

A network that NaN is put into ends as NaN everywhere, which would test little. So the inputs of each region are changed
where it stands (see ``input_kinds``), and ONNX Runtime without optimisations tells what the region makes of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.check.compare import Rule, region_tolerance
from collage.check.input_kinds import KINDS, InputKind
from collage.check.sample import USUAL, Sample
from collage.check.spent import REFERENCE, spent
from collage.check.store import ValueStore
from collage.core.library_text import library_text
from collage.frontend.random_inputs import free_integers, indexed_rows
from collage.frontend.read.apart import has_files
from collage.frontend.relax.op_kinds import is_convolution, rounds
from collage.frontend.session import PartSession
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array

log = logging.getLogger(__name__)

_BUDGET_S, _SHARE = 15.0, 0.25
"""Seconds for the reference runs of one region on changed inputs, and the most of them as a share of the limit of the
candidate that waits for them. Kinds of inputs that come too late are left out."""
_LARGEST_BYTES = 1 << 30
"""A region with larger constants gets no changed inputs, unless they are in files: ONNX Runtime needs the constants in
one protobuf."""
_NOTE = ".trying"
_CONTROL_FLOW = frozenset(("onnx.Loop", "onnx.If"))


@dataclass(frozen=True)
class LeftOut:
    """The kinds of extraordinary inputs that would change a region's inputs, and that no sample is of.

    There was no time for those that are ``late``, or ONNX Runtime did not survive them. Those that are ``refused``
    cannot be tried at all: ONNX Runtime gives no answer for the region, or none of its shapes.
    """

    late: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class _FatalError(Exception):
    """Inputs that have ended a process."""


def fatal_samples(folder: Path) -> set[Path]:
    """The notes in a folder of reference values. Each is about inputs that were tried when the process ended."""
    return set(folder.glob(f"*{_NOTE}"))


class Samples:
    """The samples of a model's regions; those of the region that was asked for last are kept.

    ``store`` has the model's reference values. Its folder also takes notes of what is being tried: a kind of inputs
    that ends the process in ONNX Runtime is left out by the next one.
    """

    def __init__(self, store: ValueStore) -> None:
        self.store = store
        self._budget_s = _BUDGET_S
        self._nodes: tuple[int, ...] | None = None
        self._usual: Sample | None = None
        self._changed: list[Sample] | None = None
        self._left_out = LeftOut()
        self._model: onnx.ModelProto | None = None
        self._session: PartSession | None = None

    def keep_within(self, limit_s: float) -> None:
        """Take a part of the seconds of a candidate that waits for the samples, so that it has the others itself."""
        self._budget_s = min(_BUDGET_S, _SHARE * limit_s)

    def usual(self, subgraph: Subgraph) -> Sample:
        """The region in the model's reference run. Raises KeyError (value id) for a value without one."""
        self._turn_to(subgraph)
        if self._usual is None:
            graph = subgraph.model.graph
            load = {v: self.store.load(v, graph.type_of(v)) for v in (*subgraph.inputs, *subgraph.outputs)}
            inputs, outputs = (tuple(load[v] for v in side) for side in (subgraph.inputs, subgraph.outputs))
            self._usual = self._sample(USUAL, True, subgraph, inputs, outputs)
        return self._usual

    def changed(self, subgraph: Subgraph) -> Sequence[Sample]:
        """The region on changed inputs. There are none where it has no ONNX form, or ONNX Runtime refuses them."""
        self._turn_to(subgraph)
        if self._changed is None:
            with spent(REFERENCE):
                usual = self.usual(subgraph).inputs
                indices = [indexed_rows(subgraph.model, value) is not None for value in subgraph.inputs]
                free = free_integers(subgraph.model.graph, subgraph.inputs, subgraph.nodes, indices)
                kinds = [kind for kind in KINDS if kind.applies(usual, free)]
                late: list[str] = []
                found = list(self._make(subgraph, kinds, free, late))
            known = {*late, *(sample.kind for sample in found)}
            wanted = [kind.name for kind in kinds if not kind.ordinary]
            self._left_out = LeftOut(
                tuple(name for name in wanted if name in late),
                tuple(name for name in wanted if name not in known),
            )
            self._changed = found
        return self._changed

    def left_out(self, subgraph: Subgraph) -> LeftOut:
        """The kinds of inputs that ``changed`` has no samples of."""
        self.changed(subgraph)
        return self._left_out

    def tolerates(
        self, subgraph: Subgraph, sample: Sample, position: int, actual: Array, allowed: float, precision: str
    ) -> bool:
        """Whether a sample of the region ``excuses`` a plain output. False if the region has no ONNX form."""
        self._turn_to(subgraph)
        names = [f"v{value}" for value in subgraph.inputs]
        try:
            session = self._reference(subgraph)
            model = self._model
            assert model is not None

            def run(each: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
                return (session if each is model else PartSession(each)).run(feeds)

            return sample.excuses(position, actual, allowed, model, names, run, precision)
        except Exception as error:  # ORT's exceptions share no base class but Exception
            log.debug("%s: %s", subgraph, error)
            return False

    def _reference(self, subgraph: Subgraph) -> PartSession:
        if self._session is None:
            self._model = subgraph.to_onnx(apart=True)
            self._session = PartSession(self._model)
        return self._session

    def _turn_to(self, subgraph: Subgraph) -> None:
        if self._nodes != subgraph.nodes:
            self._nodes = subgraph.nodes
            self._usual = self._changed = self._model = self._session = None

    def _sample(
        self, kind: str, ordinary: bool, subgraph: Subgraph, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Sample:
        graph, operators = subgraph.model.graph, subgraph.operators
        rounded = any(rounds(node.op) for node in operators)
        dtypes = (graph.type_of(value).dtype for node in operators for value in (*node.inputs, *node.outputs))
        allowed = region_tolerance(dtypes, rounded=rounded)
        of_channels = any(is_convolution(node.op) for node in operators)
        rules = (Rule(allowed, rounded, of_channels, at in subgraph.drawn) for at in range(len(outputs)))
        return Sample(kind, tuple(inputs), tuple(outputs), ordinary, tuple(rules))

    def _make(
        self, subgraph: Subgraph, kinds: Sequence[InputKind], free: Sequence[bool], late: list[str]
    ) -> Iterator[Sample]:
        """The samples of these kinds; the names of those that come too late are added to ``late``."""
        model, usual = subgraph.model, self.usual(subgraph)
        constants = sum(array.nbytes for array in subgraph.weights.values())
        if constants > _LARGEST_BYTES and not has_files(model.onnx):
            return
        inner = model.inner_operators
        if any(n.op in _CONTROL_FLOW or "Loop" in inner.get(n.id, ()) for n in subgraph.operators):
            return  # a changed number of iterations may be one that never ends
        names = [f"v{value}" for value in subgraph.inputs]
        end = time.monotonic() + self._budget_s
        for kind in kinds:
            rng = np.random.default_rng([len(kind.name), int(subgraph.digest[:12], 16)])
            inputs = kind.inputs(usual.inputs, free, rng)
            assert inputs is not None
            try:
                if time.monotonic() > end:
                    raise TimeoutError("no time is left")
                with self._noted(subgraph, kind):
                    feeds = dict(zip(names, inputs, strict=True))
                    outputs = self._reference(subgraph).run(feeds, self._budget_s)
            except (TimeoutError, _FatalError) as error:
                log.info("%s on %s: %s", subgraph, kind.name, error)
                late.append(kind.name)
                continue
            except Exception as error:  # ORT's exceptions share no base class but Exception
                log.debug("%s on %s: %s", subgraph, kind.name, library_text(error))
                if self._session is None:
                    return
                continue
            if all(a.shape == t.shape for a, t in zip(outputs, subgraph.output_types, strict=True)):
                yield self._sample(kind.name, kind.ordinary, subgraph, inputs, outputs)

    @contextmanager
    def _noted(self, subgraph: Subgraph, kind: InputKind) -> Iterator[None]:
        """Note in a file that this kind of inputs is tried. Raises _FatalError if an earlier process ended there."""
        about = hashlib.sha256(json.dumps([subgraph.nodes, kind.name]).encode()).hexdigest()[:24]
        note: Path = self.store.folder / f"{about}{_NOTE}"
        if note.exists():
            raise _FatalError("ONNX Runtime does not survive them")
        note.touch()
        try:
            yield
        finally:
            note.unlink(missing_ok=True)
