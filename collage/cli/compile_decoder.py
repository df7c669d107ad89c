"""The command ``collage compile-decoder``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.completion import ONNX, complete_files
from collage.cli.console import print_json, say
from collage.cli.errors import measurements_survive
from collage.cli.files import check_writable, refuse_same
from collage.cli.options import (
    DB_OPTION,
    JSON_OPTION,
    OUTPUT_OPTION,
    PATH,
    QUIET_OPTION,
    THREADS_OPTION,
    Count,
    Number,
    flag,
    option,
    refuse_unused,
)
from collage.core.extras import need_compiler
from collage.core.lean_imports import lean_imports

if TYPE_CHECKING:
    from collage.serve.decoder.compiled import CompiledDecoder


def parse_buckets(text: str) -> tuple[int, ...]:
    """Parse ``1,8,64`` to numbers of tokens."""
    sizes = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() for each in sizes):
        raise click.BadParameter(f"{text!r} are no numbers of tokens; write them as 1,8,64.")
    return tuple(map(int, sizes))


@click.command("compile-decoder")
@click.argument("model", metavar="MODEL", type=PATH, shell_complete=complete_files(ONNX))
@OUTPUT_OPTION
@option(
    "--buckets",
    type=parse_buckets,
    metavar="1,8,64",
    help="Numbers of tokens of an iteration to compile for; others are padded to the next one, which takes as long. "
    "Default: 14 of them, from 1 to 256.",
)
@option(
    "--max-length",
    type=Count(min=1),
    metavar="TOKENS",
    help="Longest sequence. Default: the length of the model's table of positions, or 4096 without one, and at most "
    "the number of positions in config.json.",
)
@option(
    "--tensor-parallel",
    "processes",
    type=Count(min=1),
    default=1,
    metavar="N",
    help="Divide heads and products among N processes, to be served with --parallel tensor --processes N.",
)
@option(
    "--tolerance",
    type=Number(min=0),
    default=0.0,
    show_default=False,
    metavar="ERROR",
    help="Largest allowed error of a logit, as a share of the largest logit beside it, such as 2e-2: weights may be in "
    "bfloat16 or 8 bits if that is faster. Default: float32.",
)
@flag("--no-8-bits", "no_8_bits", help="Stay with bfloat16 within the tolerance.")
@THREADS_OPTION
@DB_OPTION
@flag(
    "--quick",
    help="Try few candidates with few samples. It takes much less time, but the choice is not sure.",
)
@JSON_OPTION
@QUIET_OPTION
def compile_decoder(
    model: Path,
    output: Path,
    buckets: tuple[int, ...] | None,
    max_length: int | None,
    processes: int,
    tolerance: float,
    no_8_bits: bool,
    threads: int | None,
    db: Path | None,
    quick: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compile a decoder's ONNX model for serving, and write one file.

    MODEL is an ONNX file, or a folder with one in it or in its folder onnx. A config.json and generation_config.json
    beside it name the number of positions of the model, and the tokens that end an answer.

    The model is cut at its attention. What lies between is measured and placed for each number of tokens, the whole is
    checked against ONNX Runtime, and iterations are timed. A model that cannot be served is refused, and the message
    names the node.

    \b
    Examples:
      collage compile-decoder gpt2.onnx -o gpt2.collage
      collage compile-decoder gpt2 -o gpt2/gpt2.collage
      collage compile-decoder gpt2.onnx -o gpt2.collage --buckets 1,8,64 --quick
      collage compile-decoder gpt2.onnx -o gpt2.collage --tolerance 5e-2
      collage compile-decoder gpt2.onnx -o gpt2.collage --tensor-parallel 2 --threads 1
    """
    if not tolerance:
        refuse_unused("--no-8-bits", "--tolerance")
    from collage.serve.decoder.config import decoder_file, read_config

    file = decoder_file(model)
    refuse_same(file, output, "--output", ".collage")
    check_writable(output, (".collage",))
    positions = read_config(file).positions
    need_compiler()
    with measurements_survive(writes=True):
        from collage.api import default_registry
        from collage.report.progress_display import display
        from collage.serve.decoder.costs import BUCKETS

        with lean_imports():
            from collage.serve.decoder.build import compile_decoder as compile_it
            from collage.serve.decoder.build import compile_divided
            from collage.serve.decoder.compile import DecoderOptions
        from collage.serve.decoder.file import save_decoder

        options = DecoderOptions(
            buckets or BUCKETS, max_length, threads, db, quick, processes, tolerance, not no_8_bits
        )
        others: Sequence[CompiledDecoder] = ()
        with display(not quiet) as progress:
            if processes > 1:
                found, *others = compile_divided(file, options, default_registry(), progress)
            else:
                found = compile_it(file, options, default_registry(), progress)
        save_decoder(found, output, others)
    from collage.cli.decoder_view import decoder_object, say_times
    from collage.serve.decoder.file import read_decoder_summary

    summary = read_decoder_summary(output)
    if as_json:
        print_json({**decoder_object(summary), "output": str(output)})
        return
    from collage.report.show import size

    say_times(summary)
    if positions is not None and max_length is None and positions > summary.max_length:
        most = summary.max_length
        say(f"\nsequences of up to {most} tokens; config.json names {positions} positions, see --max-length")
    say(f"\nwrote {output} ({size(output.stat().st_size)})")
