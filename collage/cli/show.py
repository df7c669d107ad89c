"""``collage show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, print_rich
from collage.cli.files import check_writable
from collage.cli.options import FILE_ARGUMENT, JSON_OPTION
from collage.errors import UsageError
from collage.new_file import new_file

if TYPE_CHECKING:
    from collage.report import Report
    from collage.schedule.program import Program

_ALL = ""


@click.command()
@FILE_ARGUMENT
@JSON_OPTION
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page with a picture of the launches.",
)
@click.option(
    "--explain",
    metavar="[NODE]",
    is_flag=False,
    flag_value=_ALL,
    help="For every node, or those whose operator or ONNX name contains NODE (or the one with that number), "
    "each candidate: its cost, or why not. Put it after the file.",
)
def show(file: Path, as_json: bool, html: Path | None, explain: str | None) -> None:
    """Show what runs where, what it costs, and why nothing else was chosen.

    Reads the file only: no backend is loaded, so files of other machines can be shown too.

    \b
    Examples:
      collage show model.collage
      collage show model.collage --explain            every node
      collage show model.collage --explain conv1      nodes with conv1 in their name
      collage show model.collage --html model.html
      collage show model.collage --json | jq '.regions[].backend'
    """
    from collage.runtime.file import read_summary

    if html is not None:
        check_writable(html)
    report, program, _ = read_summary(file)
    if html is not None:
        from collage.show import as_page

        with new_file(html) as stream:
            stream.write(as_page(report, program).encode())
    if as_json:
        found = report.summary(program.regions)
        if explain is not None:
            found["nodes"] = [entry for _, entry in _entries(report, program, explain)]
        print_json(found)
    elif explain is not None:
        from collage.show_terminal import explanation

        print_rich(explanation(_entries(report, program, explain)))
    elif html is None:
        from collage.show_terminal import report_view

        print_rich(report_view(report, program))
    else:
        click.echo(f"wrote {html}")


def _entries(report: Report, program: Program, wanted: str) -> list[tuple[int, dict[str, Any]]]:
    """Entries of the nodes that ``wanted`` names, with their ids. Raises UsageError when it names none."""
    everything = list(enumerate(report.explain(program.regions)))
    if wanted == _ALL:
        return everything
    if wanted.isdigit() and int(wanted) < len(everything):
        return [everything[int(wanted)]]
    found = [
        (node, entry)
        for node, entry in everything
        if wanted.lower() in f"{entry['source']}\n{entry['op']}".lower()
    ]
    if not found:
        some = ", ".join(dict.fromkeys(entry["source"] or entry["op"] for _, entry in everything[:8]))
        raise UsageError(
            f"no node has {wanted!r} in its name. There are {len(everything)}, the first: {some}."
        )
    return found
