"""The Python interface: compile, load, register."""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.backends.base import Backend
from collage.backends.registry import Registry, builtin_registry
from collage.core.extras import need_compiler
from collage.core.progress import Progress
from collage.errors import UsageError, unknown_names
from collage.module.learned import LearnedShapes
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.patterns.explicit import Check
from collage.patterns.match import MatchSource
from collage.runtime.original import Fallback

if TYPE_CHECKING:
    import onnx

    from collage.cluster.address import ClusterAddress
    from collage.compiler.clock import Budget
    from collage.compiler.task import CompileOptions
    from collage.frontend.pytorch.from_torch import FromTorch
    from collage.frontend.read.load import ModelSource

log = logging.getLogger(__name__)

LEVELS = ("op", "graph")
GRAPH_LEVEL_S = 300.0
"""The default seconds of trials at graph level. Most searches of the paper's workloads settle within this time."""
BUDGET_S: float | None = None
"""The default budget of a compile in seconds; None for as many as it takes."""
QUICK_BUDGET_S = 10.0
"""The default budget of a quick compile in seconds."""
_OF_LIBRARIES = (".cbm", ".joblib", ".json", ".pickle", ".pkl", ".txt", ".ubj")
"""Ends of files that are no ONNX models, so that what is wrong with one is said of libraries' models."""
_SHAPES = "{'image': (1, 3, 224, 224)}"
"""An example for messages."""


@cache
def default_registry() -> Registry:
    """The registry of the convenience functions: the built-in backends, and those of installed packages."""
    return builtin_registry()


def register_backend(backend: Backend, *, replace: bool = False) -> None:
    """Add a backend to the default registry. Raises RegistrationError if its name is taken.

    With ``replace`` it takes the place of the backend of that name, as in a notebook whose cell is run again.
    """
    default_registry().register(backend, replace=replace)


def add_backend_pattern(backend: str, pattern: Any, name: str | None = None, check: Check | None = None) -> None:
    """Add an explicit pattern to a backend of the default registry (§2.3, Listing 1, method 1).

    ``check`` takes the matched operators and returns True, or False or the reason why they do not fit.
    """
    default_registry().patterns.add_pattern(backend, pattern, name, check)


def add_backend_pattern_rule(backend: str, pattern_rule: MatchSource) -> None:
    """Add a pattern rule to a backend of the default registry (§2.3, Listing 1, method 2)."""
    default_registry().patterns.add_rule(backend, pattern_rule)


