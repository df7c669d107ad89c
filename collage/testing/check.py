"""Checking a backend: a process of its own tries it on many models, and what it breaks becomes a finding."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from collage.backends.base import Backend
from collage.backends.registry import Registry, builtin_registry
from collage.core import forked_process
from collage.core.temporary import TemporaryFolder
from collage.errors import MeasurementError, RegistrationError, UsageError
from collage.frontend.messages import DTYPES
from collage.frontend.read.load import load_onnx
from collage.frontend.read.shapes import Shapes, chosen_shapes, fix_shapes
from collage.kernel.target import usable_cores
from collage.measure.worker.process import WorkerDiedError, WorkerProcess
from collage.measure.worker.serialisation import pickle_backend
from collage.measure_db.results import RejectionKind
from collage.patterns.names import relax_names
from collage.testing.catalogue import TrialModel, catalogue
from collage.testing.finding import CHECKS, Finding, Findings, Tally, checked_names
from collage.testing.protocol import Begin, Begun, Claim, Open, Opened, Reload, Seen, Tried, Try, TryFurther
from collage.testing.script import script_of, whole_script
from collage.testing.worker import READ_ONLY, STAGE

ModelLike: TypeAlias = "onnx.ModelProto | str | Path | bytes"

_WORKER = "collage.testing.worker"
_IMPORTS = ("collage.frontend.relax.build", "collage.frontend.relax.importer", "collage.frontend.rewrite.simplify")
"""What its first model would import. One process imports it for all."""
_START_S = 600.0
_OPEN_S = 120.0
_THOROUGH_TIMES = 3.0
_NO_MODELS = frozenset(("registration", "available"))
_NO_KERNELS = frozenset(("registration", "available", "rules"))
_FURTHER = frozenset(("state", "concurrent", "leak", "reproducible", "time"))
"""Checks that need more than runs of one kernel."""

_ALL = ""
"""The key of a count of all dtypes."""

Kept: TypeAlias = "tuple[TrialModel, int, Claim, bytes]"
"""An artifact that another process shall load: its model, and the number of its claim."""


def check_backend(
    backend: Backend,
    *,
    only: Iterable[str] | None = None,
    models: Sequence[ModelLike] | None = None,
    shapes: Shapes | None = None,
    threads: Sequence[int] | None = None,
    time_limit_s: float = 10.0,
    progress: Callable[[str], None] | None = None,
) -> Findings:
    """Check a backend against its contract on a catalogue of small models, or on ``models``, and return what is wrong.

    ``only`` are the names of checks (``CHECKS``), by default all that find defects. ``shapes`` are those of inputs that
    ``models`` leave open, by name; a first axis alone has one element by default. ``threads`` are the numbers of
    threads that kernels are built for, by default 1 and up to 4. A kernel may take ``time_limit_s`` seconds.
    ``progress`` is called with a line for each model. The backend runs in other processes, which it may bring down.
    Raises UsageError for unknown checks, models that cannot be read, and a backend that is not available.
    """
    wanted = checked_names(only)
    counts = threads or sorted({1, max(2, min(4, usable_cores()))})
    kit = _Kit(backend, wanted, time_limit_s, progress)
    kit.of_catalogue = models is None
    return kit.run([*catalogue()] if models is None else [_trial_model(each, shapes) for each in models], counts)


def check_kernel(
    backend: Backend,
    model: ModelLike,
    *,
    only: Iterable[str] | None = None,
    shapes: Shapes | None = None,
    nodes: Sequence[int] | None = None,
    variant: str | None = None,
    threads: int = 1,
    time_limit_s: float = 10.0,
) -> Findings:
    """Check the kernels that a backend has for one model, thoroughly, and return what is wrong.

    ``model`` is ONNX: a model, a path, or ONNX's textual syntax, and ``shapes`` are as in ``check_backend``. By default
    all kernels of the model are checked: ``nodes`` and ``variant`` choose one, as ``Finding.where`` has them. If the
    backend takes nothing of the model, that is a finding with the reasons. A test takes less than 3 s:
    ``assert not check_kernel(MyBackend(), model)``.

    Raises UsageError as ``check_backend``, and if no kernel is chosen.
    """
    kit = _Kit(backend, checked_names(only), time_limit_s, None)
    kit.chosen = _Chosen(None if nodes is None else tuple(nodes), variant)
    kit.thorough = True
    found = kit.run([_trial_model(model, shapes)], [threads])
    if not kit.chosen.met and kit.chosen.asked:
        raise UsageError(f"no kernel of nodes {nodes} in the variant {variant}. There are: {'; '.join(kit.claimed)}.")
    return found


def _trial_model(model: ModelLike, shapes: Shapes | None) -> TrialModel:
    """The model with a name and with fixed shapes. Raises UsageError for what is none."""
    if isinstance(model, str) and model.lstrip().startswith("<"):
        try:
            name, found = "the model", onnx.parser.parse_model(model)
        except onnx.parser.ParseError as error:
            raise UsageError(
                f"the model's text is not ONNX's textual syntax: {' '.join(str(error).split())}"
            ) from error
    else:
        name = str(model) if isinstance(model, (str, Path)) else "the model"
        found = load_onnx(model)
    if placed := chosen_shapes(found, shapes or {}, strict=True).placed:
        fix_shapes(found, placed)
    return TrialModel(name, found)


@dataclass
class _Chosen:
    """The kernel that is asked for, and whether it was met."""

    nodes: tuple[int, ...] | None = None
    variant: str | None = None
    met: bool = False

    @property
    def asked(self) -> bool:
        return self.nodes is not None or self.variant is not None

    def takes(self, claim: Claim) -> bool:
        fits = self.nodes in (None, claim.where.nodes) and self.variant in (None, claim.where.variant)
        self.met = self.met or fits
        return fits


@dataclass
class _Claimed:
    """What became of the claims of a pattern."""

    right: int = 0
    refused: list[tuple[Claim, str, onnx.ModelProto]] = field(default_factory=list)


class _EndedError(Exception):
    """The process has ended; ``kind`` is the check that this belongs to."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Kit:
    """One run of the kit."""

    def __init__(
        self, backend: Backend, wanted: frozenset[str], limit_s: float, progress: Callable[[str], None] | None
    ) -> None:
        self._backend, self._wanted, self._limit_s = backend, wanted, limit_s
        self._progress = progress
        self.of_catalogue = self.thorough = False
        """Whether the models are the kit's own, and whether each kernel is looked at thoroughly."""
        self.chosen = _Chosen()
        self.claimed: list[str] = []
        self._claims: Counter[str] = Counter()
        self._checked: Counter[str] = Counter()
        self._dtypes: set[str] = set()
        """What is claimed and checked of each dtype and of ``_ALL``, and the dtypes of all models and claims."""
        self._found: dict[tuple[Any, ...], Finding] = {}
        self._alike: Counter[tuple[Any, ...]] = Counter()
        self._patterns: defaultdict[str, _Claimed] = defaultdict(_Claimed)
        self._why: dict[str, str] = {}
        self._thorough: set[Any] = set()

    def run(self, tried: Sequence[TrialModel], threads: Sequence[int]) -> Findings:
        """Check everything on these models."""
        models = tried
        self._dtypes.update(*map(_dtypes_in, tried))
        if (pickled := self._registered()) is None:
            return self._findings()
        if forked_process.kept is None:
            # Later checks of this process, as other tests make them, need not import TVM again.
            forked_process.kept = forked_process.ForkServers()
        with TemporaryFolder("testing") as folder:
            for number, count in enumerate(threads):
                with _Process(folder, pickled, count) as process:
                    if not self._begin(process, first=not number) or self._wanted <= _NO_MODELS:
                        return self._findings()
                    models = self._all(process, models)
        if tried:
            self._check_claims(tried)
        return self._findings()

    def _findings(self) -> Findings:
        order = {kind: number for number, kind in enumerate(CHECKS)}
        found = [replace(each, alike=self._alike[key] - 1) for key, each in self._found.items()]
        return Findings(
            sorted(found, key=lambda each: (not each.defect, order[each.kind])),
            Tally(self._claims[_ALL], self._checked[_ALL]),
            {each: Tally(self._claims[each], self._checked[each]) for each in sorted(self._dtypes)},
        )

    def _add(self, kind: str, text: str, model: onnx.ModelProto | None = None, claim: Claim | None = None) -> None:
        """Note a finding; of several that are alike the first is kept."""
        if kind not in self._wanted:
            return
        where = None if claim is None else claim.where
        key = (kind, where.operators if where else re.sub(r"\d+", "#", text))
        self._alike[key] += 1
        if key not in self._found:
            finding = Finding(kind, text, where)
            self._found[key] = replace(finding, script=script_of(finding, self._backend, model, claim, self._limit_s))

    def _registered(self) -> bytes | None:
        """The backend's pickle, or None if it cannot be registered or pickled."""
        try:
            registry = builtin_registry(with_entry_points=False)
            name = getattr(self._backend, "name", "")
            if name in registry and type(registry[name]) is type(self._backend):
                registry = Registry()  # it is the built-in one itself
            registry.register(self._backend)
            return pickle_backend(self._backend.name, self._backend)
        except (RegistrationError, MeasurementError) as error:
            self._add("registration", str(error))
            return None
        except Exception as error:  # formats() of a third party
            self._add("registration", f"{type(error).__name__}: {error}")
            return None

    def _begin(self, process: _Process, *, first: bool) -> bool:
        """Check what needs no model. Whether it can be used at all. Raises UsageError if it is not available."""
        try:
            begun = process.start()
        except _EndedError as ended:
            self._add(ended.kind, f"available(), sources() or a layout transform: {ended}")
            return False
        except MeasurementError as error:
            self._add("registration", str(error))
            return False
        if begun.missing:
            raise UsageError(f"backend {self._backend.name} is not available: {begun.missing}")
        if first:
            for kind, text in begun.found:
                self._add(kind, text)
        return not any(kind == "available" for kind, _ in begun.found)

    def _all(self, process: _Process, models: Sequence[TrialModel]) -> list[TrialModel]:
        """Check the kernels of all models, and return the models of which something is claimed."""
        kept: list[Kept] = []
        claimed: list[TrialModel] = []
        for number, each in enumerate(models):
            if self._progress is not None:
                threads = "1 thread" if process.threads == 1 else f"{process.threads} threads"
                self._progress(f"{threads}, {number + 1} of {len(models)}: {each.name}")
            before = len(self.claimed)
            kept += self._model(process, each)
            if len(self.claimed) > before:
                claimed.append(each)
        if kept and "load" in self._wanted:
            self._reload(process, kept)
        return claimed

    def _model(self, process: _Process, each: TrialModel) -> Iterator[Kept]:
        """Check all kernels of a model, and give the artifacts that another process shall load."""
        try:
            opened = process.open(each)
        except _EndedError as ended:
            self._add(ended.kind, f"sources() or variants(): {ended}", each.model)
            return
        for kind, text in opened.found:
            self._add(kind, text, each.model)
        self._why |= opened.why
        if opened.problem and not self.of_catalogue:
            raise UsageError(f"{each.name}: {opened.problem}")
        for number, claim in enumerate(opened.claims):
            self._patterns[claim.pattern]
            self.claimed.append(f"nodes {claim.where.nodes} ({claim.where.operators}), {claim.where.variant}")
            if not self.chosen.takes(claim):
                continue
            counted = {_ALL, *_dtypes_of(claim)}
            self._claims.update(counted)
            self._dtypes |= counted - {_ALL}
            if self._wanted <= _NO_KERNELS:
                continue
            key = (claim.pattern, claim.where.variant, claim.large, process.threads)
            deep = bool(self._wanted & _FURTHER) and (self.thorough or key not in self._thorough)
            try:
                tried: Tried = process.ask(Try(number), self._limit_s, each)
                further = Seen()
                if deep and tried.artifact is not None:
                    further = process.ask(TryFurther(), self._limit_s * _THOROUGH_TIMES, each)
            except _EndedError as ended:
                self._add(ended.kind, str(ended), each.model, claim)
                self._checked.update(counted)
                continue
            for kind, text in (*tried.found, *further.found):
                self._add(kind, text, each.model, claim)
            state = self._patterns[claim.pattern]
            if tried.refused:
                state.refused.append((claim, tried.refused, each.model))
                continue
            self._checked.update(counted)
            state.right += 1
            if tried.artifact is not None and (deep or key not in self._thorough):
                self._thorough.add(key)
                yield each, number, claim, tried.artifact

    def _reload(self, process: _Process, kept: Sequence[Kept]) -> None:
        """Load artifacts in a process that did not make them, when nothing is left of what codegen wrote."""
        process.renew()
        for each, number, claim, artifact in kept:
            try:
                process.open(each)
                seen: Seen = process.ask(Reload(number, artifact), self._limit_s, each)
            except _EndedError as ended:
                text = f"right in the process that made it, but not in another one: {ended}"
                self._add("load", text, each.model, claim)
                continue
            for kind, text in seen.found:
                self._add(kind, text, each.model, claim)

    def _check_claims(self, models: Sequence[TrialModel]) -> None:
        """Patterns that claim what is always refused, and a backend that takes nothing."""
        for pattern, state in self._patterns.items():
            if state.refused and not state.right:
                claim, why, model = state.refused[0]
                text = f"codegen() refuses all {len(state.refused)} that {pattern} claims: {why}"
                self._add("claims", text, model, claim)
        if self._patterns or "rules" not in self._wanted or any(each.kind == "rules" for each in self._found.values()):
            return
        reasons = "; ".join(f"{ops}: {why}" for ops, why in [*self._why.items()][:4])
        text = f"nothing is taken of {len(models)} models" + (f" ({reasons})" if reasons else "")
        if hints := _onnx_names(self._backend):
            text += f". Operators have Relax's names: {hints}"
        finding = Finding("rules", text)
        if self.of_catalogue:
            script = whole_script(finding, self._backend)
        else:
            script = script_of(finding, self._backend, models[0].model, None, self._limit_s)
        self._found["rules",] = replace(finding, script=script)
        self._alike["rules",] = 1


