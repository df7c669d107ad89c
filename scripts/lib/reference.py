"""The command line as text, read from click: Markdown for the site, and a page for man."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from collage.cli.main import main

_ENVIRONMENT = (
    "COLLAGE_TRACEBACK=1 shows tracebacks. COLLAGE_ISA=avx2 leaves out AVX-512. XDG_CACHE_HOME names the folder of the "
    "measurements. The page on environment variables of the documents has all of them."
)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a help text; a ``verbatim`` one keeps its lines."""

    text: str
    verbatim: bool


@dataclass(frozen=True)
class Entry:
    """A command: its words, such as ``collage db why``, its arguments, and each option with its help."""

    words: str
    arguments: str
    paragraphs: Sequence[Paragraph]
    options: Sequence[tuple[str, str]]


def entries() -> list[Entry]:
    """All commands, sorted by name; a group comes before its commands."""
    return [*_entries(main, click.Context(main, info_name="collage"))]


def _entries(command: click.Command, context: click.Context) -> Iterator[Entry]:
    group = isinstance(command, click.Group)
    records = (each.get_help_record(context) for each in command.params if isinstance(each, click.Option))
    pieces = ["COMMAND ..."] if group else command.collect_usage_pieces(context)
    yield Entry(
        context.command_path,
        " ".join(pieces),
        [*_paragraphs(command.help or "")],
        [record for record in records if record is not None],
    )
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            child = command.commands[name]
            yield from _entries(child, click.Context(child, info_name=name, parent=context, show_default=True))


def _paragraphs(text: str) -> Iterator[Paragraph]:
    """The paragraphs of a docstring; those that begin with a line ``\\b`` are verbatim."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        verbatim = part.startswith("\b")
        yield Paragraph(part.removeprefix("\b").strip("\n") if verbatim else " ".join(part.split()), verbatim)


def markdown() -> str:
    """A section for each command, with its usage, its help and its options."""
    lines: list[str] = []
    for each in entries():
        lines += [f"### {each.words}", "", "```text", f"{each.words} {each.arguments}", "```", ""]
        for paragraph in each.paragraphs:
            lines += ["```text", paragraph.text, "```", ""] if paragraph.verbatim else [_plain(paragraph.text), ""]
        lines += [f"- `{names}`: {_plain(text)}" for names, text in each.options]
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A text as Markdown that shows it as it is, but for code between backticks."""
    code = re.split(r"(`[^`]*`)", text)
    return "".join(each if each.startswith("`") else re.sub(r"([*_<>\[\]\\|])", r"\\\1", each) for each in code)


def man_page() -> str:
    """The page that ``man collage`` shows, in the language of troff."""
    top, *commands = entries()
    summary, *rest = top.paragraphs
    lines = [
        '.TH COLLAGE 1 "" Collage',
        *(".SH NAME", f"collage \\- {_troff(summary.text.rstrip('.'))}"),
        *(".SH SYNOPSIS", f"\\fBcollage\\fR {_troff(top.arguments)}"),
        *(".SH DESCRIPTION", *_described(rest)),
        *(".SH OPTIONS", *_listed(top.options)),
        ".SH COMMANDS",
    ]
    for each in commands:
        words, arguments = _troff(each.words), _troff(each.arguments)
        lines += [f".SS {words}", f"\\fB{words}\\fR {arguments}", *_described(each.paragraphs)]
        lines += _listed(each.options)
    return "\n".join([*lines, ".SH ENVIRONMENT", _troff(_ENVIRONMENT), ""])


def _described(paragraphs: Sequence[Paragraph]) -> Iterator[str]:
    for each in paragraphs:
        yield from (".PP", ".nf", _troff(each.text), ".fi") if each.verbatim else (".PP", _troff(each.text))


def _listed(options: Sequence[tuple[str, str]]) -> Iterator[str]:
    for names, text in options:
        yield from (".TP", f"\\fB{_troff(names)}\\fR", _troff(text))


def _troff(text: str) -> str:
    """A text as troff that shows it as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)
