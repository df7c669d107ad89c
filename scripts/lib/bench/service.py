"""The command ``scripts/bench service``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from collage.cli.console import print_json
from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import packed, seconds_option


@dataclass(frozen=True)
class Load:
    """The number of threads that call, the seconds for each kind of callers, and the number of calls in a row."""

    threads: int
    seconds: float
    calls: int


@click.command("service")
@click.argument("file", metavar="[MODULE.collage]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Threads that call.",
)
@seconds_option(60.0, "Time for each kind of callers.")
@click.option(
    "--calls",
    type=click.IntRange(min=100),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Calls after which resident memory is looked at again.",
)
@packed("load", Load)
@click.option("--overhead", is_flag=True, help="Tell what a call costs beside its kernels; needs no module.")
@JSON_OPTION
@click.pass_context
def command(ctx: click.Context, *, file: Path | None, load: Load, overhead: bool, as_json: bool) -> None:
    """Measure a compiled module as a service uses it.

    It is called from many threads, on one module and on a clone for each: calls of each thread, the ratio of most to
    fewest, wrong outputs, and resident memory before and after. It is loaded by two processes: seconds to load and
    for the first run, and the memory that they share. It is called very often, and resident memory is compared.
    A preloaded library counts allocations between the first kernel and the last, where there is a C compiler. The
    exit status is 1 when an output was wrong.

    \b
    Examples:
      scripts/bench service bert.collage
      scripts/bench service bert.collage --seconds 5 --calls 1000
      scripts/bench service --overhead
    """
    from scripts.lib.service.measure import measure, overheads

    if overhead:
        found = overheads()
    elif file is None:
        raise click.UsageError("give a module file, made by `collage compile`", ctx)
    else:
        found = measure(file, load.threads, load.seconds, load.calls)
    if as_json:
        print_json(found)
    ctx.exit(1 if any(each["wrong"] for each in found.get("callers", ())) else 0)
