"""Measuring models that engines run whole: in a worker with a time limit, against each other and a reference.

The reference is ONNX Runtime without optimisations. Where that cannot run the model, or an engine disagrees with it,
onnx's own evaluator decides, which is the standard's word.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from collage.backends.base import Backend
from collage.core.temporary import TemporaryFolder
from collage.errors import CollageError
from collage.frontend.scopes import all_nodes
from collage.frontend.simplify import save_proto
from collage.measure_db.compare import difference, dtypes_of, region_tolerance, tolerance
from collage.measure_db.effort import Effort
from collage.measure_db.input_kinds import KINDS
from collage.measure_db.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure_db.protocol import (
    Compared,
    CompareWhole,
    InitWhole,
    Opened,
    OpenParts,
    OpenWhole,
    ReferWhole,
    RunWhole,
)
from collage.measure_db.timing import Timing
from collage.measure_db.travel import pickle_backend
from collage.runtime.parts import Parts

log = logging.getLogger(__name__)

_JUDGES = ("ONNX Runtime without optimisations", "onnx's reference evaluator")
_RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)


@dataclass(frozen=True)
class Trial:
    """What measuring found: timings and errors of the engines that are right, and why the others are not.

    ``errors`` are the largest absolute and relative one. ``loaded`` are engines that load the model, but fail on the
    inputs that there are. ``finite_only`` are those that differ from ONNX Runtime on NaN or infinities.
    """

    timings: Mapping[str, Timing] = field(default_factory=dict)
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    finite_only: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for the database."""
        return {**asdict(self), "errors": {n: list(e) for n, e in self.errors.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Trial:
        """The inverse of ``to_json``."""
        return Trial(
            {n: Timing(**t) for n, t in data["timings"].items()},
            {n: (e[0], e[1]) for n, e in data["errors"].items()},
            data["refused"],
            tuple(data["loaded"]),
            tuple(data["notes"]),
            tuple(data["finite_only"]),
        )


@dataclass(frozen=True)
class _Verdict:
    """Errors of the engines that are right (as in Trial), what is wrong with the others, and notes."""

    errors: Mapping[str, tuple[float, float]]
    wrong: Mapping[str, str]
    notes: tuple[str, ...]

    @staticmethod
    def unchecked(engines: Iterable[str], reason: str) -> _Verdict:
        """All are taken for right, for want of anything to compare with."""
        return _Verdict(dict.fromkeys(engines, (0.0, 0.0)), {}, (f"outputs are not checked: {reason}",))


class WholeMeasurer:
    """One model and its inputs. An engine that brings the worker down is out; the others go on in a new one.

    A context manager, since it may hold a worker and a temporary folder.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[Any],
        engines: Mapping[str, Backend],
        threads: int,
        workers: Workers,
        effort: Effort,
        time_limit_s: float,
    ) -> None:
        self._model = model
        self._inputs = tuple(inputs)
        self._engines = engines
        self._threads = threads
        self._workers = workers
        self._effort = effort
        self._limit_s = time_limit_s
        self._folder: TemporaryFolder | None = None
        self._worker: WorkerProcess | None = None
        self._open: set[str] = set()
        self._unchecked: set[str] = set()
        self._modules: dict[str, OpenParts] = {}

    def __enter__(self) -> WholeMeasurer:
        self._folder = TemporaryFolder("whole")
        return self

    def __exit__(self, *about: object) -> None:
        try:
            if self._worker is not None:
                self._workers.release(self._worker, self._threads)
        finally:
            if self._folder is not None:
                self._folder.remove()

    def trial(self) -> Trial:
        """Load the model in each engine, compare what they make of the inputs, and time those that are right."""
        assert self._folder is not None
        save_proto(self._model, self._folder.path / "model.onnx")
        refused: dict[str, str] = {}
        loaded: list[str] = []
        narrow: list[str] = []
        outputs: dict[str, Sequence[Any]] = {}
        for name in self._engines:
            found = self._engine(name)
            if found.outputs is not None:
                outputs[name] = found.outputs
                continue
            refused[name] = found.message
            if found.narrow:
                narrow.append(name)
            if found.loaded:
                loaded.append(name)
        notes = self._last_resort(narrow, outputs, refused) if not outputs else ()
        if not outputs:
            note = "no engine runs it on the inputs that were made up, so it is neither measured nor checked: give some"
            return Trial(refused=refused, loaded=tuple(loaded), notes=(note,) if loaded else ())
        verdict = self._judged(outputs)
        verdict = replace(verdict, notes=(*verdict.notes, *notes))
        finite_only = self._finite_only(verdict.errors)
        timings = self._timings(list(verdict.errors), refused)
        return Trial(timings, verdict.errors, {**refused, **verdict.wrong}, (), verdict.notes, finite_only)

    def _finite_only(self, engines: Iterable[str]) -> tuple[str, ...]:
        """Those of the engines that differ from ONNX Runtime where inputs hold NaN or infinities."""
        given = [
            each if isinstance(each, np.ndarray) and each.dtype.kind != "O" else np.zeros(0)
            for each in self._inputs
        ]
        found: list[str] = []
        rng = np.random.default_rng(0)
        for kind in KINDS:
            changed = None if kind.ordinary else kind.inputs(given, [False] * len(given), rng)
            if changed is None:
                continue
            inputs = tuple(
                new if old.size else each for each, old, new in zip(self._inputs, given, changed, strict=True)
            )
            expected = self._ask(RunWhole("", inputs, self._limit_s)).outputs
            for name in engines if expected is not None else ():
                if name in found:
                    continue
                if name not in self._open:
                    self._engine(name)
                outputs = self._ask(RunWhole(name, inputs, self._limit_s)).outputs
                error = math.inf if outputs is None else difference(outputs, expected)[1]
                if not error <= region_tolerance(dtypes_of([*inputs, *expected])):
                    found.append(name)
        return tuple(found)

    def _last_resort(
        self, narrow: Iterable[str], outputs: dict[str, Sequence[Any]], refused: dict[str, str]
    ) -> tuple[str, ...]:
        """Engines whose arithmetic is too narrow, where nobody else runs the model, ONNX Runtime included."""
        notes: list[str] = []
        if not narrow or self._ask(ReferWhole(False, self._limit_s)).outputs is not None:
            return ()
        for name in narrow:
            self._unchecked.add(name)
            found = self._engine(name)
            if found.outputs is not None:
                outputs[name] = found.outputs
                notes.append(f"{name} alone runs it, but may be wrong on large numbers: {refused.pop(name)}")
        return tuple(notes)

    def run(self, name: str, parts: Parts, inputs: Sequence[int]) -> Opened:
        """Load a module under that name and run it on some of the inputs, by their numbers.

        It can take part in ``compare`` then.
        """
        if name not in self._modules:
            assert self._folder is not None
            path = self._folder.path / f"parts-{len(self._modules)}"
            path.write_bytes(pickle.dumps(parts, protocol=pickle.HIGHEST_PROTOCOL))
            self._modules[name] = OpenParts(name, str(path), tuple(inputs), self._limit_s)
        return self._opened(self._modules[name], name)

    def compare(self, names: Sequence[str]) -> dict[str, Timing]:
        """Modules that ``run`` has loaded against each other. Raises CollageError when one dies in it."""
        for name in names:
            if name not in self._open:
                self._opened(self._modules[name], name)
        limit_s = 2 * self._effort.compare_s + self._limit_s
        reply = self._ask(CompareWhole(tuple(names), self._effort, limit_s))
        if not isinstance(reply, Compared):
            raise CollageError(reply.message)
        return dict(reply.timings)

    def _judged(self, outputs: Mapping[str, Sequence[Any]]) -> _Verdict:
        """Which engines are right, by the first judge whom none of them contradicts, or else by the last."""
        if any(node.op_type in _RANDOM for node in all_nodes(self._model.graph)):
            return _Verdict.unchecked(outputs, "the model draws random numbers")
        verdict: _Verdict | None = None
        for judge in _JUDGES:
            expected = self._ask(ReferWhole(judge == _JUDGES[-1], self._limit_s))
            if expected.outputs is None:
                log.info("%s: %s", judge, expected.message)
                continue
            found = self._compared(outputs, expected.outputs, judge)
            if verdict is None or found.errors:  # who agrees with nobody is not asked
                verdict = found
            if not found.wrong:
                break
        return verdict or _Verdict.unchecked(outputs, "no reference runs the model")

    def _compared(
        self, outputs: Mapping[str, Sequence[Any]], expected: Sequence[Any], judge: str
    ) -> _Verdict:
        errors = {name: difference(given, expected) for name, given in outputs.items()}
        allowed = region_tolerance(dtypes_of([*self._inputs, *expected]))
        notes = [] if judge == _JUDGES[0] else [f"outputs are checked with {judge}"]
        right = {name for name, error in errors.items() if error[1] <= allowed}
        if not right and allowed == tolerance("float64"):  # better than nothing, and the note tells
            right = {name for name, error in errors.items() if error[1] <= tolerance("float32")}
            notes += ["computes in float32 what the model has in float64"] if right else []
        if not right and any("Quantize" in node.op_type for node in all_nodes(self._model.graph)):
            steps = {name: difference(g, expected, rounded=True) for name, g in outputs.items()}
            right = {name for name, error in steps.items() if error[1] <= region_tolerance((), rounded=True)}
            notes += ["rounds to integers another way"] if right else []
            errors = {name: steps[name] if name in right else error for name, error in errors.items()}
        wrong = {
            name: f"inaccurate: differs from {judge} by {error[1]:.2g} of the scale ({allowed:.0e} allowed)"
            for name, error in errors.items()
            if name not in right
        }
        return _Verdict({name: errors[name] for name in errors if name in right}, wrong, tuple(notes))

    def _timings(self, names: Sequence[str], refused: dict[str, str]) -> dict[str, Timing]:
        """Timings of one interleaved run; an engine that dies in it is noted in ``refused``."""
        for name in names:
            if name not in self._open:
                self._engine(name)
        if not names:
            return {}
        reply = self._ask(
            CompareWhole(tuple(names), self._effort, 2 * self._effort.compare_s + self._limit_s)
        )
        if isinstance(reply, Compared):
            return dict(reply.timings)
        if len(names) == 1:
            refused[names[0]] = reply.message
            return {}
        return {n: t for name in names for n, t in self._timings([name], refused).items()}

    def _engine(self, name: str) -> Opened:
        return self._opened(OpenWhole(name, self._limit_s, name in self._unchecked), name)

    def _opened(self, message: OpenWhole | OpenParts, name: str) -> Opened:
        found: Opened = self._ask(message)
        if found.outputs is not None:
            self._open.add(name)
        return found

    def _ask(self, message: OpenWhole | OpenParts | ReferWhole | RunWhole | CompareWhole) -> Any:
        """The worker's reply; Opened with a message when it died."""
        if self._worker is None or not self._worker.alive:
            self._open = set()
            pickles = {name: pickle_backend(name, engine) for name, engine in self._engines.items()}
            assert self._folder is not None
            init = InitWhole(str(self._folder.path), self._inputs, pickles, self._threads)
            self._worker = self._workers.start(init)
        try:
            return self._worker.ask(message, message.limit_s)
        except WorkerDiedError as died:
            return Opened(
                None, loaded=False, message=f"{died.rejection.kind.value}: {died.rejection.message}"
            )
