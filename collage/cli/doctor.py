"""The command ``collage doctor``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from collage.cli.completion import MODULES, complete_files
from collage.cli.console import print_json, print_table
from collage.cli.options import DB_OPTION, JSON_OPTION

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.argument("module", required=False, type=click.Path(path_type=Path), shell_complete=complete_files(MODULES))
@DB_OPTION
@JSON_OPTION
def doctor(module: Path | None, db: Path | None, as_json: bool) -> None:
    """Check Python, libraries, CPU, cache folder and database, and say how to mend what is wrong.

    With MODULE, a file that `collage compile` has written, say what of it runs here and why the rest does not.

    The exit status is 1 when something that Collage needs is missing or broken, or MODULE does not run.

    \b
    Examples:
      collage doctor
      collage doctor model.collage
      collage doctor --json
    """
    from collage.cli.doctor_checks import FAIL, checks, module_checks

    found = checks(db) if module is None else module_checks(module)
    healthy = all(each.status != FAIL for each in found)
    if as_json:
        print_json({"ok": healthy, "checks": [asdict(each) for each in found]})
    else:
        from rich.text import Text

        rows = []
        for each in found:
            mended = f"\n-> {each.fix}" if each.fix else ""
            rows.append((Text(each.status, style=_STYLES[each.status]), each.name, each.detail + mended))
        print_table(("", "check", "result"), rows, wide=True)
    if not healthy:
        click.get_current_context().exit(1)
