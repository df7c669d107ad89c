"""The command ``scripts/bench serve``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.options import DB_OPTION, JSON_OPTION, THREADS_OPTION, parse_names
from scripts.lib.bench.options import Models, packed, rounds_option, takes_models
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from scripts.lib.serving.prepare import Making
    from scripts.lib.serving.study import Course

MODELS = ("gpt2_124m", "qwen2_like")
OURS = "collage"
FORMS = ("request-level", "whole-batches", "shortest-first")
_OPTIONS = {"bfloat16": ("--tolerance", "2e-2", "--no-8-bits"), "int8": ("--tolerance", "5e-2")}
"""The options of ``collage compile-decoder`` for other precisions than float32."""
PEERS = ("openvino-genai", "llama.cpp", "ctranslate2", "vllm", "openvino-genai at its defaults")


@dataclass(frozen=True)
class Rivals:
    """The contenders, and the interpreter of Python for each that has one of its own."""

    names: tuple[str, ...]
    pythons: dict[str, Path]


@dataclass(frozen=True)
class Sizes:
    """What is run, as far as it was said; see ``scripts.lib.serving.study.Course``."""

    rounds: int | None
    requests: int | None
    seconds: float | None
    rates: tuple[float, ...] | None
    running: int | None
    only: str | None
    quick: bool
    precision: str

    def course(self) -> Course:
        """What is run. It is little where it is ``quick``."""
        from scripts.lib.serving.study import QUICK, Course

        course = QUICK if self.quick else Course()
        return replace(
            course,
            rounds=self.rounds or course.rounds,
            requests=self.requests or course.requests,
            seconds=self.seconds or course.seconds,
            rates=self.rates or course.rates,
            relative=self.rates is None,
            running=self.running or course.running,
            precision=self.precision,
            parts=course.parts if self.only is None else (self.only,),
        )


@dataclass(frozen=True)
class Compiling:
    """How decoders that are not compiled yet are compiled."""

    threads: int | None
    db: Path | None
    quick_compile: bool

    def making(self, folder: Path, quick: bool, precision: str) -> Making:
        """How the files of models are made. Raises UsageError: a quick compile stays in float32."""
        from collage.errors import UsageError
        from collage.kernel.target import usable_cores
        from scripts.lib.serving.contender import FLOAT32
        from scripts.lib.serving.prepare import Making

        options = () if self.db is None else ("--db", str(self.db))
        if quick:
            options = (*options, "--buckets", "1,8,64")
        if quick or self.quick_compile:
            options = (*options, "--quick")
        if precision != FLOAT32:
            if "--quick" in options:
                raise UsageError(
                    f"--precision {precision} takes a full compile: leave --quick and --quick-compile out."
                )
            options = (*options, *_OPTIONS[precision])
        return Making(folder, self.threads or usable_cores(), quick, options, precision)


def _rivals(forms: tuple[str, ...] | None, peers: tuple[str, ...] | None, python: tuple[str, ...]) -> Rivals:
    names = (*_named("form", forms, FORMS), *_named("peer", peers, PEERS))
    pythons = {}
    for each in python:
        name, _, path = each.partition("=")
        if name not in PEERS or not Path(path).is_file():
            raise click.UsageError(
                f"--python {each}: write it as PEER=PATH, the PATH being that of an interpreter"
            )
        pythons[name] = Path(path).absolute()
    return Rivals((OURS, *names), pythons)


def _named(kind: str, said: tuple[str, ...] | None, all_: tuple[str, ...]) -> tuple[str, ...]:
    """Those of all that are said, all of them without a word, and none where that is said."""
    from collage.errors import unknown_names

    names = all_ if said is None else tuple(each for each in said if each != "none")
    unknown = [each for each in names if each not in all_]
    if unknown:
        raise unknown_names(kind, unknown, [*all_, "none"])
    return names


def _rates(text: str) -> tuple[float, ...]:
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} are no rates; write them as 0.5,1,2.") from error
    if not all(0 < each < float("inf") for each in found):
        raise click.BadParameter(f"rates must be above 0, not {text}.")
    return found


@click.command("serve")
@takes_models
@click.option(
    "--forms",
    type=parse_names,
    metavar="A,B",
    help=f"Compare with these forms of request-level scheduling only, or with `none`. Default: {', '.join(FORMS)}.",
)
@click.option(
    "--peers",
    type=parse_names,
    metavar="A,B",
    help=f"Compare with these only, or with `none`. Default: all that are installed, of: {', '.join(PEERS)}.",
)
@click.option(
    "--python",
    multiple=True,
    metavar="PEER=PATH",
    help="The interpreter of Python that has this peer. It may be given several times.",
)
@packed("rivals", _rivals)
@rounds_option(None)
@click.option(
    "--requests", type=click.IntRange(min=4), metavar="N", help="Requests of a saturated run. Default: 96."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Length of a run at a rate. Default: 12.",
)
@click.option(
    "--rates",
    type=_rates,
    metavar="0.5,1",
    help="Requests a second. Default: shares of what Collage can serve.",
)
@click.option(
    "--running",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most requests that each system computes at a time. Default: 32.",
)
@click.option(
    "--only",
    type=click.Choice(["right", "alone", "trace", "clock", "between"]),
    help="Only this part of the study.",
)
@click.option("--quick", is_flag=True, help="Tiny models and few requests, to see that everything works.")
@click.option(
    "--precision",
    type=click.Choice(["float32", *_OPTIONS]),
    default="float32",
    show_default=True,
    help="That of products and of the cache, for all contenders that have it; int8 is that of weights only.",
)
@packed("sizes", Sizes)
@THREADS_OPTION
@DB_OPTION
@click.option("--quick-compile", is_flag=True, help="Compile with --quick what is not compiled yet.")
@packed("compiling", Compiling)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context, *, models: Models, rivals: Rivals, sizes: Sizes, compiling: Compiling, as_json: bool
) -> None:
    """Compare Collage's serving engine with a static batch, request-level scheduling and other systems.

    A MODEL is gpt2_124m, qwen2_like, llama_1b or moe_like; by default the first two. Files that are missing are made,
    which takes long for Collage's (the module of a decoder stays in --folder). All contenders have the same weights,
    token ids and arrivals, threads, and precision of weights and cache, and ignore end tokens. Each has a process of
    its own, which is stopped while another one is measured. One that is not installed is left out, and so are all other
    systems for moe_like, whose weights are not written in their formats.

    In bfloat16 Collage's decoder is compiled with an error of the logits of at most 2e-2, and has bfloat16 where that
    is faster. In int8 the error is at most 5e-2, and weights are in 8 bits where that is faster; other systems have
    their own 8 bits, and the cache is float32 for all.

    `request-level` is Collage's engine with batches of eight requests, none of which begins before the last one has
    ended. `whole-batches` is the same as Orca's paper describes it: answers of a batch come together, with the longest.
    `shortest-first` is what its Figure 10 compares with: besides, prompts are computed up to the length of the shortest
    one, and the rest of them token by token.

    Five parts: `right` compares the engine's greedy answers with ONNX Runtime's on the original decoder. `alone` is the
    engine against a static batch on the same kernels, and the scheduler's time. `trace` is Orca's trace, saturated and
    at several rates. `clock` is that trace with 500 requests, on a clock that adds up what iterations cost: runs with
    few requests end before queues are long. `between` is the time between tokens while prompts of 512 tokens arrive.
    Shares of the bound are those of the machine's memory and products, measured in the same run.

    \b
    Examples:
      scripts/bench serve
      scripts/bench serve gpt2_124m --peers none --only alone
      scripts/bench serve --python vllm=venv/bin/python --rounds 5 --json
      scripts/bench serve gpt2_124m --precision bfloat16 --only trace
      scripts/bench serve gpt2_124m --forms shortest-first --peers none --only trace --rates 0.2,0.3,0.4
      scripts/bench serve qwen2_like --precision int8 --only trace
      scripts/bench serve --quick
    """
    from collage.errors import CollageError
    from scripts.lib.serving.bounds import measure_machine
    from scripts.lib.serving.contender import Setup
    from scripts.lib.serving.field import opened
    from scripts.lib.serving.prepare import prepared
    from scripts.lib.serving.study import study
    from scripts.lib.serving.table import tables
    from scripts.lib.studies.each import INTERRUPTED, say

    making = compiling.making(models.folder, sizes.quick, sizes.precision)
    course = sizes.course()
    results: list[dict[str, Any]] = []
    status = 0
    machine = measure_machine(making.threads, sizes.precision)
    speeds = f"memory {machine.gbytes_per_s:.1f} GB/s, products {machine.gflops:.0f} GFLOP/s"
    say(speeds)  # for those who stop it
    try:
        for name in models.models or MODELS:
            try:
                model = prepared(name, making)
                setup = Setup(
                    model.folder.absolute(),
                    model.module.absolute(),
                    making.threads,
                    course.running,
                    course.precision,
                )
                names = [each for each in rivals.names if each not in PEERS or not model.shape.experts]
                with opened(names, rivals.pythons, setup, Path(sys.executable)) as field:
                    results.append(study(model, field, course, machine))
            except CollageError as error:
                say(f"error: {name}: {error}")
                status = 1
    except KeyboardInterrupt:
        say("interrupted")
        status = INTERRUPTED
    found = {**head(making.threads, machine=asdict(machine), course=asdict(course)), "models": results}
    view = [speeds] if results else []
    show(found, [*view, *(part for each in results for part in tables(each))], as_json=as_json)
    ctx.exit(status or int(any(each["failed"] for each in results)))
