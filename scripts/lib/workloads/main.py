"""Write the five networks of the Collage paper (PACT'22, section 2.5.1), and others by name, as ONNX files.

    scripts/models --out DIR                    the five, at true size (about 760 MB)
    scripts/models inception_v3 --out DIR       one; --list has them all
    scripts/models gpt2_124m --out DIR          a decoder with a K/V cache, to be served; it needs no torch
    scripts/models --small --out DIR            the same architectures made tiny, for tests

Weights are random but seeded. Paths of the files go to stdout, progress to stderr. Exit status: 0, 1 (a file
could not be made) or 2 (usage).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from collage.errors import CollageError
from scripts.lib import parser_of, say
from scripts.lib.decoders.shape import SUMMARIES as DECODERS
from scripts.lib.decoders.write import write_decoder
from scripts.lib.workloads.catalogue import ENTRIES, PAPER, RESNET_INT8, SUMMARIES, Entry
from scripts.lib.workloads.flights import LEVELS, PIPELINE, write_flights, write_pipeline
from scripts.lib.workloads.resnet_int8 import write_resnet_int8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    options = _parse(arguments)
    if options.list:
        for name, summary in {**SUMMARIES, **DECODERS}.items():
            print(f"{name:{max(map(len, SUMMARIES))}}  {summary}")
        return 0
    failures = 0
    for name in dict.fromkeys(options.names or PAPER):
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"{name}.onnx"
            if name in DECODERS:
                write_decoder(name, options.out, options.small)
            elif name == PIPELINE:
                path = path.with_suffix(".joblib")
                write_pipeline(path)
            elif name in LEVELS:
                write_flights(name, path)
            elif name == RESNET_INT8:
                write_resnet_int8(path)
            else:
                _make(ENTRIES[name], options, path)
            print(path, flush=True)
        except ModuleNotFoundError as error:
            failures += 1
            say(f"error: {name}: {error.name} is not installed; pip install 'collage-compiler[models]'")
        except (CollageError, OSError) as error:
            failures += 1
            say(f"error: {name}: {error}")
    return 1 if failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="a workload (default: the five)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the files, made if need be")
    parser.add_argument(
        "--batch", metavar="N", type=_positive, default=1, help="static batch size of workloads (default: 1)"
    )
    parser.add_argument("--small", action="store_true", help="the same architectures, scaled down")
    parser.add_argument("--list", action="store_true", help="list the workloads and stop")
    options = parser.parse_args(arguments)
    known = [*SUMMARIES, *DECODERS]
    if unknown := [name for name in dict.fromkeys(options.names) if name not in known]:
        parser.exit(2, f"models: error: unknown: {', '.join(unknown)}; there are: {', '.join(known)}\n")
    if options.out is None and not options.list:
        parser.exit(2, "models: error: --out DIR is needed\n")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _make(entry: Entry, options: argparse.Namespace, path: Path) -> None:
    """Write one workload unless the file is up to date."""
    from scripts.lib.workloads import export
    from scripts.lib.workloads.recipe import read_recipe

    recipe = export.recipe(entry, batch=options.batch, small=options.small)
    if read_recipe(path) == recipe:
        say(f"{entry.name}: up to date")
        return
    workload = entry.build(batch=options.batch, small=options.small)
    say(f"{entry.name}: exporting {workload.parameters / 1e6:.2f} M parameters")
    export.write(export.to_onnx(workload, name=entry.name, recipe=recipe), path)
