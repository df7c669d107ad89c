"""The curve of time against error: modules at several tolerances, and engines in their own precisions, in one race."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage.bench.engines import OURS, prepare
from collage.bench.race import race
from collage.bench.worker import ENGINES, REDUCED_ENGINES, Setup
from collage.check.accuracy import Accuracy, Asked
from collage.check.metrics import Metric, metric_of
from collage.compiler.clock import share_of
from collage.core.deadline import Deadline
from collage.core.new_file import new_file
from collage.core.progress import Progress
from collage.errors import CollageError, ModelError
from collage.frontend.model import import_model
from collage.frontend.read.external_data import without_links
from collage.frontend.read.load import load_onnx
from collage.frontend.read.shapes import fix_shapes
from collage.frontend.read.value_types import check_samples
from collage.report.best_so_far import INTERRUPT

log = logging.getLogger(__name__)

TOLERANCES = (0.0, 1e-3, 3e-3, 1e-2, 3e-2)
"""The tolerances of a curve: those at which bfloat16 is nowhere, in few and in all products of usual networks."""
UNSEEN = 12
"""The number of made-up inputs that the errors are measured on where no others are given."""
MADE_UP = Asked(0.0, Metric(), made_up=UNSEEN)
_SEED = 0xF7E5
"""Combined with the seed, so that the made-up inputs are not those that a compile has seen."""


@dataclass(frozen=True)
class ParetoRace:
    """A race of modules at several tolerances against engines on ``model``, in ``rounds`` rounds.

    Each contender has so many ``processes``, one after another. ``modules`` are module files by tolerance, and
    ``shapes`` fix symbolic inputs. ``asked`` has the metric of the errors, and the inputs that these are measured on.
    """

    model: Path
    modules: Mapping[float, Path]
    threads: int
    rounds: int = 30
    processes: int = 1
    shapes: Mapping[str, Sequence[int]] | None = None
    seed: int = 0
    asked: Asked = MADE_UP


def curve(contest: ParetoRace, show: Callable[[Progress], None]) -> dict[str, Any]:
    """Run all modules and engines against each other, and compare their outputs with ONNX Runtime's.

    ``points`` has the contenders by name, each with its median in microseconds (``median_us``), that of each round
    (``rounds_us``), the error of its outputs by the metric on all inputs (``error``) and on each of them (``errors``)
    and, for modules, its ``tolerance``. ``frontier`` are the names of those that no other one beats in both, the
    fastest one first. The race runs on the first of the inputs. Raises CollageError where a module fails, and
    MetricError.
    """
    from collage.api import default_registry

    accuracy = _accuracy(contest)
    setup = prepare(contest.model, threads=contest.threads, shapes=contest.shapes, seed=contest.seed)
    setup = replace(setup, inputs=dict(zip(setup.inputs, accuracy.inputs[0], strict=True)))
    probes = default_registry().availability()
    engines = [name for name, probe in probes.items() if probe and name in ENGINES]
    engines += [name for name, (base, _) in REDUCED_ENGINES.items() if probes.get(base)]
    setups: dict[str, Setup] = {
        module_name(tolerance): replace(setup, engine=OURS, path=str(file))
        for tolerance, file in contest.modules.items()
    }
    ours = [*setups]
    with without_links(contest.model) as model:
        setups |= {name: replace(setup, engine=name, path=str(model)) for name in engines if name != OURS}
        found = race(
            setups,
            errors=accuracy.errors,
            rounds=contest.rounds,
            processes=contest.processes,
            required=ours,
            progress=show,
        )
    points = {
        name: {
            "median_us": timing["median_us"],
            "noise_us": timing["noise_us"],
            "rounds_us": [round(each, 3) for each in found.bursts[name]],
            "error": contest.asked.metric.of_all(found.errors[name]),
            "errors": list(found.errors[name]),
        }
        for name, timing in found.timings.items()
    }
    for tolerance in contest.modules:
        points[module_name(tolerance)]["tolerance"] = tolerance
    return {
        "model": contest.model.name,
        "threads": contest.threads,
        "rounds": contest.rounds,
        "metric": contest.asked.metric.name,
        "inputs": accuracy.about,
        "points": points,
        "frontier": frontier(points),
        "failed": dict(found.failed),
    }


def _accuracy(contest: ParetoRace) -> Accuracy:
    """The inputs that errors are measured on, with the reference's outputs."""
    original = load_onnx(contest.model)
    fix_shapes(original, contest.shapes or {})
    try:
        model = import_model(contest.model, contest.shapes)
    except ModelError:  # it only runs whole
        model = None
    asked = replace(contest.asked, samples=check_samples(original, contest.asked.samples))
    return Accuracy.of(original, model, asked, _SEED + contest.seed, Deadline())


