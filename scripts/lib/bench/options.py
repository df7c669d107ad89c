"""Options that several subcommands share, and how they become the values that the studies take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from collage.cli.options import DB_OPTION, THREADS_OPTION

if TYPE_CHECKING:
    from scripts.lib.studies.compiled import Options

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Models:
    """The models that a command was given, and the folder of the workloads' files."""

    models: tuple[str, ...]
    folder: Path
    batch: int = 1

    def find(self, default: tuple[str, ...] = ()) -> list[Path]:
        """The models' paths; ``default`` where none was named. Missing workloads are made. Raises CollageError."""
        from scripts.lib.studies.model_files import find_models

        return find_models(self.models or default, self.folder, self.batch)


def packed(name: str, make: Callable[..., object]) -> Callable[[F], Callable[..., Any]]:
    """Give a command the one value that ``make`` forms from the options of its parameters' names."""

    def decorate(command: F) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(**given: Any) -> Any:
            parts = {each: given.pop(each) for each in inspect.signature(make).parameters if each in given}
            return command(**given, **{name: make(**parts)})

        return call

    return decorate


def takes_models(command: F) -> Callable[..., Any]:
    """Models by name or path, as the parameter ``models``."""
    folder = click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default="models",
        show_default=True,
        metavar="DIR",
        help="Folder of the workloads' files, which are made when they are missing.",
    )
    argument = click.argument("models", nargs=-1, metavar="[MODEL]...")
    return argument(folder(packed("models", Models)(command)))


def takes_options(rounds: int | None, *, db: bool = True) -> Callable[[F], Callable[..., Any]]:
    """Threads, rounds and the database, as the parameter ``options``. None lets the command choose the rounds."""

    def decorate(command: F) -> Callable[..., Any]:
        inner = packed("options", _options)(command)
        return THREADS_OPTION(rounds_option(rounds)(DB_OPTION(inner) if db else inner))

    return decorate


def rounds_option(default: int | None) -> Callable[[F], F]:
    """The option ``--rounds``."""
    return click.option(
        "--rounds",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        metavar="R",
        help="Rounds; in each, every contender has a turn.",
    )


def only_option(what: str) -> Callable[[F], F]:
    """The option ``--only``."""
    return click.option(
        "--only", default="", metavar="TEXT", help=f"Take only {what} whose name contains TEXT."
    )


def _options(
    threads: int | None, rounds: int | None, db: Path | None = None, tune_trials: int = 0
) -> Options:
    from collage.kernel.target import usable_cores
    from scripts.lib.studies.compiled import Options

    return Options(threads or usable_cores(), rounds or 0, None if db is None else str(db), tune_trials)


BUDGET_OPTION = click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds of each compile (default: as many as it takes).",
)
RESULTS_OPTION = click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write each model's result to this file as soon as it is there, as one line of JSON.",
)
TOLERANCE_OPTION = click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-2,
    show_default=True,
    metavar="ERROR",
    help="The largest error of the outputs, as a share of their scale.",
)