def compile(
    model: ModelSource | Any,
    example: Any = None,
    *,
    backends: Sequence[str] | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    threads: int | None = None,
    tune_trials: int = 0,
    db: str | Path | None = None,
    registry: Registry | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | bool | None = None,
    time_limit_s: float = 60.0,
    streams: bool = True,
    level: str = "op",
    budget_s: float | Budget | None = None,
    effort: str = "usual",
    inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    quick: bool = False,
    strict: bool = False,
    remeasure: bool = False,
    exact: bool = False,
    reassociate: bool = True,
    cluster: str | ClusterAddress | None = None,
    tolerance: float = 0.0,
    metric: str | Callable[[Mapping[str, Any], Mapping[str, Any]], float] | None = None,
    device: str = "auto",
    trust: bool = False,
) -> CompiledModule | ShapedModule:
    """Compile an ONNX model to the fastest mix of backends, by measuring.

    - ``model``: a path, bytes or a ModelProto; ``hf://owner/name`` on the Hugging Face Hub, with or without the path of
      an .onnx file in that repository (``owner/name@revision`` for a revision of it); a model of LightGBM, XGBoost,
      CatBoost or scikit-learn, or the path of one that its library has saved (see ``trust``); or a ``torch.nn.Module``,
      ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``.
    - ``example``: what a model of PyTorch is called with: a tensor or an array, a tuple of arguments, or a mapping of
      keyword arguments. A module needs it, and is compiled for its shapes, in eval mode. Of a program it fixes open
      dimensions. Its integers, and floats that are not all equal, are ``inputs`` unless these are given.
    - ``backends``: names of the backends that may be used, as a list or as "a,b" (default: all that are available).
    - ``shapes``: shapes of symbolic inputs by name (elements per axis).
    - ``batch``: the elements of the first axis of all inputs that leave it open, unless ``shapes`` has them. Without
      either that axis is placed for 1, and other numbers run on ONNX Runtime. A model whose operators all map rows to
      rows, of tables and trees, takes any number of rows. If other axes are open as well, the fastest engine runs the
      model in any shapes.
    - ``threads``: the default is the cores that this process can keep busy (its CPU set, or its quota rounded down).
    - ``tune_trials``: the trials that TVM has to tune a convolution or matrix product.
    - ``db``: the measurement database (default: a file in the user's cache directory).
    - ``registry``: the backends to choose from (default: ``default_registry()``).
    - ``seed``: the seed of made-up inputs and of the search.
    - ``progress``: a callable, False for silence, or None for a bar where there is a terminal.
    - ``time_limit_s``: the seconds that a candidate may take to be built and measured.
    - ``streams``: False has kernels run one after another, never side by side.
    - ``level``: "op", or "graph" for an evolutionary search after it (§2.4.3), which runs whole networks.
    - ``budget_s``: the seconds of the whole compile (default: as many as it takes, but 300 for that search; 10 where it
      is ``quick``). When they are over the compile hands over the best module so far, which is at least the fastest
      engine on the whole model.
    - ``effort``: "usual", or "exhaustive" to measure every candidate to the end, also those that lose early races.
    - ``inputs``: values to measure and check with, by name, for inputs where random values make no sense, such as a
      shape. They fix symbolic shapes, too. Several such mappings, in a list or an iterator, are samples to measure
      errors on (see ``tolerance``).
    - ``quick``: take few samples of few candidates. Outputs are checked as always, but the choice is not sure.
    - ``strict``: raise an error where an operator cannot be converted and no library has a kernel for it, or where an
      engine has to run the whole model or its dynamic suffix.
    - ``remeasure``: measure again what ``db`` knows, for example when the machine was busy.
    - ``exact``: use only kernels that were seen to keep NaN and infinities, from backends that declare it, and none
      that reassociates.
    - ``reassociate``: False leaves out algorithms that reassociate (Winograd's). With these a large number takes digits
      from the small ones beside it.
    - ``cluster``: the address of a Ray cluster whose nodes measure instead of this machine, as far as they match it:
      "auto", "host:port", "ray://host:port", or "local" for one that is this machine alone.
    - ``tolerance``: the largest error of the outputs that you allow, on the ``inputs`` or on made-up ones: kernels may
      then compute in bfloat16 where that is faster. With 0 all compute in the model's own dtypes.
    - ``metric``: what the error is: "max" (the default) for the largest difference over the scale of its channel, row
      or column, "output" for the largest one over that of the whole output, "top1" for the share of decisions that
      differ, "cosine" for 1 - the cosine of their angle, or a function of the reference's outputs and the module's, by
      name, that returns a number.
    - ``device``: "cpu" for the CPU alone, "cuda" to fail where no NVIDIA GPU can be used, or "auto" (the default) for
      whatever is fastest of what is there.
    - ``trust``: load a joblib or pickle file. Such files are programs, which can do anything on this machine.

    Without ``strict``, operators that TVM cannot import run on an engine, and so does everything from where shapes
    depend on data. A model that cannot be cut into parts runs whole on the fastest engine. The report gives the reason.

    Ctrl-C (KeyboardInterrupt) returns the best module so far, too, with a warning that says so. What was measured is
    kept, and the next compile goes on from there. KeyboardInterrupt is raised where there is no module yet, in the
    first seconds, and by a second Ctrl-C.

    Raises ModelError, UsageError, DatabaseError, ClusterError, MeasurementError or NoPlacementError, all of which are
    CollageErrors.
    """
    need_compiler()
    from collage.check.metrics import check_tolerance, metric_of
    from collage.cluster.address import as_address
    from collage.compiler.clock import Budget
    from collage.compiler.compile import compile_model
    from collage.compiler.task import CompileOptions
    from collage.frontend.pytorch.from_torch import from_torch
    from collage.measure.timing.effort import EFFORTS, QUICK

    chosen_metric, tolerance = metric_of(metric), check_tolerance(tolerance)
    backends, shapes = _names("backends", backends), _checked_shapes(shapes)
    samples: list[Mapping[str, Any]] = []
    if inputs is not None and not isinstance(inputs, Mapping):
        samples, inputs = list(inputs), None
        if not samples:
            raise UsageError("inputs has no sample: give at least one mapping of arrays by name, or leave it out.")
    if chosen_metric.needs_samples and not (samples or inputs):
        raise UsageError(
            f"the metric {chosen_metric.name} says nothing on made-up inputs: give samples with inputs (--input)."
        )
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise UsageError(f"batch must be at least 1, not {batch}.")
    if level not in LEVELS:
        raise unknown_names("level", [level], LEVELS)
    if effort not in EFFORTS:
        raise unknown_names("effort", [effort], EFFORTS)
    if quick and effort != "usual":
        raise UsageError("a quick compile is no exhaustive one: leave out either quick or effort.")
    if isinstance(budget_s, (int, float)) and not budget_s > 0:
        raise UsageError("budget_s must be more than 0 seconds.")
    if not 0 < time_limit_s < math.inf:
        raise UsageError("time_limit_s must be a number of seconds above 0.")
    if quick and level == "graph":
        raise UsageError("a quick compile does not search at the graph level: leave out either quick or level.")
    if quick and tune_trials:
        raise UsageError(
            "a quick compile does not tune: leave out either quick or tune_trials (--quick or --tune-trials)."
        )
    if budget_s is None:
        budget_s = QUICK_BUDGET_S if quick else BUDGET_S
    budget = Budget.of(None if budget_s == math.inf else budget_s)
    graph_level_s = (GRAPH_LEVEL_S if budget is None else budget.seconds) if level == "graph" else None
    options = CompileOptions(
        backends=backends,
        shapes=shapes,
        batch=batch,
        threads=threads,
        tune_trials=tune_trials,
        db=Path(db) if db is not None else None,
        seed=seed,
        time_limit_s=time_limit_s,
        streams=streams,
        graph_level_s=graph_level_s,
        budget=budget,
        inputs=dict(inputs or {}),
        effort=QUICK if quick else EFFORTS[effort],
        strict=strict,
        since=time.time() if remeasure else 0.0,
        exact=exact,
        reassociate=reassociate,
        cluster=None if cluster is None else as_address(cluster),
        tolerance=tolerance,
        metric=chosen_metric,
        samples=tuple(samples),
        device=device,
    )
    chosen = registry if registry is not None else default_registry()
    with _shown(progress) as show:
        source: ModelSource
        given = from_torch(model, example)
        if given is not None:
            source, name, options = given.model, given.name, _with_example(options, given)
        elif example is not None:
            raise UsageError(
                "an example is for modules and programs of PyTorch. Models of ONNX, and fitted ones of other libraries "
                "say themselves what they take: leave it out, or give inputs={name: array} to measure with."
            )
        else:
            source, name = as_onnx(on_disk(model, quiet=progress is False), trust=trust)
        module = compile_model(source, options, chosen, show, name=name)
    parts = module.stored
    if not module.report.for_one or strict or parts.original is None:
        return module
    ports = parts.program.model_inputs, parts.program.model_outputs
    return ShapedModule([module], Fallback(parts.original, *ports, parts.target.threads))


