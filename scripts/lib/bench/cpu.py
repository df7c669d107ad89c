"""The command ``scripts/bench cpu``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click

from collage.bench.engines import OURS, choose_engines
from collage.cli.options import parse_names
from collage.errors import CollageError, UsageError
from scripts.lib import ROOT, say
from scripts.lib.bench import common
from scripts.lib.bench.common import Options
from scripts.lib.bench.compare import Study, compare, is_engine, seconds_text
from scripts.lib.bench.ratios import ALONE, BESIDE_BUSY, Limits, Ratios
from scripts.lib.json_file import write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_TORCH = ("pytorch", "inductor")
"""Functions of ``scripts.lib.workloads.torch_contenders``."""
_NO_TORCH = "torch is not installed; pip install 'collage-compiler[models]'"
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
@click.option(
    "--real", is_flag=True, help="Compare real networks and all workloads: of packages, and of the model zoo."
)
@click.option("--only", type=parse_names, metavar="A,B", help="Networks of --real whose names contain A or B.")
@common.takes_options(rounds=10)
@click.option("--quick", is_flag=True, help="Compile with --quick.")
@click.option(
    "--restarts",
    type=click.IntRange(min=1),
    metavar="N",
    help="So many restarts. Default: 5, and up to 15 until the interval of the ratio is within 4 %.",
)
@click.option(
    "--contenders",
    type=parse_names,
    metavar="A,B",
    help="Compare with these only: pytorch, inductor or an engine. Default: all engines that "
    "are installed, and without --real also pytorch and inductor.",
)
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Also run the modules DIR/NAME.collage, which another version or other options have made.",
)
@click.option("--beside-busy", is_flag=True, help="Keep one core busy meanwhile (scripts/busy).")
@click.option(
    "--json",
    "file",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write one JSON object, to FILE after each network, or else to stdout at the end.",
)
@click.option("--resume", is_flag=True, help="Go on with the networks that are not in the FILE of --json.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: tuple[str, ...],
    folder: Path,
    batch: int,
    real: bool,
    only: tuple[str, ...] | None,
    options: Options,
    quick: bool,
    restarts: int | None,
    contenders: tuple[str, ...] | None,
    before: Path | None,
    beside_busy: bool,
    file: str | None,
    resume: bool,
) -> None:
    """Compare Collage with ONNX Runtime, OpenVINO and PyTorch on whole models.

    A MODEL is the name of a workload (`scripts/models --list`) or an .onnx file. Without any, the paper's five
    workloads are compared; with --real, networks of rapidocr-onnxruntime, silero-vad and magika on real inputs, the
    light models of the ONNX package, and all workloads.

    Each model is compiled by `collage compile`, with an empty database unless --db names one. Then the module and each
    contender at its usual settings run in processes of their own, with the same threads and inputs, in float32, in
    bursts that take turns; this is repeated with new processes. A ratio is the time of the fastest contender over
    Collage's: the median over the restarts, with the 90 % bootstrap interval of that median. It is too low below 0.95,
    or if its interval ends below 0.98 (0.93 and 0.97 with --beside-busy). Outputs are compared with ONNX Runtime's.

    \b
    Examples:
      scripts/bench cpu
      scripts/bench cpu dcgan model.onnx --threads 1
      scripts/bench cpu --before modules --contenders onnxruntime,openvino
      scripts/bench cpu --real --budget 60 --json real.json
      scripts/bench cpu --real --budget 60 --json real.json --resume
    """
    from scripts.lib.bench.networks import Network, real_networks

    if (models and real) or (only and not real):
        raise UsageError("--real takes no MODEL; --only chooses among the networks of --real.")
    if resume and file in (None, "-"):
        raise UsageError("--resume needs the FILE of --json.")
    study = Study(options, _contenders(contenders, torch=not real), restarts, quick, before)
    networks = real_networks(folder, only or ()) if real else {}
    if not real:
        networks = {name: Network(path) for name, path in common.find_models(models, folder, batch).items()}
    about = common.head(
        options.threads,
        rounds=options.rounds,
        budget_s=options.budget_s,
        quick=quick,
        restarts=restarts,
        beside_busy=beside_busy,
        contenders=[*study.contenders],
    )
    target = None if file in (None, "-") else Path(str(file))
    earlier = _earlier(target, about) if target and resume else []
    done = {each["model"] for each in earlier}

    def complete(found: Mapping[str, Any]) -> dict[str, Any]:
        whole = {**about, **found, "geometric_mean": _geometric_means(found["models"])}
        if target:
            write_json(target, whole)
        return whole

    with _busy() if beside_busy else nullcontext():
        status, results = common.each(
            {name: (name, network) for name, network in networks.items() if name not in done},
            lambda item, show: compare(*item, study, show),
            models=earlier,
            save=complete,
        )
    found = complete(results)
    common.show_results(found, _view(found) if results["models"] else (), as_json=file == "-")
    ctx.exit(status)


def _contenders(names: Sequence[str] | None, *, torch: bool) -> dict[str, str]:
    """The engines and functions of these names; None stands for all that are installed.

    Raises UsageError and CollageError.
    """
    there = find_spec("torch") is not None
    if names is None and torch and not there:
        say(f"no PyTorch contenders: {_NO_TORCH}")
    chosen = (_TORCH if torch and there else ()) if names is None else names
    others = {n: f"scripts.lib.workloads.torch_contenders:{n}" for n in chosen if n in _TORCH}
    if others and not there:
        raise CollageError(f"no {', '.join(others)}: {_NO_TORCH}")
    engines = choose_engines(None if names is None else [name for name in names if name not in _TORCH])
    return {name: name for name in engines} | others


def _earlier(file: Path, about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results in the file, if there is one. Raises UsageError if they were made with other options."""
    if not file.exists():
        return []
    found = json.loads(file.read_text())
    if other := [key for key in about if key not in ("date", "command") and found.get(key) != about[key]]:
        raise UsageError(f"{file} has other results: its {', '.join(other)} differs.")
    models: list[Mapping[str, Any]] = found["models"]
    return models


