"""The command ``collage verify``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import print_json, say
from collage.cli.options import FILE_ARGUMENT, JSON_OPTION


@click.command()
@FILE_ARGUMENT
@JSON_OPTION
def verify(file: Path, as_json: bool) -> None:
    """Check that a module file is as it was written. Nothing in it is loaded.

    This finds damage. Who has made a file is shown by a signature beside it, as gpg and cosign make them.

    \b
    Examples:
      collage verify model.collage
    """
    from collage.errors import ModuleFileError
    from collage.module.file import verified

    try:
        archive = verified(file)
    except ModuleFileError as error:
        if as_json:
            print_json({"valid": False, "reason": str(error)})
        raise
    if as_json:
        print_json({"valid": True, "digest": archive.digest})
        return
    say(f"{file} is as it was written ({archive.digest[:16]})")
