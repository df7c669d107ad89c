"""The command ``scripts/bench serve``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.options import JSON_OPTION, THREADS_OPTION, parse_names
from collage.errors import CollageError, UsageError, unknown_names
from scripts.lib import INTERRUPTED, say
from scripts.lib.bench.common import FOLDER_OPTION, head, rounds_option, show_results, table, threads_of
from scripts.lib.serving.prepare import prepared
from scripts.lib.serving.process import BFLOAT16, CONTENDERS, FLOAT32, INT8, OURS, Setup
from scripts.lib.serving.study import PARTS, QUICK, Course, Study, opened

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MODELS = ("gpt2_124m", "qwen2_like")
OTHERS = tuple(name for name in CONTENDERS if name != OURS)
_SATURATED = (
    *("contender", "requests/s", "Collage over it", "tokens/s", "spread", "unloaded ms"),
    *("rate at twice", "Collage over it", "same tokens"),
)


@click.command("serve")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@FOLDER_OPTION
@click.option(
    "--against",
    type=parse_names,
    metavar="A,B",
    help=f"Compare with these, or with `none`. Default: {', '.join(OTHERS)}.",
)
@rounds_option(None)
@click.option("--requests", type=click.IntRange(min=4), metavar="N", help="Requests of a saturated run. Default: 96.")
@click.option("--only", type=click.Choice(PARTS), help="Only this part of the study.")
@click.option("--quick", is_flag=True, help="Tiny models and few requests, to see that everything works.")
@click.option(
    "--precision",
    type=click.Choice([FLOAT32, BFLOAT16, INT8]),
    default=FLOAT32,
    show_default=True,
    help="That of products and of the cache, for all contenders; int8 is that of weights only.",
)
@THREADS_OPTION
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: tuple[str, ...],
    folder: Path,
    against: tuple[str, ...] | None,
    rounds: int | None,
    requests: int | None,
    only: str | None,
    quick: bool,
    precision: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare Collage's serving engine with request-level scheduling and with OpenVINO GenAI.

    A MODEL is gpt2_124m, qwen2_like, llama_1b or moe_like; by default the first two. Files that are missing are made,
    which takes long for Collage's (the module of a decoder stays in --folder). All contenders have the same weights,
    token ids and arrivals, threads, and precision of weights and cache, and ignore end tokens. Each has a process of
    its own, which is stopped while another one is measured. OpenVINO GenAI is left out if it is not installed, and for
    moe_like, whose weights are not written in its format.

    In bfloat16 Collage's decoder is compiled with an error of the logits of at most 2e-2, and has bfloat16 where that
    is faster. In int8 the error is at most 5e-2, and weights are in 8 bits where that is faster; OpenVINO GenAI has its
    own 8 bits, and the cache is float32 for all.

    `shortest-first` is request-level scheduling on Collage's kernels, as Figure 10 of Orca's paper compares with: in
    batches of eight requests, prompts are computed up to the length of the shortest one, and the rest of them token by
    token. All answers of a batch come together, with the longest.

    Two parts: `right` compares the engine's greedy answers with ONNX Runtime's on the original decoder. `trace` is
    Orca's trace, one request at a time, all at once, and at several rates.

    \b
    Examples:
      scripts/bench serve
      scripts/bench serve gpt2_124m --precision bfloat16 --only trace
      scripts/bench serve qwen2_like --against shortest-first --rounds 5 --json
      scripts/bench serve --quick
    """
    others = OTHERS if against is None else tuple(name for name in against if name != "none")
    unknown = [name for name in others if name not in OTHERS]
    if unknown:
        raise unknown_names("contender", unknown, [*OTHERS, "none"])
    if quick and precision != FLOAT32:
        raise UsageError(f"--precision {precision} takes a full compile: leave --quick out.")
    course = QUICK if quick else Course()
    course = replace(
        course,
        rounds=rounds or course.rounds,
        requests=requests or course.requests,
        parts=course.parts if only is None else (only,),
    )
    threads = threads_of(threads)
    results: list[dict[str, Any]] = []
    status = 0
    try:
        for name in models or MODELS:
            try:
                model = prepared(name, folder, threads=threads, tiny=quick, precision=precision)
                setup = Setup(model.folder, model.module, threads, course.running, precision)
                with opened((OURS, *others), setup) as field:
                    results.append(Study(model, field, course).run())
            except CollageError as error:
                say(f"error: {name}: {error}")
                status = 1
    except KeyboardInterrupt:
        say("interrupted")
        status = INTERRUPTED
    found = {**head(threads, precision=precision, course=asdict(course)), "models": results}
    show_results(found, (part for each in results for part in _view(each)), as_json=as_json)
    ctx.exit(status or int(any(each["failed"] for each in results)))


def _view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """All parts of the study of one model."""
    yield from ("", found["model"])
    if right := found.get("right"):
        yield (
            f"{right['same_tokens']:.2%} of {right['tokens']} greedy tokens are ONNX Runtime's with the original; "
            f"a chosen token's logit is below the largest one by {right['largest_gap']:.1e} of it at most, and log "
            f"probabilities differ by {right['largest_error']:.1e} at most"
        )
    if trace := found.get("trace"):
        yield from ("Orca's trace: all requests at once", _saturated(trace))
        yield from ("Orca's trace: latency per token against the rate", _rates(trace))
    yield from (f"left out: {why}" for why in found["missing"].values())
    yield from (f"failed: {why}" for why in found["failed"].values())


def _saturated(trace: Mapping[str, Any]) -> Table:
    ours = trace[OURS]["saturated"]["requests_per_s"], trace[OURS]["rate_at_twice_unloaded"]
    rows = []
    for name, each in trace.items():
        full, twice = each["saturated"], each["rate_at_twice_unloaded"]
        rows.append(
            [
                name,
                f"{full['requests_per_s']:.2f}",
                f"{ours[0] / full['requests_per_s']:.2f}",
                f"{full['tokens_per_s']:.0f}",
                f"{each['saturated_spread']:.2f}",
                f"{each['unloaded']['latency_ms']:.1f}",
                "-" if twice is None else f"{twice:.2f}",
                "-" if twice is None or ours[1] is None else f"{ours[1] / twice:.2f}",
                f"{each['same_tokens']:.1%}",
            ]
        )
    return table(_SATURATED, rows)


def _rates(trace: Mapping[str, Any]) -> Table:
    rates = sorted({row["rate"] for each in trace.values() for row in each["rates"]})
    rows = []
    for name, each in trace.items():
        known = {row["rate"]: f"{row['latency_ms']:.1f}" for row in each["rates"]}
        rows.append([name, *(known.get(rate, "-") for rate in rates)])
    return table(["ms a token at", *(f"{rate:.2f}/s" for rate in rates)], rows)
