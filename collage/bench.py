"""Collage against each installed engine on the whole model, fairly: same inputs, threads and precision.

Every contender lives in a process of its own and runs in bursts that take turns: spinning threads of one that
has just run do not slow the next, and a machine that gets slower meanwhile slows all alike.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.bench_worker import ENGINES, Burst, Ready, Samples, Setup
from collage.child_process import ChildError, ChildProcess
from collage.errors import CollageError, UsageError, unknown_names
from collage.frontend.load import load_onnx
from collage.frontend.model import from_simplified
from collage.frontend.random_inputs import random_inputs
from collage.frontend.shapes import fix_shapes, model_inputs
from collage.frontend.simplify import simplify
from collage.graph.dataflow import Array
from collage.measure_db.compare import relative_error
from collage.measure_db.timing import summary
from collage.progress import Progress
from collage.target import usable_cores

OURS = "collage"
REFERENCE = "onnxruntime"

_BURST_S = 0.1
"""Short, so that a change in the machine's load meets all contenders alike."""
_SETTLE_S = 0.05
"""Pause before a burst: ONNX Runtime's threads spin for some milliseconds after a run."""


def bench(
    model: str | Path,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    engines: Sequence[str] | None = None,
    rounds: int = 30,
    db: str | Path | None = None,
    module: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Compare Collage with engines on an ONNX file; the JSON contract of ``collage bench --json``.

    ``engines`` defaults to all that are installed; ``module`` is a compiled module of the model, made here
    when not given. Times are microseconds; ``speedup_vs_best_engine`` is the best engine's median over
    Collage's, None when no engine ran the model, and ``within_noise`` tells that it shows no difference.
    Engines that were not asked for by name and cannot run the model are listed under ``failed``. Raises
    UsageError, ModelError and what ``collage.compile`` raises.
    """
    show = progress or (lambda _: None)
    chosen = _choose(engines)
    cores = _threads(threads, module)
    path = Path(model)
    show(Progress("prepare", 0, 1, path.name))
    setup = _setup(path, dict(shapes or {}), cores, seed)
    with ExitStack() as stack:
        if module is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="collage-bench-"))
            module = Path(folder) / "module.collage"
            _compile(path, dict(shapes or {}), cores, db, seed, show, module)
        contenders, errors, failed = _start(setup, chosen, str(module), engines is not None, stack, show)
        samples = _rounds(contenders, rounds, show)
    found = {name: _timing(samples[name], errors[name]) for name in contenders}
    rivals = {name: timing["median_us"] for name, timing in found.items() if name != OURS}
    best = min(rivals, key=rivals.__getitem__) if rivals else None
    return {
        "model": path.name,
        "threads": cores,
        "rounds": rounds,
        "engines": found,
        "speedup_vs_best_engine": round(rivals[best] / found[OURS]["median_us"], 4) if best else None,
        "best_engine": best,
        "within_noise": _within_noise(found[best], found[OURS]) if best else None,
        "failed": failed,
    }


def _choose(engines: Sequence[str] | None) -> list[str]:
    """Names of the engines to run beside Collage. Raises UsageError, once for all names that are wrong."""
    from collage.api import default_registry

    known = [name for name in ENGINES if name != OURS]
    probes = default_registry().availability()
    if engines is None:
        return [name for name in known if probes[name]]
    wanted = [name for name in dict.fromkeys(each.lower() for each in engines) if name != OURS]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise unknown_names("engine", unknown, known)
    missing = [f"{name} ({probes[name].reason})" for name in wanted if not probes[name]]
    if missing:
        raise UsageError(f"engines that are not available: {', '.join(missing)}.")
    return wanted


def _threads(threads: int | None, module: str | Path | None) -> int:
    """Threads for all contenders; those of the module when there is one."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}.")
    if module is None:
        return threads or usable_cores()
    from collage.runtime.file import read_summary

    report, _, _ = read_summary(Path(module))
    if threads is not None and threads != report.threads:
        raise UsageError(
            f"{module} was compiled for {report.threads} threads, not {threads}. Leave --threads out."
        )
    return report.threads


def _setup(path: Path, shapes: Mapping[str, Sequence[int]], threads: int, seed: int) -> Setup:
    """What all contenders share. Raises ModelError and UsageError."""
    proto = load_onnx(path)
    symbolic = {each.name: each.type.tensor_type.shape for each in model_inputs(proto) if each.name in shapes}
    dims = _named_dims(symbolic, shapes)
    fix_shapes(proto, shapes)
    model = from_simplified(simplify(proto), path.stem)
    arrays = random_inputs(model, np.random.default_rng(seed))
    return Setup(
        engine="",
        path=str(path),
        threads=threads,
        inputs=dict(zip(model.input_names, arrays, strict=True)),
        outputs={
            name: model.graph.type_of(value)
            for name, value in zip(model.output_names, model.graph.outputs, strict=True)
        },
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        dims=dims,
    )


