"""The command ``collage check-backend``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from collage.cli.completion import complete_backends
from collage.cli.console import print_json, print_rich, say
from collage.cli.options import JSON_OPTION, PATH, SHAPES_OPTION, once_each, option, refuse_unused
from collage.core.library_text import raised
from collage.errors import UsageError

if TYPE_CHECKING:
    from collage.backends.base import Backend
    from collage.testing import Finding, Findings


def _complete_checks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from collage.testing import CHECKS

    return [CompletionItem(name, help=text) for name, text in CHECKS.items() if name.startswith(incomplete)]


@click.command()
@click.argument("backend", metavar="BACKEND", shell_complete=complete_backends)
@option(
    "--only",
    metavar="CHECK",
    multiple=True,
    help="Show this check only; repeat it for several.",
    shell_complete=_complete_checks,
)
@option("--model", "models", metavar="FILE", multiple=True, type=PATH, help="Try this model instead of the catalogue.")
@SHAPES_OPTION
@option(
    "--threads",
    type=click.IntRange(1),
    multiple=True,
    help="Build kernels for so many threads. [default: 1 and 2 to 4]",
)
@option(
    "--time-limit", "time_limit_s", type=float, default=10.0, metavar="SECONDS", help="Time that a kernel may take."
)
@option("--output", metavar="DIR", type=PATH, help="Write a script for each finding, which shows it again.")
@JSON_OPTION
def check_backend(
    backend: str,
    only: tuple[str, ...],
    models: tuple[Path, ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: tuple[int, ...],
    time_limit_s: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Check a backend against its contract, on about a thousand small models.

    BACKEND is MODULE:CLASS, the name of an entry point, or a name that `collage backends` lists. Its rules are asked
    about operators with many attributes, shapes and dtypes. Each kernel that they claim is built, run on usual and on
    hostile numbers between guarded buffers, and compared with ONNX Runtime. The backend runs in a process of its own,
    which it may bring down.

    \b
    The checks, for --only:
    {checks}

    \b
    Examples:
      collage check-backend my_package:MyBackend
      collage check-backend my_backend --only numbers --only formats
      collage check-backend my_backend --model model.onnx --output findings

    Exit status: 0 if nothing is wrong, 1 if something is, 2 for a wrong call. Notes are not wrong.
    """
    from collage.testing import CHECKS
    from collage.testing import check_backend as check

    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; give a folder for the scripts.")
    if not models:
        refuse_unused("--shape", "--model")
    with _progress() as progress:
        found = check(
            named(backend),
            only=only or CHECKS,
            models=models or None,
            shapes=once_each("--shape", shapes),
            threads=threads or None,
            time_limit_s=time_limit_s,
            progress=progress,
        )
    paths = [""] * len(found) if output is None else _written(output, found)
    defects = sum(each.defect for each in found)
    if as_json:
        listed = [
            {
                "kind": each.kind,
                "defect": each.defect,
                "what": each.what,
                "where": None if each.where is None else vars(each.where),
                "alike": each.alike,
                "script": path or each.script,
            }
            for each, path in zip(found, paths, strict=True)
        ]
        by_dtype = {dtype: vars(tally) for dtype, tally in found.by_dtype.items()}
        kernels = {**vars(found.kernels), "by_dtype": by_dtype}
        print_json({"backend": backend, "defects": defects, "kernels": kernels, "findings": listed})
    elif found:
        from collage.report.show_terminal import table

        listed_rows = (_row(*each) for each in zip(found, paths, strict=True))
        titles = ("check", "where", "what", *(["script"] if output is not None else []))
        print_rich(table(titles, (row[: len(titles)] for row in listed_rows), folded={"where": 2, "what": 3}))
    if output is not None and found and not as_json:
        say(f"scripts in {output}")
    if not as_json:
        say(_kernels(found))
        say(f"{defects} defects" if defects != 1 else "1 defect")
    if defects:
        raise click.exceptions.Exit(1)


def named(name: str) -> Backend:
    """The backend that MODULE:CLASS, an entry point or a registered name means. Raises UsageError."""
    from collage.api import default_registry
    from collage.backends.base import Backend

    if ":" not in name:
        registry = default_registry()
        if name in registry.problems:
            raise UsageError(f"the backend {name} cannot be loaded: {registry.problems[name]}")
        return registry[name]
    module, _, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the module's own code, too
        raise UsageError(f"{module} cannot be imported: {raised(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no {attribute!r}. Write MODULE:CLASS.")
        found = getattr(found, part)
    if isinstance(found, type) and issubclass(found, Backend):
        try:
            found = found()
        except Exception as error:  # the backend's own code
            raise UsageError(f"{name} cannot be made without arguments: {raised(error)}") from error
    if not isinstance(found, Backend):
        raise UsageError(f"{name} is {found!r}, which is no class derived from collage.Backend.")
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """Shows lines on a terminal's stderr, each in the place of the one before."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda text: click.echo(f"\r\x1b[K{text[:100]}", err=True, nl=False)
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def _written(folder: Path, found: list[Finding]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02d}_{each.kind}.py" for number, each in enumerate(found, 1)]
    for path, each in zip(paths, found, strict=True):
        path.write_text(each.script)
    return [str(path) for path in paths]


def _kernels(found: Findings) -> str:
    """A line with the numbers of kernels, and the dtypes for which there was none."""
    parts = [f"{dtype}: {tally.checked}" for dtype, tally in found.by_dtype.items() if tally.checked]
    missing = [dtype for dtype, tally in found.by_dtype.items() if not tally.checked]
    if parts and missing:
        parts.append(f"none: {', '.join(missing)}")
    text = f"{found.kernels.checked} of {found.kernels.claimed} claimed kernels checked"
    return f"{text} ({'; '.join(parts)})" if parts else text


def _row(finding: Finding, path: str) -> tuple[str, str, str, str]:
    more = f" (and {finding.alike} more)" if finding.alike else ""
    note = "" if finding.defect else " (note)"
    return (
        finding.kind + note,
        "" if finding.where is None else str(finding.where),
        finding.what + more,
        Path(path).name,
    )


def _with_checks(text: str) -> str:
    """The help with the table of checks."""
    from collage.testing import CHECKS

    width = max(map(len, CHECKS))
    return text.replace("{checks}", "\n    ".join(f"  {name:{width}}  {what}" for name, what in CHECKS.items()))


check_backend.help = _with_checks(check_backend.help or "")
