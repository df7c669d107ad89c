"""Failures of writing temporary files, told with the folder and the way out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from collage.errors import MeasurementError


@contextmanager
def no_room(what: str) -> Iterator[None]:
    """Raise MeasurementError where the system refuses to write inside the block, since the disk is full for example.

    ``what`` says in the plural what is written to the folder for temporary files.
    """
    try:
        yield
    except OSError as error:
        # Asking for the folder for the first time would write to it.
        folder = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise MeasurementError(
            f"{what} cannot be written to {folder}: {error.strerror or error}. Make room there, or name a roomier "
            "folder with TMPDIR."
        ) from error
