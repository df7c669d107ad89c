"""The Python interface: compile, load, register."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.backends.base import Backend
from collage.backends.registry import Registry, builtin_registry
from collage.core.progress import Progress
from collage.errors import UsageError, unknown_names
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.patterns.explicit import Check
from collage.patterns.match import MatchSource

if TYPE_CHECKING:
    from collage.frontend.load import ModelSource

LEVELS = ("op", "graph")
GRAPH_LEVEL_S = 300.0
"""Seconds of trials where nobody says how many: most searches of the paper's workloads settle within."""


@cache
def default_registry() -> Registry:
    """The registry behind the convenience functions: built-in backends and those of installed packages."""
    return builtin_registry()


def register_backend(backend: Backend) -> None:
    """Add a backend to the default registry. Raises RegistrationError when its name is taken."""
    default_registry().register(backend)


def add_backend_pattern(
    backend: str, pattern: Any, name: str | None = None, check: Check | None = None
) -> None:
    """Add an explicit pattern to a backend of the default registry (§2.3, Listing 1, method 1).

    ``check`` takes the matched operators and returns True, or False or the reason why they do not fit.
    """
    default_registry().patterns.add_pattern(backend, pattern, name, check)


def add_backend_pattern_rule(backend: str, pattern_rule: MatchSource) -> None:
    """Add a pattern rule to a backend of the default registry (§2.3, Listing 1, method 2)."""
    default_registry().patterns.add_rule(backend, pattern_rule)


def compile(
    model: ModelSource,
    *,
    backends: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    tune_trials: int = 0,
    db: str | Path | None = None,
    registry: Registry | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | bool | None = None,
    time_limit_s: float = 60.0,
    streams: bool = True,
    level: str = "op",
    budget_s: float | None = None,
    inputs: Mapping[str, Any] | None = None,
    quick: bool = False,
    strict: bool = False,
    remeasure: bool = False,
    exact: bool = False,
) -> CompiledModule:
    """Compile an ONNX model to the fastest mix of backends, by measuring.

    ``model`` is a path, bytes or a ModelProto; ``shapes`` fixes symbolic inputs (elements per axis);
    ``backends`` restricts the choice (default: all that are available); ``threads`` defaults to the cores this
    process can keep busy (its CPU set, or its quota rounded down); ``db`` is the measurement database (default: in
    the user's cache directory);
    ``time_limit_s`` bounds each candidate, in seconds; ``tune_trials`` lets TVM tune convolutions and matmuls.
    ``inputs`` are values to measure and check with, by name, where random ones make no sense (an input that is a
    shape, say); they fix symbolic shapes, too. ``quick`` takes few samples of few candidates: the outputs are checked
    as always, but among close candidates the choice is a guess.
    ``remeasure`` measures everything again that ``db`` knows, from a busy hour, say.
    ``exact`` leaves out algorithms that reassociate, Winograd's and Strassen's, with which a large number takes digits
    from the small ones beside it.
    Without ``streams`` kernels run one after another, never side by side.
    ``level`` is "op", or "graph" for the evolutionary search after it (§2.4.3), which runs whole networks for
    ``budget_s`` seconds (default: 300; Ctrl-C ends it with the best so far).

    Single operators that TVM cannot import run on some engine, and so does all from where shapes depend on data; a
    model that cannot be cut into parts runs whole on the fastest engine. The report says so and why, and ``strict``
    makes it an error. ``progress`` is a callable, False for silence, or None for a bar where one can be seen.

    Raises ModelError, UsageError, DatabaseError, MeasurementError or NoPlacementError, all CollageError.
    """
    from collage.compiler.compile import compile_model
    from collage.compiler.options import CompileOptions
    from collage.measure_db.effort import FULL, QUICK

    if level not in LEVELS:
        raise unknown_names("level", [level], LEVELS)
    if budget_s is not None and (level != "graph" or not budget_s > 0):
        raise UsageError("budget_s is for level='graph', and more than 0 seconds.")
    if quick and tune_trials:
        raise UsageError(
            "a quick compile does not tune: leave out either quick or tune_trials (--quick or --tune-trials)."
        )
    graph_level_s = (GRAPH_LEVEL_S if budget_s is None else budget_s) if level == "graph" else None
    options = CompileOptions(
        backends=backends,
        shapes=dict(shapes or {}),
        threads=threads,
        tune_trials=tune_trials,
        db=Path(db) if db is not None else None,
        seed=seed,
        time_limit_s=time_limit_s,
        streams=streams,
        graph_level_s=graph_level_s,
        inputs=dict(inputs or {}),
        effort=QUICK if quick else FULL,
        strict=strict,
        since=time.time() if remeasure else 0.0,
        exact=exact,
    )
    chosen = registry if registry is not None else default_registry()
    with _shown(progress) as show:
        return compile_model(model, options, chosen, show)


def compile_shapes(
    model: ModelSource,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    *,
    strict: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    **options: Any,
) -> ShapedModule:
    """Compile an ONNX model for several sets of shapes: one module, with a placement for each.

    A call runs the placement for exactly its inputs' shapes. Others run on ONNX Runtime, with one warning; with
    ``strict`` they are errors, and what is one in ``compile``. ``options`` are those of ``compile``, which this calls
    for each set.

    Raises what ``compile`` does, and UsageError when two sets are the same.
    """
    from collage.compiler.shape_sets import compile_each

    with _shown(progress) as show:
        return compile_each(model, shapes, strict, partial(compile, progress=show, strict=strict, **options))


def _shown(
    progress: Callable[[Progress], None] | bool | None,
) -> AbstractContextManager[Callable[[Progress], None]]:
    if callable(progress):
        return nullcontext(progress)
    from collage.report.progress_display import display

    return display(progress)


def load(
    path: str | Path,
    *,
    registry: Registry | None = None,
    share: bool = True,
    verify: bool = False,
    strict: bool = False,
    trusted_key: str | Path | None = None,
) -> CompiledModule | ShapedModule:
    """Load a module that ``save`` or ``collage compile`` wrote; needs neither the model nor a database.

    A module file is a program: it holds machine code, which runs with this process's rights. Load only files from whom
    you would take a program. With ``trusted_key``, the path of a public key, nothing is loaded that its owner has not
    signed (`collage sign`).

    Weights stay in the file, which is mapped; processes that load it share them. With ``share`` off they are read into
    memory of this process, with huge pages where the system gives any: loading takes longer, and networks that stream
    much through the caches run a little faster. ``verify`` compares all of the file with its digests first.

    A file with placements for several sets of shapes gives a ShapedModule; ``strict`` makes a call with others an
    error, which else runs on ONNX Runtime.

    Raises ModuleFileError when the file is damaged or was made for another machine or set of libraries.
    """
    from collage.module.load import load_file

    chosen = registry if registry is not None else default_registry()
    return load_file(Path(path), chosen, share=share, verify=verify, strict=strict, trusted_key=trusted_key)
