"""Errors that reach the user: one line that says what is wrong and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable


class CollageError(Exception):
    """The work failed. The command line prints the message and exits with 1."""

    exit_code = 1


class UsageError(CollageError):
    """What the caller asked for makes no sense: wrong name, shape or option. Exit code 2."""

    exit_code = 2


class ModelError(CollageError):
    """The ONNX model cannot be read, is not valid, or uses something nobody here can run."""


class InputError(UsageError, ValueError):
    """An input of a run has the wrong name, shape or dtype."""


class ModuleFileError(CollageError):
    """A ``.collage`` file is damaged, or was made for another machine or set of libraries."""


class DatabaseError(CollageError):
    """The measurement database cannot be opened, read or written."""


class RegistrationError(UsageError, ValueError):
    """A backend or pattern cannot be registered: its name is taken or it is malformed."""


class MeasurementError(CollageError):
    """A candidate could not be measured; carries the stage at which it failed."""


class NoPlacementError(CollageError):
    """Some operator is covered by no candidate that survived measuring."""


def unknown_names(what: str, unknown: Iterable[str], valid: Iterable[str]) -> UsageError:
    """One error for all unknown names at once, with the valid ones (STYLE rule 10)."""
    bad = ", ".join(sorted(set(unknown)))
    good = ", ".join(sorted(set(valid))) or "(none)"
    return UsageError(f"unknown {what}: {bad}. Valid: {good}.")
