"""The command ``scripts/bench trees``."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import click
import numpy as np

import collage
from collage.bench.engines import OURS
from collage.cli.options import parse_names
from collage.errors import CollageError
from scripts.lib.bench import common, trees_models
from scripts.lib.bench.common import Options, Show
from scripts.lib.bench.trees_models import Call, Calls, Contender, Feed, Spec
from scripts.lib.errors import largest
from scripts.lib.json_file import write_json

_Found: TypeAlias = "dict[str, Any]"
_TURN_US, _PAUSE_S = 2000, 0.02  # at least
_ROTATED, _LEAST_FEEDS, _MOST_FEEDS = 8000, 2, 64  # the rows of all feeds together, unless these are too few or many
_WRONG = 1e-5  # the largest difference from ONNX Runtime's scores


@click.command("trees")
@click.option("--pipeline", "part", flag_value="pipeline", help="Pipelines of imputer, scaler, one-hot and 300 trees.")
@click.option("--shapes", "part", flag_value="shapes", help="Other numbers of features and classes, other depths.")
@click.option("--only", type=parse_names, metavar="A,B", help="Ensembles whose names contain A or B.")
@click.option("--rows", type=click.IntRange(min=1), multiple=True, default=(1, 100, 1000, 10_000), show_default=True)
@common.FOLDER_OPTION
@common.takes_options(rounds=9)
@click.option("--tl2cgen", is_flag=True, help="Compile with tl2cgen, too: minutes; not 1,000 x 127.")
@click.option("--isa", type=click.Choice(["avx2"]), help="Restrict Collage's kernels to this instruction set.")
@click.option("--quick", is_flag=True, help="The first ensemble of each library, up to 1,000 rows, three rounds.")
@click.option("--json", "file", is_flag=False, flag_value="-", metavar="[FILE]", help="Write one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    part: str | None,
    only: tuple[str, ...] | None,
    rows: tuple[int, ...],
    folder: Path,
    options: Options,
    tl2cgen: bool,
    isa: str | None,
    quick: bool,
    file: str | None,
) -> None:
    """Compare Collage with the fastest of its peers on ensembles of trees.

    The ensembles are LightGBM's and XGBoost's of 50, 300 and 1,000 trees with 15, 31 and 127 leaves and 100 features,
    and CatBoost's of 300 symmetric trees. They are trained on first use. The peers are ONNX Runtime, the library's own
    predictor, for LightGBM also its C interface (at one row the fast call), and treelite; with --tl2cgen also tl2cgen.

    Collage compiles the ONNX file, with an empty database unless --db names one. All read the same arrays, each call
    other rows, and scores are compared with ONNX Runtime's. In each round every contender has a turn of 2 ms or more,
    after a pause in which threads of the others stop to spin. A ratio is the fastest peer's median over Collage's.

    \b
    Examples:
      scripts/bench trees --isa avx2 --json avx2.json
      scripts/bench trees --only "lightgbm 300" --tl2cgen
      scripts/bench trees --pipeline --rows 1000
    """
    if isa:
        os.environ["COLLAGE_ISA"] = isa
    specs = {"pipeline": trees_models.PIPELINES, "shapes": trees_models.SHAPES}.get(part or "", trees_models.SIZES)
    if quick:
        specs = [*{each.library: each for each in reversed(specs)}.values()]
        rows, options = tuple(each for each in rows if each <= 1000), replace(options, rounds=min(options.rounds, 3))
    about = common.head(options.threads, rounds=options.rounds, budget_s=options.budget_s, isa=isa, quick=quick)

    def complete(found: Mapping[str, Any]) -> _Found:
        whole = {**about, **found, **_summary(found["models"])}
        if file not in (None, "-"):
            write_json(Path(str(file)), whole)
        return whole

    chosen = {each.name: each for each in specs if any(name in each.name for name in only or ("",))}
    status, results = common.each(chosen, partial(_study, rows, folder / "trees", tl2cgen, options), save=complete)
    found = complete(results)
    common.show_results(found, _view(found), as_json=file == "-")
    ctx.exit(status or int(any(each["failed"] for each in results["models"])))


def _study(rows: Sequence[int], folder: Path, tl2cgen: bool, options: Options, spec: Spec, show: Show) -> _Found:
    """Compile an ensemble, and check and race all contenders; an entry of ``models`` of the JSON object."""
    onnx, own = trees_models.trained(spec, folder)
    contenders = trees_models.peers(spec, onnx, own, options.threads, generated=tl2cgen)
    contenders[OURS], compiled = _collage(onnx, options, show)
    found: _Found = {"model": spec.name, "group": spec.group, **compiled, "cells": [], "failed": {}}
    for count in rows:
        number = min(max(_ROTATED // count, _LEAST_FEEDS), _MOST_FEEDS)
        feeds = [trees_models.feed(spec, count, seed) for seed in range(number)]
        good: dict[str, Sequence[Call]] = {}
        expected: Any = None
        for name, bind in contenders.items():
            try:
                calls, read = bind(feeds)
                calls[0]()
                scores: Any = np.array(read(), np.float64).reshape(count, -1)
                expected = scores if expected is None else expected
                width = min(scores.shape[1], expected.shape[1])  # some give one column for two classes
                if (off := largest([np.abs(scores[:, -width:] - expected[:, -width:]).max()])) > _WRONG:
                    raise CollageError(f"scores differ from ONNX Runtime's by {off:.1e}")
                good[name] = calls
            except Exception as error:
                found["failed"][f"{name} at {count} rows"] = f"{type(error).__name__}: {error}"
        found["cells"].append({"rows": count, **_raced(good, options.rounds)})
    return found


def _collage(onnx: Path, options: Options, show: Show) -> tuple[Contender, _Found]:
    """Our module, the seconds of its compile, and the backends that it runs on."""
    with TemporaryDirectory(prefix="collage-trees-") as text:
        options = replace(options, db=options.db or Path(text, "db.sqlite"))
        report, program = common.compile_to(Path(text, "trees.collage"), onnx, options, show)
        module: Any = collage.load(Path(text, "trees.collage"))

    def bind(feeds: Sequence[Feed]) -> Calls:
        every = [module.bind(each) for each in feeds]
        return every, lambda: [*every[0].outputs.values()][-1]

    return bind, {"compile_s": report.compile_s, "mix": [region.backend for region in program.executed]}


def _turn(calls: Iterator[Call], count: int) -> float:
    """The microseconds of a call, of so many after one that wakes the threads."""
    for _ in range(20):  # until threads of the last contender do not spin: ONNX Runtime's do for 40 ms
        before = time.process_time()
        time.sleep(_PAUSE_S)
        if time.process_time() - before < _PAUSE_S / 20:
            break
    next(calls)()
    chosen = [*islice(calls, count)]
    started = time.perf_counter_ns()
    for call in chosen:
        call()
    return (time.perf_counter_ns() - started) / 1e3 / count


def _raced(contenders: Mapping[str, Sequence[Call]], rounds: int) -> _Found:
    """Times by turns, in another order in each round; the rest of an entry of ``cells``."""
    calls = {name: cycle(every) for name, every in contenders.items()}
    rough = {name: _turn(each, int(1000 // _turn(each, 1)) + 1) for name, each in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in random.Random(number).sample([*times], len(times)):
            times[name].append(_turn(calls[name], int(_TURN_US // rough[name]) + 1))
    engines = {name: {"median_us": median(each), "min_us": min(each)} for name, each in times.items()}
    ours, others = engines.get(OURS), {name: each for name, each in engines.items() if name != OURS}
    best = min(others, key=lambda name: others[name]["median_us"], default=None)
    found: _Found = {"engines": engines, "best_engine": best}
    for ratio, key in (("ratio", "median_us"), ("ratio_of_minima", "min_us")):
        found[ratio] = round(min(each[key] for each in others.values()) / ours[key], 3) if ours and others else None
    return found


def _summary(models: Sequence[Mapping[str, Any]]) -> _Found:
    """Geometric means, and least ratios with their ensembles, by group and number of rows."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for each, cell in ((model, cell) for model in models for cell in model["cells"] if cell["ratio"]):
        ratios.setdefault(f"{each['group']}_at_{cell['rows']}_rows", []).append((cell["ratio"], each["model"]))
    means = {key: round(geometric_mean(ratio for ratio, _ in pairs), 3) for key, pairs in ratios.items()}
    return {"geometric_mean": means, "least": {key: min(pairs) for key, pairs in ratios.items()}}


def _view(found: Mapping[str, Any]) -> Iterator[Any]:
    """A table of microseconds a row, means, least ratios and failures."""
    rows = []
    for name, cell in ((model["model"], cell) for model in found["models"] for cell in model["cells"]):
        times = {peer: f"{each['median_us'] / cell['rows']:.3g}" for peer, each in cell["engines"].items()}
        ours, best = times.pop(OURS, "-"), times.pop(cell["best_engine"], "-")
        ratios = ("-" if cell[key] is None else f"{cell[key]:.2f}" for key in ("ratio", "ratio_of_minima"))
        others = ", ".join(f"{peer} {each}" for peer, each in times.items())
        rows.append((name, f"{cell['rows']:,}", ours, cell["best_engine"] or "-", best, *ratios, others))
    yield common.table(("µs a row", "rows", OURS, "fastest peer", "", "ratio", "of minima", "other peers"), rows)
    for key, mean in found["geometric_mean"].items():
        ratio, name = found["least"][key]
        yield f"{key.replace('_', ' ')}: geometric mean {mean:.2f}, least {ratio:.2f} ({name})"
    yield from (line for model in found["models"] for line in common.failures(model))
    yield from (f"{name} failed: {why}" for name, why in found["failed"].items())
