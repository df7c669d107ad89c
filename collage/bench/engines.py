"""Comparing Collage with each installed engine on a whole model, with the same inputs, threads and precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.backends.engine import Engine
from collage.bench.race import AS_FAST, outputs_of, race, verdict
from collage.bench.worker import ENGINES, Setup
from collage.core.child_process import ChildError
from collage.core.progress import Progress
from collage.core.temporary import TemporaryFolder
from collage.errors import ModelError, UsageError, unknown_names
from collage.frontend.model import from_simplified
from collage.frontend.random_inputs import random_inputs, random_value
from collage.frontend.random_rows import random_rows
from collage.frontend.read.external_data import without_links
from collage.frontend.read.load import load_onnx
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.rows import BLOCK_ROWS, take_rows
from collage.frontend.read.shapes import chosen_shapes, declared_types, fitting, fix_shapes, model_inputs
from collage.frontend.read.value_types import value_type
from collage.frontend.rewrite.simplify import simplify
from collage.graph.dataflow import Array, TensorType
from collage.graph.value_type import STRING, TENSOR
from collage.kernel.target import usable_cores
from collage.measure.worker.serialisation import pickle_backend
from collage.module.file import Summary, closest, read_summary
from collage.report.best_so_far import INTERRUPT
from collage.report.report import Report
from collage.runtime.inputs import extents, shape_arguments

OURS = "collage"
REFERENCE = "onnxruntime"


@dataclass(frozen=True)
class Contest:
    """The options of a comparison.

    ``shapes`` fixes symbolic inputs (elements per axis). ``threads`` are those of all contenders; the default are the
    cores that this process can keep busy. ``engines`` defaults to all that are installed, those of other packages
    among them. ``others`` maps names of contenders from outside to "module:function" (see
    ``collage.bench.worker.Setup``). ``seed`` is that of the random inputs. A model of tables, of any number of rows,
    has a race for each number of ``rows``. ``trust`` is as in ``collage.compile``.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    threads: int | None = None
    engines: Sequence[str] | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 30
    seed: int = 0
    rows: Sequence[int] = ()
    trust: bool = False


