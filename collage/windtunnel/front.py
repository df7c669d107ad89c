"""Operators that stay in front of the network: scikit-learn runs them, and their outputs are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError
from collage.windtunnel.columns import Column, column_of


@dataclass(frozen=True)
class Front:
    """A fitted operator, the raw columns that it takes, and its place in the pipeline."""

    path: str
    operator: Any
    columns: tuple[Column, ...]
    named: bool
    """Whether it was fitted on a frame with names."""
    flat: bool = False
    """Whether it takes one column as [rows]."""
    sparse: bool | None = None
    """Whether its output has to be sparse; None if that makes no difference."""

    def run(self, frames: Sequence[Any]) -> Any:
        """Its output, a dense array or a frame, for the rows and the outputs of the operators before it."""
        given: Any
        if self.flat:
            (only,) = self.columns
            given = column_of(frames[only.source], only)
        elif len({each.source for each in self.columns}) == 1 and not hasattr(frames[self.columns[0].source], "iloc"):
            given = frames[self.columns[0].source][:, [each.index for each in self.columns]]
        else:
            given = _beside({each.name: column_of(frames[each.source], each) for each in self.columns})
            if not self.named:
                given = given.to_numpy()
        try:
            found = self.operator.transform(given)
        except CollageError:
            raise
        except Exception as error:  # operators raise anything for rows that they do not like
            raise InputError(f"{self.path}: {library_text(error)}") from error
        sparse = hasattr(found, "toarray")
        if self.sparse is not None and sparse != self.sparse:
            raise InputError(
                f"{self.path} gives a {'sparse' if sparse else 'dense'} matrix, which XGBoost reads in another way: "
                f"give it an attribute sparse_output={sparse}, and translate the pipeline again."
            )
        return found.toarray() if sparse else found


def _beside(columns: Mapping[str, Any]) -> Any:
    """A frame of columns, of frames or arrays, as they are: their types, and None among texts, stay."""
    index = next((each.index for each in columns.values() if hasattr(each, "iloc")), None)
    parts = {
        name: pd.Series(each.array if hasattr(each, "iloc") else each, index, each.dtype)
        for name, each in columns.items()
    }
    return pd.DataFrame(parts, index)


@dataclass
class Cache:
    """Outputs of operators in front by their fingerprint: in memory, or in a folder if there is one."""

    folder: Path | None = None
    kept: dict[str, list[Any]] = field(default_factory=dict)

    def run(self, fronts: Sequence[Front], frame: Any) -> list[Any]:
        """The rows, and the outputs of the operators."""
        if not fronts:
            return [frame]
        name = fingerprint(fronts, frame)
        file = None if self.folder is None else self.folder / f"{name}.joblib"
        if name in self.kept:
            return [frame, *self.kept[name]]
        if file is not None and file.exists():
            return [frame, *joblib.load(file, mmap_mode="r")]
        found = run_fronts(fronts, frame)
        if file is None:
            self.kept = {name: found[1:]}
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            joblib.dump(found[1:], file)
        return found


def run_fronts(fronts: Sequence[Front], frame: Any) -> list[Any]:
    """The rows, and the outputs of the operators, one after the other."""
    frames = [frame]
    for each in fronts:
        frames.append(each.run(frames))
    return frames


def fingerprint(fronts: Sequence[Front], frame: Any) -> str:
    """A hash of fitted operators and rows."""
    digest = hashlib.sha256()
    for each in fronts:
        digest.update(joblib.hash((each.path, each.operator)).encode())
    if hasattr(frame, "iloc"):
        digest.update(repr(list(frame.columns)).encode())
        digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    else:
        digest.update(joblib.hash(np.asarray(frame)).encode())
    return digest.hexdigest()[:32]