def module_name(tolerance: float) -> str:
    """The name of the contender that was compiled within a tolerance."""
    return f"{OURS} {tolerance:g}" if tolerance else f"{OURS} float32"


def frontier(points: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of the points that no other one beats in time and error, the fastest one first."""
    kept: list[str] = []
    least: float | None = None
    for name in sorted(points, key=lambda name: (points[name]["median_us"], points[name]["error"])):
        error = points[name]["error"]
        if least is None or error < least:
            kept.append(name)
            least = error
    return kept


def draw(found: Mapping[str, Any], file: Path) -> None:
    """Draw the points, and a line through those of our own modules. The suffix of the file gives the format.

    The file is there as a whole, or as it was before. It needs matplotlib (see ``bench.pictures.check``). Raises
    CollageError where the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    points = found["points"]
    ours = sorted((each for each in points.values() if "tolerance" in each), key=lambda each: each["error"])
    least = 1e-7
    axes.plot(
        [max(each["error"], least) for each in ours],
        [each["median_us"] / 1e3 for each in ours],
        marker="o",
        color="#0072b2",
        label=OURS,
    )
    colours = ("#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
    others = [(name, each) for name, each in points.items() if "tolerance" not in each]
    for number, (name, each) in enumerate(others):
        colour = colours[number % len(colours)]
        axes.scatter([max(each["error"], least)], [each["median_us"] / 1e3], marker="s", color=colour, label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"error of the outputs by {found['metric']}, {found['inputs']}")
    axes.set_ylabel("milliseconds")
    axes.set_title(found["model"].removesuffix(".onnx"))
    axes.legend(frameon=False)
    with new_file(file) as stream:
        figure.savefig(stream, format=file.suffix[1:])


def curve_files(output: Path, tolerance: float) -> dict[float, Path]:
    """The module files by tolerance, from the smallest one on: ``output`` for ``tolerance``, the others beside it."""
    beside = {each: output.with_name(f"{output.stem}-{each:g}{output.suffix}") for each in TOLERANCES}
    return dict(sorted({**beside, tolerance: output}.items()))


def picture_file(output: Path) -> Path:
    """The file of the curve's picture."""
    return output.with_suffix(".pareto.svg")


def compiled_curve(model: Path, output: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Compile at all tolerances of the curve, with ``options`` of ``collage.compile``, and race the modules.

    Returns the curve with the files of the modules and of the picture, which is None without matplotlib. The largest
    tolerance comes first, since its measurements serve all others. They share the budget. After Ctrl-C the others get
    their first modules. Errors are by the metric of the compiles, and on their samples, if there are any.
    """
    from collage.api import compile

    course, interrupted, show = Deadline(), False, options["progress"]
    files = curve_files(output, options["tolerance"])
    for number, each in enumerate(reversed(files)):
        show(Progress(f"tolerance {each:g}", number, len(files)))
        share = share_of(options["budget_s"], course, len(files) - number, interrupted=interrupted)
        module = compile(model, **{**options, "tolerance": each, "budget_s": share})
        interrupted = interrupted or module.report.ended == INTERRUPT
        module.save(files[each])
    given = options["inputs"]
    samples = tuple([given] if isinstance(given, Mapping) else given) if given else ()
    asked = Asked(0.0, metric_of(options["metric"]), samples, UNSEEN)
    contest = ParetoRace(model, files, module.report.threads, shapes=options["shapes"], asked=asked)
    found, picture = curve(contest, show), str(picture_file(output))
    try:
        draw(found, Path(picture))
    except ImportError:
        picture = ""
    except CollageError as error:
        log.warning("there is no picture of the curve: %s", error)
        picture = ""
    return {
        **found,
        "modules": {f"{each:g}": str(file) for each, file in files.items()},
        "picture": picture or None,
    }
