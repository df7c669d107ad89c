"""The command ``scripts/bench serve``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from collage.cli.options import JSON_OPTION, THREADS_OPTION, parse_names
from scripts.lib.bench.options import Models, rounds_option, takes_models
from scripts.lib.bench.output import head, show
from scripts.lib.serving.contender import BFLOAT16, CONTENDERS, FLOAT32, INT8, OURS

MODELS = ("gpt2_124m", "qwen2_like")
OTHERS = tuple(name for name in CONTENDERS if name != OURS)


@click.command("serve")
@takes_models
@click.option(
    "--against",
    type=parse_names,
    metavar="A,B",
    help=f"Compare with these, or with `none`. Default: {', '.join(OTHERS)}.",
)
@rounds_option(None)
@click.option(
    "--requests", type=click.IntRange(min=4), metavar="N", help="Requests of a saturated run. Default: 96."
)
@click.option("--only", type=click.Choice(["right", "trace", "between"]), help="Only this part of the study.")
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
    models: Models,
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

    Three parts: `right` compares the engine's greedy answers with ONNX Runtime's on the original decoder. `trace` is
    Orca's trace, one request at a time, all at once, and at several rates. `between` is the time between tokens while
    prompts of 512 tokens arrive.

    \b
    Examples:
      scripts/bench serve
      scripts/bench serve gpt2_124m --precision bfloat16 --only trace
      scripts/bench serve qwen2_like --against shortest-first --rounds 5 --json
      scripts/bench serve --quick
    """
    from collage.errors import CollageError, UsageError, unknown_names
    from collage.kernel.target import usable_cores
    from scripts.lib.serving.contender import Setup
    from scripts.lib.serving.field import opened
    from scripts.lib.serving.prepare import prepared
    from scripts.lib.serving.study import QUICK, Course, study
    from scripts.lib.serving.table import tables
    from scripts.lib.studies.each import INTERRUPTED, say

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
    threads = threads or usable_cores()
    results: list[dict[str, Any]] = []
    status = 0
    try:
        for name in models.models or MODELS:
            try:
                model = prepared(name, models.folder, threads=threads, tiny=quick, precision=precision)
                setup = Setup(model.folder, model.module, threads, course.running, precision)
                with opened((OURS, *others), setup) as field:
                    results.append(study(model, field, course))
            except CollageError as error:
                say(f"error: {name}: {error}")
                status = 1
    except KeyboardInterrupt:
        say("interrupted")
        status = INTERRUPTED
    found = {**head(threads, precision=precision, course=asdict(course)), "models": results}
    show(found, [part for each in results for part in tables(each)], as_json=as_json)
    ctx.exit(status or int(any(each["failed"] for each in results)))