def _named_dims(
    symbolic: Mapping[str, onnx.TensorShapeProto], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Extents of the symbolic dimensions that have a name, and the same extent everywhere."""
    found: dict[str, set[int]] = {}
    for name, proto in symbolic.items():
        for dim, extent in zip(proto.dim, shapes[name], strict=False):
            if dim.dim_param:
                found.setdefault(dim.dim_param, set()).add(extent)
    return {name: min(extents) for name, extents in found.items() if len(extents) == 1}


def _compile(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    threads: int,
    db: str | Path | None,
    seed: int,
    show: Callable[[Progress], None],
    output: Path,
) -> None:
    from collage.api import compile

    compile(path, shapes=shapes, threads=threads, db=db, seed=seed, progress=show).save(output)


def _start(
    setup: Setup,
    engines: Sequence[str],
    module: str,
    asked_for: bool,
    stack: ExitStack,
    show: Callable[[Progress], None],
) -> tuple[dict[str, _Contender], dict[str, float | None], dict[str, str]]:
    """Start the contenders one by one: they, how far their outputs are off, and who failed and why."""
    contenders: dict[str, _Contender] = {}
    errors: dict[str, float | None] = {}
    failed: dict[str, str] = {}
    expected: Sequence[Array] | None = None
    names = list(dict.fromkeys([REFERENCE, *engines, OURS]))
    for position, name in enumerate(names):
        show(Progress("start", position, len(names), name))
        contender = _Contender(_for(setup, name, module))
        stack.callback(contender.kill)
        try:
            outputs = contender.outputs()
        except ChildError as failure:
            if name == OURS:
                raise CollageError(f"the compiled module failed: {failure}") from None
            if asked_for and name in engines:
                raise CollageError(f"{name} cannot run {setup.path}: {failure}") from None
            failed[name] = str(failure)
            continue
        if name == REFERENCE:
            expected = outputs
        errors[name] = None if expected is None else _largest_error(outputs, expected)
        if name == OURS or name in engines:
            contenders[name] = contender
        else:
            contender.kill()  # it was there for its outputs only
    return contenders, errors, failed


def _for(setup: Setup, engine: str, module: str) -> Setup:
    path = module if engine == OURS else setup.path
    return Setup(engine, path, setup.threads, setup.inputs, setup.outputs, setup.shapes, setup.dims)


def _largest_error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    if len(actual) != len(expected):
        return math.inf
    return max((relative_error(a, e) for a, e in zip(actual, expected, strict=True)), default=0.0)


def _rounds(
    contenders: Mapping[str, _Contender], rounds: int, show: Callable[[Progress], None]
) -> dict[str, list[int]]:
    """Nanoseconds of each contender's calls; the order rotates from round to round."""
    names = list(contenders)
    samples: dict[str, list[int]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            show(Progress("run", number, rounds, name))
            time.sleep(_SETTLE_S)
            try:
                samples[name] += contenders[name].burst(_BURST_S)
            except ChildError as failure:
                raise CollageError(f"{name} failed in round {number + 1}: {failure}") from None
    show(Progress("run", rounds, rounds))
    return samples


def _timing(samples: Sequence[int], error: float | None) -> dict[str, Any]:
    found = summary(samples)
    return {
        "median_us": round(found.median_us, 3),
        "noise_us": round(found.noise_us, 3),
        "min_us": round(found.min_us, 3),
        "p90_us": round(found.p90_us, 3),
        "samples": found.repeats,
        "max_relative_error": error,
    }


def _within_noise(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether the two medians' 95 % confidence intervals meet."""
    apart = abs(first["median_us"] - second["median_us"])
    return bool(apart <= first["noise_us"] + second["noise_us"])


class _Contender(ChildProcess):
    """The parent's side of a contender."""

    def __init__(self, setup: Setup) -> None:
        super().__init__("collage.bench_worker", subprocess.DEVNULL)
        self._setup = setup

    def outputs(self) -> Sequence[Array]:
        """Load and run the model once."""
        ready: Ready = self.ask(self._setup, math.inf)
        return ready.outputs

    def burst(self, seconds: float) -> Sequence[int]:
        """Nanoseconds of the calls of a burst."""
        samples: Samples = self.ask(Burst(seconds), math.inf)
        return samples.nanoseconds