def bench(
    model: str | Path,
    contest: Contest,
    *,
    db: str | Path | None = None,
    module: str | Path | None = None,
    budget_s: float | None = None,
    quick: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Compare Collage with engines on a model's file; the JSON contract of ``collage bench --json``.

    ``module`` is a compiled module of the model; without it, the model is compiled here, with the database ``db``, and
    with ``budget_s`` and ``quick`` as in ``collage.compile``.
    Times are microseconds. ``speedup_vs_best_engine`` is the best contender's median divided by Collage's, or None when
    no other contender ran the model. ``ratios`` are times of contenders divided by Collage's, round by round: their
    median with its 95 % interval. The ``verdict`` on Collage follows from the best contender's. ``shapes`` are those
    that inputs were given; inputs that the model leaves open have the module's own if ``contest`` has none, and
    ``shapes_of`` says which these are. Contenders that cannot
    run the model are listed under ``failed``; for an engine that was asked for by name this is an error. ``ended`` and
    ``budget_s`` tell what has ended Collage's compile, as in a module's report. A model of tables has the results of a
    race for each number of rows under ``rows``, and those of the last one beside them; its library takes part if it is
    installed, and the file is the library's own. Raises UsageError, ModelError and what
    ``collage.compile`` raises; KeyboardInterrupt also where the compile hands over a module after Ctrl-C, since that is
    not what is to be compared.
    """
    show = progress or (lambda _: None)
    chosen = choose_engines(contest.engines)
    contenders = {name: name for name in chosen} | dict(contest.others) | {OURS: OURS}
    summary = None if module is None else read_summary(Path(module))
    compiled, open_shapes = None, {}
    if summary is not None:
        compiled, program = closest(summary, {name: tuple(shape) for name, shape in contest.shapes.items()})
        open_shapes = {each.name: extents(each) for each in program.model_inputs}
    cores = _threads(contest.threads, module, compiled)
    path = Path(model)
    show(Progress("prepare", 0, 1, path.name))
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryFolder("bench"))
        written, library = _written(path, contest.trust, folder)
        counts = row_counts(written, contest)
        about: dict[str, Any] = {"threads": cores, "shapes": contest.shapes, "seed": contest.seed}
        setups = {count: prepare(written, **about, open_shapes=open_shapes, rows=count) for count in counts or (0,)}
        setup = [*setups.values()][-1]
        if library is not None and counts and contest.engines is None and len(setup.inputs) == 1:
            contenders |= {library: f"collage.bench.libraries:{library}"}
        shapes_of = None
        if summary is not None:
            _refuse_other_model(module, summary, setup)
            if setup.shapes.keys() - contest.shapes.keys() and not counts:
                several = len(summary.modules)
                shapes_of = f"the first of {several} sets in {module}" if several > 1 else str(module)
        link = str(stack.enter_context(without_links(written)))
        if module is None or compiled is None:
            from collage.api import compile

            module = folder / "module.collage"
            options: dict[str, Any] = {"threads": cores, "seed": contest.seed, "db": db}
            options |= {"budget_s": budget_s, "quick": quick}
            shapes = contest.shapes if counts else setup.shapes
            made = compile(written, shapes=shapes, progress=show, **options)
            compiled = made.report
            if compiled.ended == INTERRUPT:
                raise KeyboardInterrupt
            made.save(module)
        required = {OURS, *([] if contest.engines is None else chosen)}
        races = {
            count: _raced(replace(each, path=link, library=str(path)), contenders, str(module), contest, required, show)
            for count, each in setups.items()
        }
    return {
        "model": path.name,
        "threads": cores,
        "rounds": contest.rounds,
        **[*races.values()][-1],
        "shapes": {name: list(shape) for name, shape in setup.shapes.items()},
        "shapes_of": shapes_of,
        "ended": compiled.ended,
        "budget_s": compiled.budget_s,
        **({"rows": {str(count): found for count, found in races.items()}} if counts else {}),
    }


def _raced(
    setup: Setup,
    contenders: Mapping[str, str],
    module: str,
    contest: Contest,
    required: Collection[str],
    show: Callable[[Progress], None],
) -> dict[str, Any]:
    """The results of a race of the contenders, by name, with the module and the same inputs."""
    expected, failed = reference(setup)
    if setup.pool and expected is not None:
        setup = replace(setup, outputs=_bound_types(setup, expected))
    found = race(
        {name: setup_for(setup, engine, module) for name, engine in contenders.items()},
        expected=expected and [None if at in setup.drawn else each for at, each in enumerate(expected)],
        rounds=contest.rounds,
        required=required,
        progress=show,
    )
    ours = found.timings[OURS]
    medians = {name: timing["median_us"] for name, timing in found.timings.items() if name != OURS}
    best = min(medians, key=medians.__getitem__) if medians else None
    intervals = {name: found.interval(name, OURS) for name in medians}
    concluded = verdict(*intervals[best]) if best else None
    return {
        "engines": dict(found.timings),
        "speedup_vs_best_engine": round(medians[best] / ours["median_us"], 4) if best else None,
        "best_engine": best,
        "verdict": concluded,
        "within_noise": concluded == AS_FAST if best else None,
        "ratios": {
            name: {"median": round(found.ratio(name, OURS), 4), "low": round(low, 4), "high": round(high, 4)}
            for name, (low, high) in intervals.items()
        },
        "failed": {**failed, **found.failed},
    }


def _bound_types(setup: Setup, expected: Sequence[Array]) -> dict[str, TensorType | None]:
    """The types of a table's outputs, by those of the reference; None for texts and maps, which no engine can bind."""
    pairs = zip(setup.outputs, expected, strict=True)
    return {
        name: TensorType(each.shape, each.dtype.name) if name in setup.bindable and each.dtype.kind in "biuf" else None
        for name, each in pairs
    }


def _written(path: Path, trust: bool, folder: Path) -> tuple[Path, str | None]:
    """The ONNX file of a model's file, which may be written into the folder, and the library that reads the file."""
    from collage.api import as_onnx

    proto, name = as_onnx(path, trust=trust)
    if not isinstance(proto, onnx.ModelProto):
        return path, None
    from collage.bench.libraries import library_of

    written = folder / f"{name}.onnx"
    written.write_bytes(proto.SerializeToString())
    return written, library_of(path)


def row_counts(path: Path, contest: Contest) -> tuple[int, ...]:
    """The numbers of rows that a model of tables is run with; none for other models, and for fixed shapes.

    Raises UsageError if rows are asked for of a model that does not take any number of them, and ModelError.
    """
    if not contest.shapes and take_rows(load_onnx(path)):
        return tuple(contest.rows) or (BLOCK_ROWS,)
    if contest.rows:
        raise UsageError("rows are for models whose operators all map rows to rows, without fixed shapes.")
    return ()


def reference(setup: Setup) -> tuple[Sequence[Array] | None, dict[str, str]]:
    """ONNX Runtime's outputs, which all others are compared with, or None, and the reason by its name."""
    try:
        return outputs_of(replace(setup, engine=REFERENCE)), {}
    except ChildError as failure:
        return None, {REFERENCE: str(failure)}


def choose_engines(engines: Sequence[str] | None) -> list[str]:
    """The names of the engines to compare with. Raises one UsageError for all names that are wrong."""
    from collage.api import default_registry

    registry = default_registry()
    probes = registry.availability()
    registered = [name for name in probes if isinstance(registry[name], Engine)]
    own = [name for name in registered if isinstance(engine := registry[name], Engine) and engine.own]
    known = [n for n in dict.fromkeys((*ENGINES, *registered)) if n != OURS and n not in own]
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


def _refuse_other_model(module: str | Path | None, summary: Summary, setup: Setup) -> None:
    """Raise UsageError if the module's inputs and outputs are not those of the model.

    A file with several sets of shapes may run others, too.
    """
    wanted = {name: array.shape for name, array in setup.inputs.items()}, [*setup.outputs]
    several = summary.shaped and summary.fallback
    for _, program in summary.modules:
        shapes = {port.name: extents(port) for port in program.model_inputs}
        outputs = [port.name for port in program.model_outputs]
        alike = shapes.keys() == wanted[0].keys() and (several or _fit(shapes, wanted[0]))
        if alike and outputs == wanted[1]:
            return
    raise UsageError(
        f"{module} is no module of {setup.path} with these shapes: it takes {_interface_text(shapes, outputs)}, and "
        f"the model takes {_interface_text(*wanted)}."
    )


def _fit(ports: Mapping[str, Sequence[int]], shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether arrays of these shapes fit to the ports, whose unknown extents are -1."""
    return all(
        not port or (len(port) == len(shape) and all(a in (-1, b) for a, b in zip(port, shape, strict=True)))
        for port, shape in ((ports[name], shape) for name, shape in shapes.items())
    )


def _interface_text(shapes: Mapping[str, Sequence[int]], outputs: Sequence[str]) -> str:
    given = shape_arguments([*shapes], [tuple(shape) for shape in shapes.values()])
    return f"{given or 'nothing'} and gives {', '.join(outputs)}"


def _threads(threads: int | None, module: str | Path | None, compiled: Report | None) -> int:
    """The number of threads for all contenders, which is the module's when there is one."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}.")
    if compiled is None:
        return threads or usable_cores()
    if threads is not None and threads != compiled.threads:
        raise UsageError(f"{module} was compiled for {compiled.threads} threads, not {threads}. Leave --threads out.")
    return compiled.threads


def prepare(
    path: Path,
    *,
    threads: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
    open_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rows: int = 0,
) -> Setup:
    """The setup that all contenders share, without the ``engine``; with ``rows``, for so many rows of a table.

    ``open_shapes`` are those of inputs that the model and ``shapes`` leave open, if they fit the model. Raises
    ModelError and UsageError.
    """
    proto = load_onnx(path)
    drawn = Randomness(proto).outputs
    if rows:
        take_rows(proto)
        pool = random_rows(proto, max(rows, BLOCK_ROWS), np.random.default_rng(seed))
        tables = {name: each[:rows] for name, each in pool.items()}
        kinds = {info.name: value_type(info.type) for info in proto.graph.output}
        return Setup(
            engine="",
            path=str(path),
            threads=threads,
            inputs=tables,
            outputs=dict.fromkeys(kinds),
            shapes={name: each.shape for name, each in tables.items()},
            dims={},
            drawn=drawn,
            pool=pool,
            bindable=frozenset(name for name, kind in kinds.items() if kind.kind == TENSOR and kind.dtype != STRING),
        )
    shapes = {**fitting(proto, open_shapes or {}), **(shapes or {})}
    symbolic = {each.name: each.type.tensor_type.shape for each in model_inputs(proto) if each.name in shapes}
    dims = _named_dims(symbolic, shapes)
    declared = declared_types(proto)
    chosen = chosen_shapes(proto, shapes)
    shapes = {**chosen.placed, **chosen.sizes}
    fix_shapes(proto, shapes)
    inputs, outputs = _interface(proto, declared, path.stem, np.random.default_rng(seed))
    return Setup(
        engine="",
        path=str(path),
        threads=threads,
        inputs=inputs,
        outputs=outputs,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        dims=dims,
        drawn=drawn,
    )


def _interface(
    proto: onnx.ModelProto,
    declared: Sequence[onnx.ValueInfoProto],
    name: str,
    rng: np.random.Generator,
) -> tuple[dict[str, Array], dict[str, TensorType | None]]:
    """Random inputs and the types of the outputs, by name; a type is None for a model that only runs whole."""
    try:
        model = from_simplified(simplify(proto, declared=declared), name)
    except ModelError:
        inputs = {info.name: random_value(value_type(info.type), rng) for info in model_inputs(proto)}
        return inputs, dict.fromkeys((info.name for info in proto.graph.output), None)
    arrays = random_inputs(model, rng)
    outputs = zip(model.output_names, model.graph.outputs, strict=True)
    return dict(zip(model.input_names, arrays, strict=True)), {n: model.graph.type_of(v) for n, v in outputs}


def _named_dims(symbolic: Mapping[str, onnx.TensorShapeProto], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The extents of the symbolic dimensions that have a name and the same extent wherever they occur."""
    found: dict[str, set[int]] = {}
    for name, proto in symbolic.items():
        for dim, extent in zip(proto.dim, shapes[name], strict=False):
            if dim.dim_param:
                found.setdefault(dim.dim_param, set()).add(extent)
    return {name: min(extents) for name, extents in found.items() if len(extents) == 1}


def setup_for(setup: Setup, engine: str, module: str) -> Setup:
    """The setup of one contender; Collage runs the module, all others the model."""
    from collage.api import default_registry

    if engine == OURS:
        return replace(setup, engine=engine, path=module)
    registry = default_registry()
    if engine in ENGINES or engine not in registry.availability():
        return replace(setup, engine=engine)
    return replace(setup, engine=engine, backend=pickle_backend(engine, registry[engine]))
