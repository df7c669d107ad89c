"""Options that several commands share, and the functions that parse them to values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from collage.cli.completion import MODELS, MODULES, complete_files
from collage.errors import UsageError
from collage.frontend.read.hub import is_address

Value = TypeVar("Value")

PATH = click.Path(path_type=Path)
option = partial(click.option, show_default=True)
"""An option, whose help tells a default that is not None."""
flag = partial(click.option, is_flag=True)


class Count(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


class Number(click.FloatRange):
    """A number in a range."""

    name = "number"


class Seconds(click.FloatRange):
    """A number above 0, which NaN is not."""

    name = "number of seconds, such as 60"

    def __init__(self, *, finite: bool = False, zero: bool = False) -> None:
        """Infinity is a number of seconds, too, unless they have to be ``finite``; 0 is one if ``zero``."""
        super().__init__(min=0, min_open=not zero)
        self._finite = finite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number. Raises click.BadParameter."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found) or (self._finite and math.isinf(found)):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return found


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``name:1x3x224x224`` to a name and a tuple; the name may hold colons, and ``name:`` is a scalar."""
    name, _, sizes = text.rpartition(":")
    extents = [each.strip() for each in sizes.replace(",", "x").split("x")] if sizes.strip() else []
    if not name or not all(each.isascii() and each.isdigit() for each in extents):
        raise click.BadParameter(f"{text!r} is no shape; write it as INPUT:1x3x224x224.")
    return name, tuple(map(int, extents))


def parse_names(text: str) -> tuple[str, ...]:
    """Parse ``a,b`` to a tuple of names, each once."""
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not names:
        raise click.BadParameter("give at least one name, several with commas between them.")
    return names


def parse_counts(text: str) -> tuple[int, ...]:
    """Parse ``1,100`` to a tuple of whole numbers above 0, each once."""
    numbers = parse_names(text)
    if not all(each.isascii() and each.isdigit() and int(each) for each in numbers):
        raise click.BadParameter(f"{text!r} are no numbers of rows; write them as 1,100,10000.")
    return tuple(dict.fromkeys(map(int, numbers)))


def parse_file_of(text: str) -> tuple[str, Path]:
    """Parse ``name=file.npy`` to a name and a path; the name may hold equals signs."""
    name, _, path = text.rpartition("=")
    if not name or not path:
        raise click.BadParameter(f"{text!r} names no input; write it as INPUT=file.npy.")
    return name, Path(path)


def parse_input(text: str) -> tuple[str, Path]:
    """Parse ``name=file.npy`` as ``parse_file_of`` does; a file ``.npz`` or a folder is samples, with the name ""."""
    path = Path(text)
    if path.suffix == ".npz" or path.is_dir():
        return "", path
    if "=" not in text and path.suffix != ".npy" and not path.exists():
        raise click.BadParameter(
            f"there is no folder {text}, and it is no file .npz; an input by name is INPUT=file.npy."
        )
    return parse_file_of(text)


def once_each(option: str, pairs: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """The pairs as a mapping. Raises click.UsageError, which names all names that are given twice."""
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise click.UsageError(f"{option} is given more than once for {', '.join(twice)}", click.get_current_context())
    return dict(pairs)


def sets_of(pairs: Sequence[tuple[str, Value]]) -> list[dict[str, Value]]:
    """The pairs as mappings, of which a repeated name begins the next one; there is at least one, perhaps empty."""
    found: list[dict[str, Value]] = [{}]
    for name, value in pairs:
        if name in found[-1]:
            found.append({})
        found[-1][name] = value
    return found


def refuse_unused(name: str, needed: str) -> None:
    """Raise UsageError if the option ``name``, such as ``--metric``, was given without those it is for, ``needed``."""
    if given(name):
        raise UsageError(f"{name} is for {needed}; give that, too, or leave {name} out.")


def refuse_useless(name: str, because: str, why: str) -> None:
    """Raise UsageError if an option was given that another one, ``because``, makes useless; ``why`` says how."""
    if given(name):
        raise UsageError(f"{name} is of no use with {because}: {why}. Leave one of them out.")


def given(name: str) -> bool:
    """Whether an option was given on the command line, also with its default value."""
    context = click.get_current_context()
    (parameter,) = (each.name for each in context.command.params if name in each.opts)
    return parameter is not None and context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


class ModelPath(click.Path):
    """The path of a model, or its address on the Hugging Face Hub, which stays a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the path."""
        return value if is_address(value) else super().convert(value, param, ctx)


MODEL_OR_ADDRESS_ARGUMENT = click.argument(
    "model", metavar="MODEL", type=ModelPath(path_type=Path), shell_complete=complete_files(MODELS)
)
MODEL_ARGUMENT = click.argument("model", metavar="MODEL", type=PATH, shell_complete=complete_files(MODELS))
OUTPUT_OPTION = option("-o", "--output", required=True, metavar="OUT.collage", type=PATH, help="The file to write.")
FILE_ARGUMENT = click.argument("file", metavar="OUT.collage", type=PATH, shell_complete=complete_files(MODULES))
_SHAPES: dict[str, Any] = {"type": parse_shape, "metavar": "NAME:1x3x224x224", "multiple": True}
_FIX = "Fix an input's symbolic dimensions; once for each such input."
SHAPES_OPTION = click.option("--shape", "shapes", **_SHAPES, help=_FIX)
SHAPE_SETS_OPTION = click.option(
    "--shape",
    "shapes",
    **_SHAPES,
    help=f"{_FIX} An input that is named again begins the next set of shapes: the file then has a placement for each "
    "set, and runs others on ONNX Runtime.",
)
LEARNED_OPTION = click.option(
    "--shapes",
    "learned",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Place the shapes of most calls, as collage.load(..., learn_shapes=FILE) has counted them.",
)
BATCH_OPTION = click.option(
    "--batch",
    type=Count(min=1),
    metavar="N",
    help="Fix the first axis of all inputs that leave it open. A model whose operators all map rows to rows needs no "
    "such number: it takes any number of rows.",
)
TRUST_OPTION = click.option(
    "--trust", is_flag=True, help="Load a joblib or pickle file. It is a program, which runs with your rights."
)
THREADS_OPTION = click.option(
    "--threads",
    type=Count(min=1),
    metavar="N",
    help="Threads a run may use. Default: the cores this process can keep busy, by its CPU set and quota.",
)
DB_OPTION = click.option("--db", type=PATH, metavar="PATH", help="Measurement database. Default: in your cache folder.")
SEED_OPTION = click.option(
    "--seed", type=Count(min=0), metavar="N", default=0, show_default=True, help="Seed of the random inputs."
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
QUIET_OPTION = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
