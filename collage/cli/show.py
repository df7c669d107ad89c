"""The commands ``collage show`` and ``collage verify``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, print_rich, print_table, say
from collage.cli.files import check_writable, refuse_same
from collage.cli.options import (
    FILE_ARGUMENT,
    JSON_OPTION,
    PATH,
    once_each,
    option,
    parse_shape,
    refuse_unused,
    refuse_useless,
)
from collage.core.new_file import new_file
from collage.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from collage.module.file import Summary
    from collage.report.page_data import ShownModule
    from collage.report.report import Report
    from collage.schedule.program import Program


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


_ALL = ""


@click.command()
@FILE_ARGUMENT
@JSON_OPTION
@option("--details", is_flag=True, help="Show all kernels, and how the compile went; of --explain all candidates.")
@option(
    "--html",
    metavar="FILE",
    type=PATH,
    help="Write a page for browsers: the network with every candidate, the time line, and the costs.",
)
@option(
    "--compare",
    "other",
    metavar="OTHER.collage",
    type=PATH,
    help="Compare with another module of the same model: what runs elsewhere or otherwise, and what that gains.",
)
@option(
    "--explain",
    metavar="[NODE]",
    is_flag=False,
    flag_value=_ALL,
    help="List the candidates of each node with their costs, and the reasons why they were not chosen. NODE, which is "
    "a part of an operator's or ONNX name, or a kernel's number in the table, selects nodes. Give it after the file.",
)
@option(
    "--gaps",
    "model",
    metavar="MODEL.onnx",
    type=PATH,
    help="Run an engine on the model, and show its time by layers beside the kernels for the same nodes.",
)
@option("--engine", metavar="NAME", help="The engine for --gaps. Default: the fastest on this model.")
@option(
    "--shape",
    "shapes",
    type=parse_shape,
    metavar="NAME:1x128",
    multiple=True,
    help="Show only the placement for these shapes, if the file has several.",
)
def show(
    file: Path,
    as_json: bool,
    details: bool,
    html: Path | None,
    other: Path | None,
    explain: str | None,
    model: Path | None,
    engine: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    """Show what runs where, what it costs, and why other candidates were not chosen.

    Reads the file only, but for --gaps: no backend is loaded, so files of other machines can be shown too. Of a
    compiled decoder it shows the times, the error and the backends of each segment.

    \b
    Examples:
      collage show model.collage
      collage show model.collage --details            all kernels, and how the compile went
      collage show model.collage --explain            every node
      collage show model.collage --explain conv1      nodes with conv1 in their name
      collage show model.collage --html model.html
      collage show old.collage --compare new.collage
      collage show model.collage --gaps model.onnx    where an engine is faster
      collage show model.collage --json | jq '.regions[].backend'
    """
    from collage.module.file import read_summary
    from collage.module.shaped import summarise
    from collage.runtime.inputs import shapes_text
    from collage.serve.decoder.file import is_decoder

    if html is not None:
        for each in filter(None, (file, other)):
            refuse_same(each, html, "--html", ".html")
        check_writable(html, (".html",))
    if is_decoder(file):
        _show_decoder(file, as_json, any((html, other, explain is not None, model, shapes)))
        return
    if other is not None:
        for name in ("--explain", "--gaps"):
            refuse_useless(name, "--compare", "it shows other things")
        show_comparison(file, other, once_each("--shape", shapes), html, as_json)
        return
    if model is None:
        refuse_unused("--engine", "--gaps")
    else:
        for name in ("--html", "--explain"):
            refuse_useless(name, "--gaps", "it shows other things")
        _show_gaps(file, model, engine, once_each("--shape", shapes), as_json)
        return
    summary = read_summary(file)
    shown = range(len(summary.modules))
    if shapes:
        number = _number_of_shapes(summary, once_each("--shape", shapes))
        shown = range(number, number + 1)
    if html is not None:
        from collage.report.show_html import as_page

        page = as_page([shown_module(file, summary, number) for number in shown])
        with new_file(html) as stream:
            stream.write(page.encode())
    summary = replace(summary, modules=tuple(summary.modules[number] for number in shown))
    if as_json:
        found = [_json(report, program, explain) for report, program in summary.modules]
        whole = summarise(found, summary.fallback) if summary.shaped else found[0]
        print_json({**whole, "original_bytes": summary.model_bytes})
    elif explain is not None:
        from collage.report.show_terminal import explanation

        for report, program in summary.modules:
            if summary.shaped:
                say(f"shapes {shapes_text(program)}\n")
            print_rich(explanation(_entries(report, program, explain), detailed=details))
    elif html is None:
        print_rich(summary_view(summary, detailed=details))
    else:
        say(f"wrote {html}")


def _show_decoder(file: Path, as_json: bool, refused: bool) -> None:
    """Show a decoder that was compiled for serving. Raises UsageError where options for modules are given."""
    from collage.cli.decoder_view import decoder_object, show_decoder
    from collage.serve.decoder.file import read_decoder_summary

    if refused:
        raise UsageError(
            f"{file} is a decoder that was compiled for serving: --html, --compare, --explain, --gaps and --shape are "
            "for modules."
        )
    found = read_decoder_summary(file)
    if as_json:
        print_json(decoder_object(found, kernels=True))
    else:
        show_decoder(found)


def _show_gaps(
    file: Path, model: Path, engine: str | None, shapes: Mapping[str, tuple[int, ...]], as_json: bool
) -> None:
    """Show where an engine is faster than the module, or than all kernels that its compile has measured."""
    from collage.bench.gaps import gaps_to_engine
    from collage.report.show import duration, shorten_nodes

    found = gaps_to_engine(file, model, engine, shapes)
    if as_json:
        print_json(found)
        return
    engine = found["engine"]
    ours = "its kernels" if found["ours"] == "module" else "the best other kernels"
    took = [duration(found[each]) for each in ("engine_us", "layers_us", "module_us", "ours_us")]
    say("{}: {}, its layers {}; the module: {}, {} {}".format(engine, *took[:3], ours, took[3]))
    lost = [each for each in found["gaps"] if (each["loss_us"] or 0) > 0]
    print_table(
        (engine, "us", "Collage", "us", "loss", "share", "operators", "nodes"),
        [
            (
                *(" + ".join(dict.fromkeys(each["layers"])), f"{each['engine_us']:.1f}"),
                *(" + ".join(each["backends"]), f"{each['ours_us']:.1f}"),
                *(f"{each['loss_us']:.1f}", f"{each['share']:.1%}"),
                *(
                    ", ".join(f"{count} {op}" for op, count in each["ops"].items()),
                    shorten_nodes(each["nodes"]),
                ),
            )
            for each in lost
        ],
        right=("us", "loss", "share"),
    )
    unknown = [each for each in found["gaps"] if each["loss_us"] is None]
    if unknown:
        names = shorten_nodes([name for each in unknown for name in each["nodes"]])
        say(f"no other kernel was measured for {names}")
    say(f"not slower: {len(found['gaps']) - len(lost) - len(unknown)} of {len(found['gaps'])}")


def summary_view(summary: Summary, *, detailed: bool = False) -> RenderableType:
    """The modules of a file, each with its shapes as a heading where there are several, and what else the file has."""
    from rich.console import Group
    from rich.text import Text

    from collage.report.show import size
    from collage.report.show_terminal import report_view
    from collage.runtime.inputs import shapes_text

    stored = f"the original model, {size(summary.model_bytes)}, is in the file"
    more = [Text(stored)] if summary.model_bytes else []
    if not summary.shaped:
        return Group(report_view(*summary.first, detailed=detailed), *more)
    parts: list[RenderableType] = []
    for report, program in summary.modules:
        view = report_view(report, program, detailed=detailed)
        parts += [Text(f"shapes {shapes_text(program)}", style="bold"), view, Text()]
    others = "run on ONNX Runtime, with one warning" if summary.fallback else "are errors"
    return Group(*parts, Text(f"other shapes {others}"), *more)


def shown_module(file: Path, summary: Summary, number: int) -> ShownModule:
    """A module of a file as its page shows it. Raises ModuleFileError."""
    from collage.module.file import read_suffix_models
    from collage.report.page_data import ShownModule

    report, program = summary.modules[number]
    return ShownModule(report, program, None if program.suffix is None else read_suffix_models(file)[number])


def show_comparison(
    file: Path, other: Path, shapes: Mapping[str, tuple[int, ...]], html: Path | None, as_json: bool
) -> None:
    """Show what two modules of one model do differently. Raises UsageError if a file has several and none is chosen."""
    from collage.module.file import read_summary
    from collage.report.compare import compared
    from collage.report.show import headline
    from collage.runtime.inputs import shapes_text

    files = file, other
    summaries = [read_summary(each) for each in files]
    for path, summary in zip(files, summaries, strict=True):
        if len(summary.modules) > 1 and not shapes:
            there = "; ".join(shapes_text(program) for _, program in summary.modules)
            raise UsageError(f"{path} has placements for several shapes: choose one with --shape. There are {there}.")
    if file.samefile(other):
        raise UsageError(f"{file} is compared with itself.")
    numbers = [_number_of_shapes(each, shapes) for each in summaries]
    one, two = (each.modules[number] for each, number in zip(summaries, numbers, strict=True))
    names = (file.stem, other.stem) if file.stem != other.stem else (str(file), str(other))
    found = compared(one, two, names)
    if html is not None:
        from collage.report.show_html import comparison_page

        first, second = map(shown_module, files, summaries, numbers)
        page = comparison_page(first, second, found, names)
        with new_file(html) as stream:
            stream.write(page.encode())
    if as_json:
        times = [report.measured_us if report.is_measured else None for report, _ in (one, two)]
        print_json({"files": [*map(str, files)], "measured_us": times, **found.to_json()})
    elif html is None:
        from collage.report.show_terminal import comparison_view

        print_rich(comparison_view(found, names, (headline(one[0]), headline(two[0]))))
    else:
        say(f"wrote {html}")


def _number_of_shapes(summary: Summary, wanted: Mapping[str, tuple[int, ...]]) -> int:
    """The number of the first module for these shapes. Raises UsageError, which lists the shapes that the file has."""
    from collage.runtime.inputs import extents, shapes_text

    for number, (_, program) in enumerate(summary.modules):
        if wanted.items() <= {port.name: extents(port) for port in program.model_inputs}.items():
            return number
    there = "; ".join(shapes_text(program) for _, program in summary.modules)
    raise UsageError(f"there is no placement for these shapes. There are placements for {there}.")


def _json(report: Report, program: Program, explain: str | None) -> dict[str, Any]:
    from collage.module.module import summary_of

    found = summary_of(report, program)
    if explain is not None:
        found["nodes"] = [entry for _, entry in _entries(report, program, explain)]
    return found


def _entries(report: Report, program: Program, wanted: str) -> list[tuple[int, dict[str, Any]]]:
    """The entries of the nodes that ``wanted`` names, with their ids. Raises UsageError when it names none."""
    everything = list(enumerate(report.explain(program.regions)))
    if wanted == _ALL:
        return everything
    if wanted.isdigit() and int(wanted) < len(program.regions):
        region = program.regions[int(wanted)]
        if not region.nodes:
            raise UsageError(f"number {wanted} converts {region.layout}: there is one way to do that.")
        return [everything[node] for node in region.nodes]
    found = [
        (node, entry) for node, entry in everything if wanted.lower() in f"{entry['source']}\n{entry['op']}".lower()
    ]
    if not found:
        names = [*dict.fromkeys(entry["source"] or entry["op"] for _, entry in everything)]
        raise UsageError(
            f"no node has {wanted!r} in its name. There are {len(names)}, the first: {', '.join(names[:8])}."
        )
    return found
