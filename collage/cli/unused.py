"""Options that another option makes use of, or makes useless: one that would be ignored is a mistake."""

from __future__ import annotations

import click
from click.core import ParameterSource

from collage.errors import UsageError


def refuse_unused(name: str, needed: str) -> None:
    """Raise UsageError where an option was given, and those that it is for were not.

    ``name`` is the option as it is written, such as ``--metric``, and ``needed`` are those that it is for, in words.
    """
    if _given(name):
        raise UsageError(f"{name} is for {needed}; give that, too, or leave {name} out.")


def refuse_useless(name: str, because: str, why: str) -> None:
    """Raise UsageError where an option was given that another one, ``because``, makes useless; ``why`` says how."""
    if _given(name):
        raise UsageError(f"{name} is of no use with {because}: {why}. Leave one of them out.")


def _given(name: str) -> bool:
    """Whether an option was given on the command line, also where it has its default value."""
    context = click.get_current_context()
    (parameter,) = (each.name for each in context.command.params if name in each.opts)
    return parameter is not None and context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
