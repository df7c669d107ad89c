"""Checks of files before the work begins, so that a result that cannot be written is not computed for minutes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from collage.core.new_file import refuse_special
from collage.errors import CollageError, UsageError

_INPUTS = frozenset((".onnx", ".collage", ".joblib", ".pkl", ".parquet", ".py"))


def check_writable(path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise CollageError when a file cannot be made or replaced at that path, and UsageError for a stream.

    A model or another input, by its suffix, is not replaced by a result that has other ``suffixes``: UsageError.
    """
    if path.is_dir():
        raise CollageError(f"cannot write {path}: it is a directory. Give the name of a file.")
    if str(path) == "-":
        raise UsageError("results are written to a file, not to a stream: give the name of a file, not -.")
    refuse_special(path)
    check_folder(path.resolve().parent, path)
    if path.exists() and not os.access(path, os.W_OK):
        raise CollageError(f"cannot write {path}: it is write-protected.")
    suffix = path.suffix.lower()
    if path.exists() and suffix in _INPUTS - {*suffixes}:
        better = path.with_suffix(next(iter(suffixes), ".out"))
        raise UsageError(
            f"{path} exists, and is a file of another kind by its name: give another one, such as {better}."
        )


def check_folder(folder: Path, wanted: Path) -> None:
    """Raise CollageError when no file can be made in the folder. The error names the path ``wanted``."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileNotFoundError as error:
        if folder.is_dir():  # such as /proc
            raise CollageError(f"cannot write {wanted}: no file can be made in {folder}.") from error
        raise CollageError(f"cannot write {wanted}: there is no folder {folder}. Make it first.") from error
    except OSError as error:
        raise CollageError(f"cannot write {wanted}: {error.strerror}.") from error


def make_folder(folder: Path) -> None:
    """Make the folder unless it exists, and check that files can be made in it. Raises CollageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CollageError(f"cannot make the folder {folder}: {error.strerror}.") from error
    check_folder(folder, folder)


def refuse_same(read: Path, written: Path, option: str, suffix: str) -> None:
    """Raise UsageError when the file that an option names, or leads to, would replace one that the command reads.

    ``suffix`` is the one that such files have, for a better name in the error.
    """
    try:
        same = written.exists() and written.samefile(read)
    except OSError:
        same = False
    if same:
        raise UsageError(f"{option} would replace {read} itself; give another name, such as {read.stem}{suffix}.")