class _Process:
    """The process that runs the backend, and the next one if that ends. It is a context manager."""

    def __init__(self, folder: Path, backend: bytes, threads: int) -> None:
        self.threads = threads
        self._folder, self._backend = folder, backend
        self._worker: WorkerProcess | None = None
        self._place = folder
        self._started = 0
        self._open: TrialModel | None = None

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *about: object) -> None:
        self.renew()

    def start(self) -> Begun:
        """Start a process, and check what needs no model. Raises _EndedError, and MeasurementError."""
        self.renew()
        self._started += 1
        self._place = self._folder / f"process-{self.threads}-{self._started}"
        self._place.mkdir()
        self._worker = WorkerProcess(self.threads, forked_process.kept, prepared=True, imports=_IMPORTS, module=_WORKER)
        found: Begun = self._ask(Begin(str(self._place), self._backend, self.threads), _START_S)
        return found

    def renew(self) -> None:
        """End the process, with all that it has written. The next question starts another one."""
        if self._worker is not None:
            self._worker.kill()
            shutil.rmtree(self._place, ignore_errors=True)
        self._worker = self._open = None

    def open(self, each: TrialModel) -> Opened:
        """Import a model in the process. Raises _EndedError."""
        if self._worker is None:
            self.start()
        model = each.model.SerializeToString()
        values = self._folder / f"values-{sha256(model).hexdigest()[:16]}"
        found: Opened = self._ask(Open(each.name, model, str(values)), _OPEN_S)
        self._open = each
        return found

    def ask(self, message: object, limit_s: float, each: TrialModel) -> Any:
        """The reply to a message about the model. Raises _EndedError."""
        if self._open is not each:
            self.open(each)
        return self._ask(message, limit_s)

    def _ask(self, message: object, limit_s: float) -> Any:
        assert self._worker is not None
        try:
            return self._worker.ask(message, limit_s)
        except WorkerDiedError as died:
            rejection = died.rejection
            doing = self._place / STAGE
            what = doing.read_text() if doing.exists() else ""
            self.renew()
            kind = "hang" if rejection.kind is RejectionKind.TIMEOUT else "inputs" if what == READ_ONLY else "crash"
            raise _EndedError(kind, f"{what}: {rejection.message}" if what else rejection.message) from died


def _dtypes_in(each: TrialModel) -> set[str]:
    """The dtypes of a model's inputs and outputs."""
    kinds = {info.type.tensor_type.elem_type for info in (*each.model.graph.input, *each.model.graph.output)}
    return {DTYPES[kind] for kind in kinds & DTYPES.keys()}


def _dtypes_of(claim: Claim) -> set[str]:
    """The dtypes of a kernel's inputs and outputs."""
    return {kind.partition("[")[0] for kind in (*claim.where.inputs, *claim.where.outputs)}


def _onnx_names(backend: Backend) -> str:
    """The strings in the backend's source that are ONNX's names of operators, with Relax's."""
    try:
        source = inspect.getsource(sys.modules[type(backend).__module__])
    except (KeyError, OSError, TypeError):
        return ""
    found = {each: relax_names(each) for each in re.findall(r"[\"']([A-Z]\w+)[\"']", source)}
    return ", ".join(f"{name} is {' or '.join(names)}" for name, names in found.items() if names)
