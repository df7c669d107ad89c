"""The command ``scripts/bench cpu``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from collage.bench.engines import OURS, Contest, bench
from collage.bench.worker import ENGINES
from collage.cli.options import JSON_OPTION, parse_names
from collage.errors import CollageError, unknown_names
from scripts.lib import say
from scripts.lib.bench import common
from scripts.lib.bench.common import Options, Show

if TYPE_CHECKING:
    from rich.console import RenderableType

_TORCH = ("pytorch", "inductor", "inductor_max_autotune")
"""Functions of ``scripts.lib.workloads.torch_contenders``."""
_UNASKED = ("pytorch", "inductor")
_NO_TORCH = "torch is not installed; pip install '.[models]'"
_WRONG = 1e-3
"""The largest difference from ONNX Runtime's outputs, relative to their scale, that is not reported."""


@click.command("cpu")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@common.FOLDER_OPTION
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Batch of the workloads.",
)
@common.takes_options(rounds=30)
@click.option(
    "--contenders",
    type=parse_names,
    metavar="A,B",
    help="Compare with these only: pytorch, inductor, inductor_max_autotune or an engine. Default: all that are "
    "installed, without inductor_max_autotune.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="Compile once more without this backend, and show how much slower that is; may be repeated.",
)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: tuple[str, ...],
    folder: Path,
    batch: int,
    options: Options,
    contenders: tuple[str, ...] | None,
    without: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare Collage with PyTorch, ONNX Runtime and OpenVINO on whole models.

    A MODEL is the name of a workload (`scripts/models --list`) or an .onnx file. Without any, the paper's five
    workloads are compared. Every contender has a process of its own, the same threads and inputs, and float32. They
    run in bursts that take turns, and their outputs are compared with ONNX Runtime's. PyTorch, eager and compiled by
    Inductor, runs the modules that the workloads' files were made from.

    \b
    Examples:
      scripts/bench cpu
      scripts/bench cpu dcgan model.onnx --threads 1
      scripts/bench cpu resnext50_32x4d --batch 8
      scripts/bench cpu dcgan --without native --without onednn
    """
    engines, others = _choose(contenders)
    contest = Contest(engines=engines, others=others, rounds=options.rounds)

    def study(model: Path, show: Show) -> dict[str, Any]:
        return _compare(model, options, show, contest, without)

    status, results = common.each(common.find_models(models, folder, batch), study)
    found = {
        **common.head(options.threads, rounds=options.rounds),
        **results,
        "geometric_mean": _geometric_means(results["models"]),
    }
    common.show_results(found, _view(found) if results["models"] else (), as_json=as_json)
    ctx.exit(status)


def _choose(names: Sequence[str] | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """The engines and the other contenders of these names; None stands for all that are installed.

    Raises UsageError and CollageError.
    """
    torch = find_spec("torch") is not None
    if names is None and not torch:
        say(f"no PyTorch contenders: {_NO_TORCH}")
    chosen = (_UNASKED if torch else ()) if names is None else names
    known = (*_TORCH, *(name for name in ENGINES if name != OURS))
    if unknown := [name for name in chosen if name not in known]:
        raise unknown_names("contender", unknown, known)
    others = {n: f"scripts.lib.workloads.torch_contenders:{n}" for n in chosen if n in _TORCH}
    if others and not torch:
        raise CollageError(f"no {', '.join(others)}: {_NO_TORCH}")
    return None if names is None else tuple(name for name in names if name in ENGINES), others


def _compare(
    model: Path, options: Options, show: Show, contest: Contest, without: Sequence[str]
) -> dict[str, Any]:
    """The JSON object of ``collage bench`` for the model, with predicted and measured time, and the mix.

    ``without`` names backends. ``ablation`` has the slow-down of a module that was compiled without each of them.
    """
    with TemporaryDirectory(prefix="collage-bench-") as folder:
        file = Path(folder) / "module.collage"
        report, program = common.compile_to(file, model, options, show)
        found = bench(model, contest, module=file, progress=show)
        if without:
            found["ablation"] = _ablation(file, model, options, show, without)
    return {
        **found,
        "predicted_us": round(report.predicted_us, 3),
        "measured_us": round(report.measured_us, 3),
        "mix": dict(Counter(region.backend for region in program.launches).most_common()),
    }


def _ablation(
    module: Path, model: Path, options: Options, show: Show, without: Sequence[str]
) -> dict[str, float]:
    """Times of modules compiled without each backend over the time of ``module``, from one interleaved race."""
    from collage.api import default_registry

    available = [name for name, probe in default_registry().availability().items() if probe]
    if unknown := [name for name in without if name not in available]:
        raise unknown_names("backend", unknown, available)
    files = {OURS: module}
    for name in without:
        files[name] = module.with_name(f"without-{name}.collage")
        rest = [each for each in available if each != name]
        common.compile_to(files[name], model, options, show, backends=rest)
    raced = common.race_modules(model, files, options, show)
    return {name: round(raced.ratio(name, OURS), 4) for name in without}


def _geometric_means(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric means of each contender's median over Collage's, and of the best other's under ``best``.

    A mean is over the models that the contender ran.
    """
    ratios: dict[str, list[float]] = {}
    for result in results:
        ours = result["engines"][OURS]["median_us"]
        others = {n: t["median_us"] / ours for n, t in result["engines"].items() if n != OURS}
        for name, ratio in {**others, **({"best": min(others.values())} if others else {})}.items():
            ratios.setdefault(name, []).append(ratio)
    return {name: round(geometric_mean(found), 4) for name, found in ratios.items()}


def _view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The main table, what backends gain, and contenders that failed or are wrong."""
    results, means = found["models"], found["geometric_mean"]
    every = dict.fromkeys(name for result in results for name in result["engines"] if name != OURS)
    names = [*every, OURS]
    rows = [
        (
            result["model"].removesuffix(".onnx"),
            *(common.ms(result["engines"].get(name)) for name in names),
            f"{result['speedup_vs_best_engine'] or float('nan'):.2f}",
            f"{result['predicted_us'] / result['measured_us']:.2f}",
            ", ".join(f"{count} {name}" for name, count in result["mix"].items()),
        )
        for result in results
    ]
    rows.append(
        ("mean / collage", *(f"{means[name]:.2f}x" if name in means else "-" for name in (*names, "best")))
    )
    titles = (f"{name} ms" for name in names)
    yield common.table(("model", *titles, "best other / collage", "predicted / measured", "launches"), rows)
    for result in results:
        for name, ratio in result.get("ablation", {}).items():
            yield f"{result['model']}: {ratio:.2f}x as slow without {name}"
        yield from common.failures(result)
        for name, timing in result["engines"].items():
            error = timing["max_relative_error"]
            if error is not None and not error <= _WRONG:
                yield f"{result['model']}: outputs of {name} are off by {error:.2g} of their scale"
