"""``collage db``: the group of commands; each is in a file of its own beside this one."""

from __future__ import annotations

import click

from collage.cli.db_contents import list_rows, stats, why
from collage.cli.db_exchange import export_rows, import_rows, merge
from collage.cli.db_upkeep import prune, verify


@click.group()
def db() -> None:
    """The database of measurements: what is in it, and how it travels.

    A compile measures each kernel once and keeps the result in this file, so that the next compile measures nothing.
    Two databases of the same kind of machine can be merged; of two measurements the more certain one stays.

    \b
    collage db stats                      how much is in it
    collage db why "conv2d + relu"        what was measured for such a region
    collage db export team.sqlite         write a file to give away
    collage db import team.sqlite         take what this machine can use
    """


for _command in (stats, list_rows, why, export_rows, import_rows, merge, prune, verify):
    db.add_command(_command)
