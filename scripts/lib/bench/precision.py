"""The command ``scripts/bench precision``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from collage.bench.pareto import ParetoRace, curve, module_name
from collage.check.accuracy import Asked
from collage.check.metrics import Metric
from collage.cli.options import JSON_OPTION, parse_names
from scripts.lib.bench import common
from scripts.lib.bench.common import Options, Show
from scripts.lib.errors import largest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scripts.lib.bench.networks import Network

_PROCESSES = 3
"""The number of processes that each contender has, one after another."""
_UNSEEN = 20
"""The number of inputs that are made up if there are none."""
_SPEEDUPS = ("best_engine_over_ours", "float32_over_ours")


@click.command("precision")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@common.FOLDER_OPTION
@click.option("--real", is_flag=True, help="Compare networks of packages on real inputs.")
@click.option("--only", type=parse_names, metavar="A,B", help="Networks of --real whose names contain A or B.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-2,
    show_default=True,
    metavar="ERROR",
    help="The largest error of the outputs, as a share of their scale.",
)
@common.takes_options(rounds=30)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: tuple[str, ...],
    folder: Path,
    real: bool,
    only: tuple[str, ...] | None,
    tolerance: float,
    options: Options,
    as_json: bool,
) -> None:
    """Compare modules within a tolerance with float32 and with engines in their own precisions.

    Each model is compiled in float32 and within the tolerance. Both modules and each engine, OpenVINO also in bfloat16
    and ONNX Runtime also in 8 bits, run in processes of their own, in bursts that take turns. Errors are measured on 20
    inputs that the compile has not seen. An engine counts if no more of its errors are beyond the tolerance than of
    ours.

    Networks of --real (rapidocr-onnxruntime, silero-vad and magika) get rendered text, generated sound and files, as
    samples and as other inputs; their wheels are downloaded. With --real and no MODEL only these are compared. A model
    that fails does not stop the others.

    \b
    Examples:
      scripts/bench precision
      scripts/bench precision bert_base resnext50_32x4d --tolerance 3e-3
      scripts/bench precision --real --only reader --budget 120
      scripts/bench precision model.onnx --json
    """
    from scripts.lib.bench.networks import Network, packed_networks

    files = common.find_models(models, folder) if models or not real else {}
    networks = {name: Network(file) for name, file in files.items()}
    networks |= packed_networks(folder, only or ()) if real else {}
    status, results = common.each(networks, lambda network, show: _study(network, tolerance, options, show))
    found = {
        **common.head(options.threads, rounds=options.rounds, tolerance=tolerance),
        **results,
        "geometric_mean": {
            key: round(geometric_mean(ratios), 4)
            for key in _SPEEDUPS
            if (ratios := [r["speedup"][key] for r in results["models"] if r["speedup"][key]])
        },
    }
    common.show_results(found, _view(found), as_json=as_json)
    ctx.exit(status)


def _study(network: Network, tolerance: float, options: Options, show: Show) -> dict[str, Any]:
    """Compile in float32 and within the tolerance, and race both against all engines.

    ``speedup`` has our module's speed over the fastest engine that is within the tolerance, and over our own float32.
    All errors are on inputs that the compile has not seen.
    """
    with TemporaryDirectory(prefix="collage-precision-") as folder:
        files = {bound: Path(folder) / f"{bound:g}.collage" for bound in (0.0, tolerance)}
        for bound, file in files.items():
            report, program = common.compile_to(
                *(file, network.file, options, show),
                tolerance=bound,
                shapes=network.shapes,
                inputs=network.samples or None,
            )
        contest = ParetoRace(
            *(network.file, files, options.threads, options.rounds),
            processes=min(_PROCESSES, options.rounds),
            shapes=network.shapes,
            asked=Asked(0.0, Metric(), tuple(network.inputs), _UNSEEN),
        )
        found = curve(contest, show)
    ours = found["points"][module_name(tolerance)]
    errors = report.errors
    return {
        **found,
        "tolerance": tolerance,
        "real": bool(network.samples),
        "speedup": _speedups(found["points"], ours, tolerance),
        "unseen": ours["errors"],
        "predicted": None if errors is None else errors.predicted,
        "measured": None if errors is None else errors.measured,
        "reduced": sum(1 for region in program.executed if region.precision),
        "launches": len(program.executed),
        "ended": report.ended,
        "notes": list(report.notes),
    }


def _speedups(
    points: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Any], tolerance: float
) -> dict[str, float | None]:
    """The ratios of ``_study``, each the median of the rounds' ratios; None for an engine if none counts."""

    def over(point: Mapping[str, Any]) -> float:
        pairs = zip(point["rounds_us"], ours["rounds_us"], strict=True)
        return round(float(median(one / other for one, other in pairs)), 4)

    most = _beyond(ours["errors"], tolerance)
    engines = [point for point in points.values() if "tolerance" not in point]
    counting = [over(point) for point in engines if _beyond(point["errors"], tolerance) <= most]
    best = min(counting, default=None)
    return dict(zip(_SPEEDUPS, (best, over(points[module_name(0.0)])), strict=True))


def _beyond(errors: Sequence[float], tolerance: float) -> int:
    return sum(not error <= tolerance for error in errors)  # what is no number is beyond, too


def _view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Milliseconds and errors of each contender, and the ratios."""
    rows = [
        (
            result["model"].removesuffix(".onnx"),
            name,
            common.ms(point),
            f"{largest(point['errors']):.1e}",
            f"{_beyond(point['errors'], result['tolerance'])} of {len(point['errors'])}",
        )
        for result in found["models"]
        for name, point in sorted(result["points"].items(), key=lambda item: float(item[1]["median_us"]))
    ]
    yield common.table(("model", "contender", "ms", "largest error", "beyond the tolerance"), rows)
    for result in found["models"]:
        ratios = ", ".join(f"{key.replace('_', ' ')} {ratio:.3f}" for key, ratio in result["speedup"].items() if ratio)
        reduced = f"{result['reduced']} of {result['launches']} regions in reduced precision"
        yield f"{result['model']}: {ratios}; {reduced}"
        yield from common.failures(result)
    yield from (f"{name} failed: {why}" for name, why in found["failed"].items())
    if means := found["geometric_mean"]:
        yield "geometric means: " + ", ".join(f"{key} {mean:.3f}" for key, mean in means.items())
