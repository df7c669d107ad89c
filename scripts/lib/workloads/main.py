"""Write the five networks of the Collage paper (PACT'22, section 2.5.1), and others by name, as ONNX files.

    scripts/models --out DIR                    the five, at true size (about 760 MB)
    scripts/models vit_tiny --out DIR           one; --list has them all
    scripts/models gpt2_124m --out DIR          a decoder with a K/V cache, to be served; it needs no torch
    scripts/models --small --out DIR            the same architectures made tiny, for tests

Weights are random but seeded. Paths of the files go to stdout, progress to stderr. Exit status: 0, 1 (a file
could not be made, or failed its check) or 2 (usage).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from collage.errors import CollageError
from scripts.lib.decoders.shape import SUMMARIES as DECODERS
from scripts.lib.workloads.catalogue import ENTRIES, PAPER, Entry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    options = _parse(arguments)
    if options.list:
        summaries = {**{entry.name: entry.summary for entry in ENTRIES.values()}, **DECODERS}
        for name, summary in summaries.items():
            print(f"{name:{max(map(len, summaries))}}  {summary}")
        return 0
    failures = 0
    for name in dict.fromkeys(options.names or PAPER):
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            print(
                _make_decoder(name, options) if name in DECODERS else _make(ENTRIES[name], options),
                flush=True,
            )
        except ModuleNotFoundError as error:
            failures += 1
            _say(
                f"error: {name}: {error.name} is not installed; pip install '.[models]' brings what is missing"
            )
        except (CollageError, OSError) as error:
            failures += 1
            _say(f"error: {name}: {error}")
    return 1 if failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="models", description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="a workload (default: the five)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the files, made if need be")
    parser.add_argument(
        "--batch", metavar="N", type=_positive, default=1, help="static batch size (default: 1)"
    )
    parser.add_argument("--small", action="store_true", help="the same architectures, scaled down")
    parser.add_argument("--force", action="store_true", help="write again what is up to date")
    parser.add_argument("--check", action="store_true", help="compare ONNX Runtime with torch on each file")
    parser.add_argument("--list", action="store_true", help="list the workloads and stop")
    options = parser.parse_args(arguments)
    known = [*ENTRIES, *DECODERS]
    unknown = [name for name in dict.fromkeys(options.names) if name not in known]
    if unknown:
        parser.exit(2, f"models: error: unknown: {', '.join(unknown)}; there are: {', '.join(known)}\n")
    sized = [name for name in options.names if name in DECODERS]
    if sized and (options.batch != 1 or options.check):
        parser.exit(2, f"models: error: --batch and --check are not for decoders: {', '.join(sized)}\n")
    if options.out is None and not options.list:
        parser.exit(2, "models: error: --out DIR is needed\n")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _make_decoder(name: str, options: argparse.Namespace) -> Path:
    from scripts.lib.decoders.write import write_decoder

    began = time.monotonic()
    path = write_decoder(name, options.out, options.small)
    _say(f"{name}: {time.monotonic() - began:.1f} s")
    return path


def _make(entry: Entry, options: argparse.Namespace) -> Path:
    """Write one workload unless the file is there already, and check it if asked to."""
    from scripts.lib.workloads import export
    from scripts.lib.workloads.recipe import read_recipe

    path: Path = options.out / f"{entry.name}.onnx"
    began = time.monotonic()
    recipe = export.recipe(entry, batch=options.batch, small=options.small)
    fresh = not options.force and read_recipe(path) == recipe
    if fresh:
        _say(f"{entry.name}: up to date")
        if not options.check:
            return path
    workload = entry.build(batch=options.batch, small=options.small)
    if not fresh:
        _say(f"{entry.name}: exporting {workload.parameters / 1e6:.2f} M parameters")
        model = export.to_onnx(workload, name=entry.name, recipe=recipe)
        export.write(model, path)
        megabytes, seconds = path.stat().st_size / 1e6, time.monotonic() - began
        _say(f"{entry.name}: {len(model.graph.node)} nodes, {megabytes:.1f} MB, {seconds:.1f} s")
    if options.check:
        from scripts.lib.workloads.check import check

        for line in check(workload, path):
            _say(f"{entry.name}: {line}")
    return path


def _say(line: str) -> None:
    print(f"models: {line}", file=sys.stderr, flush=True)
