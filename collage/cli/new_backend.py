"""The command ``collage new-backend``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from collage.cli.console import say
from collage.cli.options import PATH, option


@click.command()
@click.argument("name")
@option("--output", metavar="DIR", type=PATH, help="The new folder. [default: NAME]")
def new_backend(name: str, output: Path | None) -> None:
    """Write the package of a new backend: a kernel that works, tests, and CI.

    NAME is a lower-case identifier. The package has an entry point, so that Collage finds the backend once it is
    installed. Its kernel runs long filters by fast Fourier transform: change it to yours. docs/backend-tutorial.md goes
    through it.

    \b
    Example:
      collage new-backend my_backend
    """
    from collage.api import default_registry
    from collage.testing.new_backend import write_package

    folder = Path(name) if output is None else output
    paths = write_package(name, folder, default_registry().names)
    for path in paths:
        say(str(path))
    say(f"\nNow: cd {shlex.quote(str(folder))}; pip install -e .[test]; pytest; collage check-backend {name}")
