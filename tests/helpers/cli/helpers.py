"""Calling the command line in this process, and what a failure must look like."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from collage.cli.main import main


def collage(*arguments: str | Path) -> Result:
    """Run ``collage`` with these arguments."""
    return CliRunner().invoke(main, [str(each) for each in arguments])


def succeeds(*arguments: str | Path) -> str:
    """What it prints to stdout; it must exit with 0."""
    result = collage(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def json_of(*arguments: str | Path) -> dict[str, Any]:
    """The object that it prints to stdout, and nothing else."""
    found: dict[str, Any] = json.loads(succeeds(*arguments), parse_constant=_refuse)
    return found


def fails(status: int, *arguments: str | Path, words: tuple[str, ...]) -> str:
    """The line that says what is wrong; it must exit with ``status``, print no result and no traceback.

    Only progress, and warnings of ours, may come before that line.
    """
    result = collage(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    *before, line = result.stderr.splitlines()
    assert all(re.match(r"collage: (warning: |best so far |\w+ \(\d+\)$)", each) for each in before), result.stderr
    assert line.startswith("collage: error: ")
    for word in words:
        assert word in line, line
    return line


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
