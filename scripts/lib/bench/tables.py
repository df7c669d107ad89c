"""The command ``scripts/bench tables``: docs/benchmarks.md and the README's table from docs/figures/*.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from scripts.lib import ROOT
from scripts.lib.bench.common import ms

PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
_MARK = "<!-- figures: scripts/bench tables -->\n"
_HEAD = """# Benchmarks

`scripts/bench tables` writes this page from the files in `docs/figures`, which `scripts/bench ... --json` has
written. Other machines give other figures: run the commands on yours. Every contender has a process of its own, and all
take turns. [notes/benchmarks.md](notes/benchmarks.md) has older studies on other machines.
"""
_TITLES = {
    "real": "Whole models in float32, milliseconds",
    "precision": "Whole models within a tolerance, milliseconds and the largest error on 20 inputs",
    "serve": "Served decoders: Orca's trace, all requests at once and one at a time",
    "trees": "Ensembles of trees, microseconds a row: the fastest peer, Collage, and the ratio, by numbers of rows",
    "trees_avx2": "The same with AVX2",
    "trees_shapes": "Ensembles of other shapes",
    "trees_pipeline": "Pipelines of imputer, scaler, one-hot encoder and 300 trees",
    "windtunnel": "Pipelines and the networks that are fine-tuned from them: AUC on test rows",
    "graphpipe": "Training pipelines: simulated milliseconds of an iteration, and seconds of the search",
}


def written() -> tuple[str, str]:
    """The page, and the README with its table, as the figures have them."""
    rows = {"real": _real, "precision": _precision, "serve": _serve, "windtunnel": _windtunnel}
    rows |= {"graphpipe": _graphpipe}
    rows |= {name: _trees for name in _TITLES if name.startswith("trees")}
    sections = {}
    for name, make in rows.items():
        if not (file := PAGE.parent / "figures" / f"{name}.json").exists():
            continue
        found = json.loads(file.read_text())
        titles, *body = make(found)
        table = [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *body)]
        means = [f"{key.replace('_', ' ')} {mean:.2f}" for key, mean in found.get("geometric_mean", {}).items()]
        what = "" if name.startswith("trees") else " of times over Collage's"
        ending = [f"Geometric means{what}: {', '.join(means)}.", ""] if means else []
        ending += [f"- {line}" for line in found.get("verdict", [])] + [""] * ("verdict" in found)
        where = f"{found['threads']} threads, {found['machine']}, {found['date']}, commit {found['commit']}"
        sections[name] = "\n".join([f"`{found['command']}` ({where})", "", *table, "", *ending])
    page = [f"## {_TITLES[name]}\n\n{text}" for name, text in sections.items()]
    before, _, after = README.read_text().split(_MARK)
    return "\n".join([_HEAD, *page]), _MARK.join([before, sections["real"], after])


@click.command("tables")
def command() -> None:
    """Write docs/benchmarks.md and the README's table of figures from docs/figures."""
    for path, text in zip((PAGE, README), written(), strict=True):
        path.write_text(text)


def _real(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    names = dict.fromkeys(name for model in found["models"] for name in model["engines"] if name != "collage")
    yield ["model", *names, "collage", "best other / collage", "interval"]
    for model in found["models"]:
        times = (ms(model["engines"].get(name)) for name in (*names, "collage"))
        best = model["ratios"][model["best_engine"]]
        ratio, interval = f"{best['median']:.2f}", f"{best['low']:.2f} to {best['high']:.2f}"
        yield [model["model"].removesuffix(".onnx"), *times, ratio, interval]


def _precision(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield ["model", "contender", "ms", "largest error"]
    for model in found["models"]:
        for name, point in sorted(model["points"].items(), key=lambda item: float(item[1]["median_us"])):
            yield [model["model"].removesuffix(".onnx"), name, ms(point), f"{max(point['errors']):.1e}"]


def _serve(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield ["model", "contender", "requests/s", "tokens/s", "ms a token, alone", "same tokens as Collage"]
    for model in found["models"]:
        for name, each in model["trace"].items():
            rates = f"{each['saturated']['requests_per_s']:.2f}", f"{each['saturated']['tokens_per_s']:.0f}"
            alone, same = f"{each['unloaded']['latency_ms']:.1f}", f"{each['same_tokens']:.1%}"
            yield [model["model"], name, *rates, alone, same]


def _trees(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    counts = [cell["rows"] for cell in found["models"][0]["cells"]]
    yield ["ensemble", *(f"{count:,} row{'s' * (count > 1)}" for count in counts)]
    for model in found["models"]:
        yield [model["model"], *(_cell(cell, cell["engines"]) for cell in model["cells"])]


def _windtunnel(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield ["data", "contender", "seeds", "compared with", "AUC", "gain", "95 % interval", "epochs"]
    for each in found["summary"]:
        if "difference" not in each:
            continue
        name = " ".join(filter(None, (each["pre"], each["pipe"], each["variant"])))
        rows = f", {each['rows']:,} rows" if each["rows"] else ""
        area = each["difference"]["auc"]
        interval = f"{area['low']:+.4f} to {area['high']:+.4f}"
        gain = f"**{area['mean']:+.4f}**" if area["low"] > 0 else f"{area['mean']:+.4f}"
        epochs = ", ".join(str(count) for count in each["epochs"])
        against, data = f"{each['source_auc']:.4f}", f"{each['data']}, {each['split']}"
        yield [data, name + rows, str(each["seeds"]), against, f"{each['auc']:.4f}", gain, interval, epochs]


def _graphpipe(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield [
        *("network", "devices", "GraphPipe", "PipeDream", "Piper", "best chain / GraphPipe"),
        *("search", "PipeDream's", "Piper's"),
    ]
    for cell in (*found["networks"], *found["branches"]):
        planners = [cell["planners"].get(name) for name in ("graphpipe", "pipedream", "piper")]
        times = [f"{each['iteration_s'] * 1e3:.1f}" if each else "-" for each in planners]
        searches = [
            f"{each['search_s']:.2f}{' (cut off)' if each['late'] else ''}" if each else "-" for each in planners
        ]
        yield [cell["network"], str(cell["devices"]), *times, f"**{cell['ratio']:.2f}**", *searches]


def _cell(cell: Mapping[str, Any], engines: Mapping[str, Any]) -> str:
    best, ours = (engines[name]["median_us"] / cell["rows"] for name in (cell["best_engine"], "collage"))
    return f"{cell['best_engine']} {best:.3g}, {ours:.3g}: **{cell['ratio']:.1f}**"
