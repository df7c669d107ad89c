"""What the scripts run: one module or package for each of them, and what several share.

The files beside this folder only import ``scripts.lib.run``, so that types and imports are checked here.
What measures a user's own model is in ``collage.bench``; this folder has what needs the repository: the paper's
workloads, comparisons with other systems, and checks of Collage's promises.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The root of the repository."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def say(line: str) -> None:
    """Write a line to stderr that begins with the script's name."""
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr, flush=True)


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """A parser of a script's command line, whose help is the docstring of its module as it stands."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
