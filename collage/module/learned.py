"""Counting the shapes of a module's calls, so that a later compile places those that are seen often."""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from collage.core.new_file import new_file
from collage.core.typed import parse_object, typed
from collage.errors import CollageError, UsageError

log = logging.getLogger(__name__)

Shape: TypeAlias = tuple[int, ...]
_Key: TypeAlias = tuple[tuple[str, Shape], ...]
"""A set of shapes: the inputs' names, sorted, with theirs."""
_EVERY_S = 10.0
_MOST_SETS = 1000
"""Further sets of shapes are not counted: a file of all lengths that ever came would help nobody."""
_MOST_PLACED, _LEAST_SHARE = 4, 0.05
"""The sets of shapes that are placed, at most, and the least share of the calls that one has to have."""


@dataclass(frozen=True)
class _Set:
    calls: int
    shapes: dict[str, Shape]


class LearnedShapes:
    """Counts calls by the shapes of their inputs in a file, to which several processes may add.

    It is written every ten seconds at most, and when the process ends by itself. A forked child counts its own calls.
    """

    def __init__(self, path: Path) -> None:
        """Raises CollageError for a file that cannot be read, or is something else."""
        self._path = path
        self._turn = threading.Lock()
        self._counts: dict[_Key, int] = {}
        self._written_s = time.monotonic()
        self._process = os.getpid()
        if path.exists():
            _read(path)
        atexit.register(self.write)

    def count(self, shapes: Mapping[str, Shape]) -> None:
        """Count a call with inputs of these shapes."""
        key = tuple(sorted(shapes.items()))
        if self._process != os.getpid():  # the parent writes what it has counted
            self._process, self._turn, self._counts = os.getpid(), threading.Lock(), {}
        with self._turn:
            if key in self._counts or len(self._counts) < _MOST_SETS:
                self._counts[key] = self._counts.get(key, 0) + 1
        if time.monotonic() - self._written_s > _EVERY_S:
            self.write()

    def write(self) -> None:
        """Add what was counted since the last time to the file. A failure is logged."""
        if self._process != os.getpid():
            return
        with self._turn:
            counts, self._counts = self._counts, {}
            self._written_s = time.monotonic()
        if not counts:
            return
        try:
            with _alone(self._path.resolve().parent):
                found = _read(self._path) if self._path.exists() else {}
                for key, count in counts.items():
                    found[key] = found.get(key, 0) + count
                sets = [asdict(_Set(found[key], dict(key))) for key in sorted(found, key=lambda key: -found[key])]
                del sets[_MOST_SETS:]
                with new_file(self._path) as stream:
                    stream.write(json.dumps({"sets": sets}, indent=1).encode())
        except (CollageError, OSError) as error:
            log.warning("the shapes of calls are not kept: %s", error)


def frequent_shapes(path: Path) -> Sequence[dict[str, Shape]]:
    """The sets of shapes that a file of counts has most calls of, the most frequent one first.

    Raises UsageError for a file without any, and CollageError for one that is something else.
    """
    found = _read(path)
    calls = sum(found.values())
    ranked = sorted(found, key=lambda key: -found[key])[:_MOST_PLACED]
    often = [dict(key) for key in ranked if found[key] >= _LEAST_SHARE * calls]
    if not often:
        raise UsageError(f"{path} has no set of shapes that makes up {_LEAST_SHARE:.0%} of the calls.")
    return often


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process writes counts to files of the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[_Key, int]:
    """The counts in a file. Raises CollageError."""
    try:
        found = typed(list[_Set], parse_object(path.read_bytes())["sets"])
    except OSError as error:
        raise CollageError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CollageError(
            f"{path} has no counts of shapes; collage.load(..., learn_shapes=FILE) makes them."
        ) from error
    return {tuple(sorted(each.shapes.items())): each.calls for each in found}
