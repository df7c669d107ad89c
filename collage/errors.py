"""Errors that reach the user. Their messages are one line, which says what is wrong and how to mend it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable


class CollageError(Exception):
    """The work failed. The command line prints the message and exits with status 1."""

    exit_code = 1


class UsageError(CollageError):
    """The caller has asked for something impossible: a wrong name, shape or option. The exit status is 2."""

    exit_code = 2


class ModelError(CollageError):
    """The ONNX model cannot be read, is not valid, or needs something that no backend can run."""


class InputError(UsageError, ValueError):
    """An input of a run has the wrong name, shape or dtype."""


class ModuleFileError(CollageError):
    """A ``.collage`` file is damaged, or was made for another machine or set of libraries."""


class DatabaseError(CollageError):
    """The measurement database cannot be opened, read or written."""


class DatabaseLockedError(DatabaseError):
    """Another process has held the measurement database for too long."""


class RegistrationError(UsageError, ValueError):
    """A backend or pattern cannot be registered, because its name is taken or it is malformed."""


class MeasurementError(CollageError):
    """The measuring of a model failed as a whole. The message says at which stage."""


class ClusterError(CollageError):
    """A cluster cannot be reached, or none of its nodes can measure for this machine."""


class NoPlacementError(CollageError):
    """The model has no placement: an operator has no measured candidate, or no plan has the right outputs.

    ``nodes`` are the nodes of the graph that no placement gets past, as far as they are known.
    """

    def __init__(self, message: str, nodes: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.nodes = nodes


def unknown_names(what: str, unknown: Iterable[str], valid: Iterable[str]) -> UsageError:
    """An error that lists all ``unknown`` names at once, and the ``valid`` ones; ``what`` says what they are."""
    bad = ", ".join(sorted(set(unknown)))
    good = ", ".join(sorted(set(valid))) or "(none)"
    return UsageError(f"unknown {what}: {bad}. Valid: {good}.")


def refuse_fixed(given: Iterable[str], fixed: Collection[str]) -> None:
    """Raise InputError for given inputs that are overridable initializers, which a compile fixes."""
    if found := sorted({*given} & {*fixed}):
        raise InputError(
            f"{', '.join(found)}: an overridable initializer of the model, which Collage fixes to the value in the "
            "file. Leave it out, or export the model with an input instead."
        )


def to_paste(*words: object) -> str:
    """A command of Collage's for a message, ready to be pasted into a shell."""
    return f"`{shlex.join(('collage', *map(str, words)))}`"
