"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from collage.errors import CollageError


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file beside ``path`` that takes its place when the block ends, and vanishes when it fails.

    Raises CollageError when the system refuses.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CollageError(f"cannot write {path}: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise CollageError(f"cannot write {path}: {error.strerror}.") from None
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
