"""Export small decoders of many Hugging Face families, serve them with Collage, and compare with ONNX Runtime.

    scripts/decoder_families --exporter-python peers/bin/python           all families and exporters: hours
    scripts/decoder_families --families gemma2,gpt-oss --keep exports     some, and keeps their ONNX files
    scripts/decoder_families --exporters optimum --json found.json

Each export is compiled as `collage compile-decoder --quick --buckets 1,16` does. The engine answers prompts of 3, 17
and 40 tokens together, with 12 tokens each, and ONNX Runtime answers them one by one with the exported file. A token
that differs is wrong, unless the two are as likely within 1e-3, and so is a logit that differs by more than 1e-3 (of
the largest logit of its row, where that is above 1). Decoders have two to four layers of 64 elements, random weights,
and windows of 16 tokens. Nothing is downloaded.

The exporters need torch, transformers and optimum-onnx, which conflict with Collage's own packages. Give the
interpreter of an environment that has them; without them the script says how to make one. Rows and the summary go to
stdout. Exit status: 0, 1 (an accepted decoder is wrong, or crashes), 2 (usage, or packages are missing), 130
(interrupted).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from collage.core.temporary import TemporaryFolder
from scripts.lib.families.errors import PackagesMissingError, UnknownFamilyError
from scripts.lib.families.names import EXPORTERS, PACKAGES
from scripts.lib.families.processes import checks, exporters
from scripts.lib.families.rows import WRONG, Row, as_json, summary
from scripts.lib.families.sweep import Places, Sweep
from scripts.lib.families.table import FAMILIES, Family, chosen
from scripts.lib.json_text import json_text
from scripts.lib.studies.each import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    given = _parse(arguments)
    if given.list:
        print(_listed())
        return 0
    rows: list[Row] = []
    versions: Mapping[str, str] = {}
    status = 0
    with TemporaryFolder("families") as scratch:
        places = Places(
            given.keep or scratch / "exports", bool(given.keep), scratch, given.db or scratch / "times.sqlite"
        )
        try:
            with exporters(given.exporter_python, scratch) as (source, versions), checks(scratch) as checker:
                _say(", ".join(f"{name} {found}" for name, found in versions.items()))
                for note in untested(versions):
                    _say(note)
                found = Sweep(source, checker, places, given.limit)
                for row in found.rows(given.families, given.exporters):
                    rows.append(row)
                    print(row, flush=True)
        except PackagesMissingError as error:
            _say(f"error: {error}")
            return 2
        except KeyboardInterrupt:
            _say("interrupted")
            status = INTERRUPTED
    print(summary(rows))
    if given.json:
        given.json.write_text(json_text(as_json(rows, versions), indent=1) + "\n")
    return status or int(any(each.verdict == WRONG for each in rows))


def untested(versions: Mapping[str, str]) -> list[str]:
    """What is to be said about packages of other versions than those that the sweep was run with."""
    return [
        f"note: {name} is {versions[name]}, and the sweep was made with {name}{wanted}"
        for name, wanted in PACKAGES.items()
        if not SpecifierSet(wanted).contains(versions[name], prereleases=True)
    ]


def _listed() -> str:
    """The families with their configurations, and the exporters."""
    families = [f"{each.name:22} {each.config}" for each in FAMILIES]
    return "\n".join([*families, "", *(f"{name:22} {what}" for name, what in EXPORTERS.items())])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--list", action="store_true", help="list the families and exporters, and run nothing"
    )
    parser.add_argument("--families", type=_families, default=chosen([]), metavar="A,B", help="default: all")
    parser.add_argument(
        "--exporters", type=_exporters, default=list(EXPORTERS), metavar="A,B", help="default: all"
    )
    parser.add_argument(
        "--exporter-python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has the exporters' packages (default: this one)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep the ONNX files there; those that are there already are not exported again",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument(
        "--db", type=Path, metavar="FILE", help="measurement database (default: one that is removed)"
    )
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="S", help="seconds an export or a check may take"
    )
    return parser.parse_args(arguments)


def _families(text: str) -> Sequence[Family]:
    try:
        return chosen(text.split(","))
    except UnknownFamilyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _exporters(text: str) -> Sequence[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - EXPORTERS.keys()):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}. Valid: {', '.join(EXPORTERS)}")
    return names
