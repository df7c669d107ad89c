"""The command ``collage doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import print_json, print_table
from collage.cli.options import DB_OPTION, JSON_OPTION

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@DB_OPTION
@JSON_OPTION
def doctor(db: Path | None, as_json: bool) -> None:
    """Check Python, libraries, CPU, cache folder and database, and say how to mend what is wrong.

    The exit status is 1 when something that Collage needs is missing or broken.

    \b
    Examples:
      collage doctor
      collage doctor --json
    """
    from collage.cli.doctor_checks import Status, checks

    found = [check() for check in checks(db)]
    healthy = all(each.status is not Status.FAIL for each in found)
    if as_json:
        listed = [
            {"name": each.name, "status": each.status.value, "detail": each.detail, "fix": each.fix}
            for each in found
        ]
        print_json({"ok": healthy, "checks": listed})
    else:
        from rich.text import Text

        rows = [
            (
                Text(each.status.value, style=_STYLES[each.status.value]),
                each.name,
                each.detail + (f"\n-> {each.fix}" if each.fix else ""),
            )
            for each in found
        ]
        print_table(("", "check", "result"), rows, wide=True)
    if not healthy:
        click.get_current_context().exit(1)