def on_disk(model: Any, *, quiet: bool = False) -> Any:
    """The model, or the path of the file if it is an address on the Hugging Face Hub. Raises ModelError, UsageError."""
    from collage.frontend.read.hub import downloaded, is_address

    return downloaded(model, quiet=quiet) if is_address(model) else model


def _with_example(options: CompileOptions, given: FromTorch) -> CompileOptions:
    """The options with the example's values and shapes, as far as there are none."""
    return replace(
        options,
        inputs=options.inputs or ({} if options.samples else dict(given.inputs)),
        shapes=options.shapes or ({} if options.batch else dict(given.shapes)),
    )


def as_onnx(model: Any, *, trust: bool = False) -> tuple[ModelSource, str]:
    """The ONNX model of what ``compile`` takes, and a name for it; "" if its path has that.

    Paths of ONNX models, and unknown files, stay what they are. Raises ModelError and UsageError.
    """
    from onnx import ModelProto

    if isinstance(model, (bytes, ModelProto)):
        return model, ""
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.suffix.lower() == ".onnx" or not path.is_file():
            return model, ""
        from collage.frontend.trees.files import read_model_file, recognise

        if recognise(path) is None and path.suffix.lower() not in _OF_LIBRARIES:
            return model, ""
        return read_model_file(path, trust), path.stem
    from collage.frontend.trees.objects import from_object

    found = from_object(model)
    if found is None:
        raise UsageError(
            f"a {type(model).__module__}.{type(model).__qualname__} is no model that Collage knows: give one of ONNX, "
            "PyTorch, LightGBM, XGBoost, CatBoost or scikit-learn."
        )
    return found, type(model).__name__


