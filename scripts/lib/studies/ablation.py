"""The backend ablation study (section 2.5.4): Collage with one backend more each time, and without layouts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage.api import default_registry
from collage.backends.base import BUILT_IN, Backend
from collage.backends.registry import Registry
from collage.bench.compiled import Compiled, Options, compile_to
from collage.bench.engines import OURS, prepare, reference
from collage.bench.race import race
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant

ORDER = ("tvm", "onnxruntime", "mkl", "onednn", "native", "openvino")
"""The order in which backends are added. Other backends come last."""
PLAIN = "all, plain layouts only"


@dataclass(frozen=True)
class Step:
    """A set of backends, with the registry that has them."""

    label: str
    backends: tuple[str, ...]
    registry: Registry


def steps(registry: Registry) -> list[Step]:
    """Settings with one more available backend each, and a last one with all of them in plain layouts only."""
    here = [name for name, probe in registry.availability().items() if probe]
    names = sorted(here, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    found = [
        Step(f"+ {name}" if count else name, tuple(names[: count + 1]), registry)
        for count, name in enumerate(names)
    ]
    return [*found, Step(PLAIN, tuple(names), plain_only(registry))]


def plain_only(registry: Registry) -> Registry:
    """A registry of the same backends, which offer variants in the plain layout only."""
    found = Registry(patterns=registry.patterns.copy())
    for name in (*registry.names, *sorted(BUILT_IN)):
        found.register(_plain(registry[name]))
    return found


def _plain(backend: Backend) -> Backend:
    kind = type(backend)

    def variants(self: Backend, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [each for each in kind.variants(self, subgraph, options) if each.layout == "plain"]

    twin = copy(backend)
    object.__setattr__(twin, "__class__", type(f"Plain{kind.__name__}", (kind,), {"variants": variants}))
    return twin


def ablate(model: Path, options: Options, show: Callable[[Progress], None]) -> dict[str, Any]:
    """Compile with each set of backends, and run the modules against each other."""
    modules: dict[str, Compiled] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="collage-ablation-") as folder:
        plan = steps(default_registry())
        for number, step in enumerate(plan):
            show(Progress("ablation", number, len(plan), step.label))
            file = Path(folder) / f"{number}.collage"
            chosen = {"backends": step.backends, "registry": step.registry}
            try:
                modules[step.label] = compile_to(file, model, options, show, **chosen)
            except CollageError as error:  # TVM alone has no convolutions unless it tunes them
                failed[step.label] = str(error)
        setup = prepare(model, threads=options.threads)
        setups = {name: replace(setup, engine=OURS, path=str(each.file)) for name, each in modules.items()}
        expected, _ = reference(setup)
        found = race(setups, expected=expected, rounds=options.rounds, progress=show)
    return {
        "model": model.name,
        "order": [step.label for step in plan],
        "steps": {name: {**t, "mix": modules[name].mix} for name, t in found.timings.items()},
        "failed": {**failed, **found.failed},
    }
