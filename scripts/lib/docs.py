"""Build the site of the documents, or write the man page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from scripts.lib import ROOT, say
from scripts.lib.reference import man_page

SOURCE, MAN_PAGE = ROOT / "docs", ROOT / "docs" / "man" / "collage.1"
_STRICT = ("--nitpicky", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=SOURCE / "_site",
    help="The folder of the site. Default: docs/_site.",
)
@click.option("--man", is_flag=True, help="Write docs/man/collage.1 instead, which wheels bring along.")
def main(out: Path, man: bool) -> None:
    """Build the site of docs/*.md. Every warning is an error, such as a link that leads nowhere.

    It needs `pip install '.[docs]'`, and no network.
    """
    if man:
        MAN_PAGE.parent.mkdir(exist_ok=True)
        MAN_PAGE.write_text(man_page())
        return
    done = subprocess.run([sys.executable, "-m", "sphinx", *_STRICT, str(SOURCE), str(out)])
    if not done.returncode:
        say(f"wrote {out / 'index.html'}")
    sys.exit(done.returncode)
