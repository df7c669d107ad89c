"""The command ``collage doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import print_json, print_rich
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

        from collage.report.show_terminal import plain_table

        table = plain_table()
        table.show_header = False
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        for each in found:
            fix = f"\n-> {each.fix}" if each.fix else ""
            table.add_row(
                Text(each.status.value, style=_STYLES[each.status.value]),
                Text(each.name),
                Text(each.detail + fix),
            )
        print_rich(table)
    if not healthy:
        click.get_current_context().exit(1)
