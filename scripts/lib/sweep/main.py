"""Run every backend on NaN, infinities, zeros, denormals, large numbers and integers, and compare with ONNX Runtime.

    scripts/semantics                                 all operators, all backends; prints the tables
    scripts/semantics --results sweep.jsonl           keeps what it finds; run again, it goes on from there
    scripts/semantics --results sweep.jsonl --write   and puts the tables into docs/semantics.md
    scripts/semantics --backends tvm --only '^Clip'   and lists what differs, with the numbers

An operator that ended the process is noted as crashed when the script runs again with the same results. Progress goes
to stderr. Exit status: 0, 1 (integers differ, or an operator crashed).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np

from collage.backends.registry import builtin_registry
from scripts.lib import ROOT
from scripts.lib.studies.each import INTERRUPTED
from scripts.lib.sweep.cases import all_cases, name_of
from scripts.lib.sweep.run import Cell, try_case
from scripts.lib.sweep.table import tables

DOCUMENT = ROOT / "docs" / "semantics.md"
BEGIN, END = "<!-- made by scripts/semantics -->", "<!-- end -->"


def main() -> int:
    arguments = _parse()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    registry = builtin_registry(with_entry_points=False)
    names = arguments.backends or [name for name, found in registry.availability().items() if found]
    cells, done = _known(arguments.results)
    cases = [each for each in all_cases() if re.search(arguments.only, name_of(each))]
    for number, each in enumerate(cases, 1):
        name = name_of(each)
        waiting = {n: registry[n] for n in names if (name, n) not in done}
        if not waiting:
            continue
        print(f"{number}/{len(cases)} {name}", file=sys.stderr, flush=True)
        _note(arguments.results, {"case": name, "started": sorted(waiting)})
        try:
            found = list(try_case(each, waiting))
        except KeyboardInterrupt:
            _note(arguments.results, {"case": name, "stopped": sorted(waiting)})
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        cells += found
        for cell in found:
            _note(arguments.results, asdict(cell))
        _note(arguments.results, {"case": name, "done": sorted(waiting)})
    text = tables(cells, names)
    if arguments.write:
        document = DOCUMENT.read_text()
        before, _, rest = document.partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    else:
        print(text)
        for cell in cells:
            if cell.status in ("wrong", "failed", "crashed") and re.search(arguments.only, cell.case):
                print(f"\n{cell.backend} {cell.case}, {cell.kind}: {cell.status}: {cell.message}")
    integers = [c for c in cells if c.status == "wrong" and "int" in c.dtype and c.backend in names]
    return 1 if integers or any(cell.status == "crashed" for cell in cells) else 0


def _known(path: Path | None) -> tuple[list[Cell], set[tuple[str, str]]]:
    """Cells of earlier runs, and the cases that are done by backend.

    Those that were started only have crashed, unless somebody has stopped them.
    """
    cells: list[Cell] = []
    started: set[tuple[str, str]] = set()
    done: set[tuple[str, str]] = set()
    for line in path.read_text().splitlines() if path and path.exists() else ():
        found = json.loads(line)
        if "started" in found:
            started |= {(found["case"], name) for name in found["started"]}
        elif "stopped" in found:
            started -= {(found["case"], name) for name in found["stopped"]}
        elif "done" in found:
            done |= {(found["case"], name) for name in found["done"]}
        else:
            cells.append(Cell(**found))
    crashed = started - done
    cells += [Cell(case.partition("1")[0], case, "", name, "", "crashed") for case, name in sorted(crashed)]
    return cells, done | crashed


def _note(path: Path | None, line: object) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", type=lambda text: text.split(","), metavar="A,B")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--results", type=Path, metavar="FILE", help="one JSON object a line, appended to")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/semantics.md")
    return parser.parse_args()