def compile_shapes(
    model: ModelSource,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    *,
    strict: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    budget_s: float | None = None,
    **options: Any,
) -> ShapedModule:
    """Compile an ONNX model for several sets of shapes. The result is one module, with a placement for each set.

    A call runs the placement for exactly the shapes of its inputs. Calls with other shapes run on ONNX Runtime, with
    one warning. ``strict`` makes such calls errors, and is handed on to ``compile``. ``options`` are those of
    ``compile``, which is called for each set; samples in an iterator are read once. The sets share ``budget_s``
    seconds: each has the same share of what those before it have left. After Ctrl-C the set that is compiled gets its
    best module so far, and those after it their first one.

    Raises what ``compile`` raises, and UsageError for no sets or equal ones, before anything is measured.
    """
    need_compiler()
    from collage.compiler.clock import share_of
    from collage.core.deadline import Deadline
    from collage.frontend.read.load import load_onnx
    from collage.frontend.read.shapes import check_sets
    from collage.frontend.read.weights import WeightFiles
    from collage.report.best_so_far import INTERRUPT

    model = on_disk(model, quiet=progress is False)
    if isinstance(shapes, Mapping) or not isinstance(shapes, Iterable):
        raise UsageError(f"shapes must be a list of sets, each such as {_SHAPES}; it is {shapes!r}.")
    sets = [_checked_shapes(each) for each in shapes]
    inputs = options.get("inputs")
    if inputs is not None and not isinstance(inputs, Mapping):
        options["inputs"] = list(inputs)
    with _shown(progress) as show, WeightFiles() as files:
        original = load_onnx(model, files)
        check_sets(original, sets)
        modules: list[CompiledModule] = []
        course = Deadline()
        for number, each in enumerate(sets):
            interrupted = any(module.report.ended == INTERRUPT for module in modules)
            share = share_of(budget_s, course, len(sets) - number, interrupted=interrupted)
            found = compile(model, shapes=each, budget_s=share, progress=show, strict=strict, **options)
            modules += found.modules if isinstance(found, ShapedModule) else [found]
        return ShapedModule(modules, None if strict else _fallback(original, modules[0]))


def _fallback(original: onnx.ModelProto, module: CompiledModule) -> Fallback | None:
    """What answers calls with other shapes than the module's."""
    from collage.frontend.model_artifacts import fits_an_artifact
    from collage.frontend.original import AsLoaded
    from collage.runtime.original import Fallback

    if not fits_an_artifact(original):
        log.warning(
            "the model's constants have 2 GiB or more, which one ONNX file cannot hold: calls with other shapes will "
            "be errors"
        )
        return None
    program, threads = module.program, module.report.threads
    return Fallback(AsLoaded.of(original).serialised(), program.model_inputs, program.model_outputs, threads)


def _names(option: str, given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The names, of which a string has several with commas between them. Raises UsageError for what are none."""
    if given is None:
        return None
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"{option} must be names, as a list or as 'a,b'; it is {given!r}.")
    found = tuple(each.strip() for each in names if each.strip())
    if not found:
        raise UsageError(f"{option} names nothing; leave it out for all.")
    return found


def _checked_shapes(given: Any) -> dict[str, tuple[int, ...]]:
    """The shapes by input. Raises UsageError for anything but sequences of integers by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"shapes must be by the inputs' names, such as {_SHAPES}; it is {given!r}.")
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in given.items():
        try:
            if isinstance(shape, (str, bytes)):
                raise TypeError
            found[name] = tuple(map(operator.index, shape))
        except TypeError as error:
            raise UsageError(
                f"shapes has to give {name} a sequence of integers, such as {_SHAPES}; it gives {shape!r}."
            ) from error
    return found


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
    learn_shapes: str | Path | None = None,
) -> CompiledModule | ShapedModule:
    """Load a module that ``save`` or ``collage compile`` wrote. Neither the model nor a database is needed.

    A module file is a program: it holds machine code, which runs with this process's rights. Load only files from
    people whose programs you would run. Signatures are the work of tools for files, such as gpg and cosign.

    Weights stay in the file, which is mapped, so that processes share them. With ``share=False`` they are read into
    this process's memory, in huge pages where the system has any. Loading then takes longer, and networks with many
    weights run a little faster. ``verify`` first compares the whole file with its digests.

    A file with placements for several sets of shapes gives a ShapedModule. Its calls with other shapes run on ONNX
    Runtime, or are errors with ``strict``. ``registry`` has the backends (default: ``default_registry()``).

    On another CPU, or with other libraries, the placement runs if its kernels do, and else the original model on ONNX
    Runtime, with one warning either way; with ``strict`` the latter is an error. ``learn_shapes`` is a file in which
    the shapes of calls are counted; ``collage compile --shapes FILE`` places the frequent ones.

    Raises ModuleFileError for a damaged file, one of a newer version, and one of which nothing runs here.
    """
    from collage.module.load import load_file

    chosen = registry if registry is not None else default_registry()
    module = load_file(Path(path), chosen, share=share, verify=verify, strict=strict)
    if learn_shapes is not None:
        module.learned = LearnedShapes(Path(learn_shapes))
    return module