@contextmanager
def _busy() -> Iterator[None]:
    process = subprocess.Popen([ROOT / "scripts" / "busy"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _geometric_means(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric means of the ratios of each contender, and of the fastest one under ``best``.

    A mean is over the models that the contender ran.
    """
    every: dict[str, list[float]] = {}
    for result in results:
        found = {name: each["median"] for name, each in result["ratios"].items()}
        best = {"best": result["speedup_vs_best_engine"]} if result["best_engine"] else {}
        for name, ratio in {**found, **best}.items():
            every.setdefault(name, []).append(ratio)
    return {name: round(geometric_mean(ratios), 4) for name, ratios in every.items()}


def _view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The main table, means, contenders that failed, and outputs that are wrong."""
    results, means = found["models"], found["geometric_mean"]
    limits = BESIDE_BUSY if found["beside_busy"] else ALONE
    every = dict.fromkeys(name for result in results for name in result["engines"] if name != OURS)
    names = [*every, OURS]
    titles = [f"{name} ms" for name in names]
    titles += ["first module", "first mix", "compiled", "handed over", "best / collage", "90 %", ""]
    rows = [
        (
            result["model"].removesuffix(".onnx"),
            *(common.ms(result["engines"].get(name)) for name in names),
            _first_module(result),
            _first_mix(result),
            seconds_text(result["compile_s"]),
            _handed_over(result),
            *_ratio(result, limits),
        )
        for result in results
    ]
    yield common.table(("model", *titles), rows)
    yield "geometric means over collage: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    for result in results:
        yield from common.failures(result)
        if (again := result["again"]) and again["measurements_made"]:
            yield f"{result['model']}: a second compile made {again['measurements_made']} measurements"
        for name, timing in result["engines"].items():
            error = timing["max_relative_error"]
            if error is not None and not error <= _WRONG:
                yield f"{result['model']}: outputs of {name} are off by {error:.2g} of their scale"
    yield from (f"{name} failed: {why}" for name, why in found["failed"].items())


def _first_module(result: Mapping[str, Any]) -> str:
    """The seconds up to the first module, and those that the fastest contender takes to load and run once."""
    best = result["best_engine"]
    load = f" (load {result['engines'][best]['load_s']:.1f})" if best else ""
    return seconds_text(result["first_module_s"]) + load


def _first_mix(result: Mapping[str, Any]) -> str:
    """The seconds up to the first mix, and its speed as a share of the last module's."""
    share = result["first_mix_share"]
    return seconds_text(result["first_mix_s"]) + (f" ({share:.2f})" if share else "")


def _handed_over(result: Mapping[str, Any]) -> str:
    mix = ", ".join(f"{count} {name}" for name, count in result["mix"].items())
    return result["label"] if is_engine(result["label"]) or not mix else mix


def _ratio(result: Mapping[str, Any], limits: Limits) -> tuple[str, str, str]:
    """The ratio of the fastest contender, its interval, and a mark if it is too low or still uncertain."""
    if not (best := result["best_engine"]):
        return "-", "-", ""
    ratios = Ratios(result["ratios"][best]["restarts"])
    low, high = ratios.interval
    marks = ["below"] * ratios.below(limits) + ["wide"] * ratios.wide
    return f"{ratios.median:.3f}", f"{low:.3f}-{high:.3f} ({len(ratios.values)})", ", ".join(marks)
