"""Rows for a network: frames, arrays, and parquet files that do not fit into memory, as batches of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from collage.core.library_text import library_text
from collage.errors import InputError, UsageError
from collage.windtunnel.columns import Column, read_columns
from collage.windtunnel.front import Cache, Front, run_fronts
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.part import Tensor

CHUNK = 1 << 17
"""Rows that are read at a time if not all of them fit."""


@dataclass(frozen=True)
class Rows:
    """Rows as a network takes them: numbers in float64, codes in int32, what to predict, and weights in the loss."""

    numbers: Tensor
    codes: Tensor
    y: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, chosen: Tensor) -> Rows:
        return Rows(*(each[chosen] for each in _tensors(self)))


Part: TypeAlias = Callable[[], Rows]
"""It reads some of the rows."""


@dataclass(frozen=True)
class Reader:
    """How frames become tensors."""

    columns: tuple[Column, ...]
    fronts: tuple[Front, ...]
    n_features: int
    cache: Cache
    unstored: bool = False
    """Whether numbers that sparse rows do not store are missing ones."""
    by_name: bool = False
    """Whether rows have to be a frame."""

    def frame(self, rows: Any) -> Any:
        """A frame of pandas, or an array [rows, columns]. Raises InputError for anything else."""
        if not self.unstored or not hasattr(rows, "tocsr"):
            return as_frame(rows)
        if self.fronts:
            names = ", ".join(each.path for each in self.fronts)
            raise InputError(f"XGBoost takes zeros of sparse rows for missing, and {names} may not: give dense rows.")
        stored = rows.tocsr().copy()
        stored.data = np.ones(len(stored.data), np.bool_)
        return np.where(stored.toarray(), rows.toarray(), np.nan)

    def inputs(self, frame: Any, *, keep: bool = False) -> tuple[Tensor, Tensor]:
        """Numbers and codes of the rows of a frame. ``keep`` puts the outputs of operators in front into the cache."""
        frame = self.frame(frame)
        if self.by_name and not hasattr(frame, "iloc"):
            raise InputError("the pipeline takes columns by their names: give a frame of pandas, and no array.")
        if not hasattr(frame, "iloc") and frame.shape[1] != self.n_features:
            raise InputError(f"the rows have {frame.shape[1]} columns, and the pipeline takes {self.n_features}.")
        frames = self.cache.run(self.fronts, frame) if keep else run_fronts(self.fronts, frame)
        numbers, codes = read_columns(frames, self.columns)
        return torch.from_numpy(numbers), torch.from_numpy(codes.astype(np.int32))


def as_frame(rows: Any) -> Any:
    """A frame of pandas, or an array [rows, columns]. Raises InputError for anything else."""
    if hasattr(rows, "iloc"):
        if rows.ndim == 2:
            return rows
        raise InputError("rows are a frame or [rows, columns], and this is a Series.")
    if hasattr(rows, "to_pandas"):
        return rows.to_pandas()
    try:
        found = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
    except ValueError as error:  # of lists of other lengths
        raise InputError(f"rows are a frame or [rows, columns]: {library_text(error)}") from error
    if found.ndim != 2:
        kind = type(rows).__name__
        raise InputError(f"rows are a frame or [rows, columns], and this {kind} has the shape {list(found.shape)}.")
    return found


def targets_of(y: Any, head: Head, what: str) -> Tensor:
    """The targets: the number of the class of each row, int64, or numbers. Raises InputError for other classes."""
    values = np.asarray(y)
    if values.ndim > 1 and head.kind == "classifier" and values.size != len(values):
        raise InputError(f"{what} has {values.shape[1]} columns to predict, and the pipeline predicts one.")
    if (values.dtype.kind == "O" or head.kind == "classifier") and (absent := int(pd.isna(values.ravel()).sum())):
        raise InputError(f"{what} has {absent} rows without a value to predict: leave them out.")
    if head.kind != "classifier":
        try:
            numbers = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} has to hold numbers: {library_text(error)}") from error
        if not np.isfinite(numbers).all():
            raise InputError(f"{what} has NaN or an infinite number among the values to predict.")
        if head.link == "exp" and numbers.min(initial=0) < 0:
            raise InputError(f"{what} has a negative value to predict, and the pipeline predicts counts.")
        return torch.from_numpy(numbers)
    classes = {each: number for number, each in enumerate(head.classes)}
    found, inverse = np.unique(values.ravel(), return_inverse=True)
    if unknown := [each for each in found.tolist() if each not in classes]:
        text = f"{what} has the class {_quoted(unknown[0])}, and the pipeline knows {', '.join(map(_quoted, classes))}"
        if isinstance(unknown[0], float) and (len(found) > 2 * len(classes) or unknown[0] % 1):
            text += ": it looks like numbers to regress, and the pipeline is a classifier"
        raise InputError(f"{text}.")
    return torch.from_numpy(np.array([classes[each] for each in found.tolist()], np.int64)[inverse])


def _quoted(label: Any) -> str:
    return repr(label) if isinstance(label, str) else str(label)


def check_classes(y: Tensor, head: Head, what: str) -> None:
    """Raise InputError if rows to learn from, or to validate on, lack a class."""
    if head.kind != "classifier":
        return
    found = set(torch.unique(y).tolist())
    if missing := [_quoted(each) for number, each in enumerate(head.classes) if number not in found]:
        raise InputError(f"{what} has no row of class {', '.join(missing)}.")


_Read: TypeAlias = "Callable[[], tuple[Any, Any, NDArray[np.float64]]]"
"""It gives a frame of some rows, their targets, and their weights, whose mean over all rows is 1."""


@dataclass(frozen=True)
class Table:
    """Rows in memory, or parquet files of them with the names of the columns to predict and of weights."""

    rows: Any
    y: Any
    what: str
    weight: Any = None

    @property
    def is_parquet(self) -> bool:
        return isinstance(self.rows, (str, Path)) or (
            isinstance(self.rows, (list, tuple)) and bool(self.rows) and isinstance(self.rows[0], (str, Path))
        )

    def readers(self, as_frame: Callable[[Any], Any]) -> tuple[list[_Read], int]:
        """A reader for each part of the rows, and the number of rows."""
        if self.is_parquet:
            return self._parquet()
        frame = as_frame(self.rows)
        if self.y is None or isinstance(self.y, str):
            raise InputError(
                f"{self.what}: give the values to predict, one for each row; the name of a column is for parquet files."
            )
        y = np.asarray(self.y)
        if len(y) != len(frame):
            raise InputError(f"{self.what} has {len(frame)} rows, and {len(y)} values to predict.")
        if not len(frame):
            raise InputError(f"{self.what} has no rows.")
        weight = self._weights(np.ones(len(y)) if self.weight is None else self.weight)
        if len(weight) != len(y):
            raise InputError(f"{self.what} has {len(y)} rows, and {len(weight)} weights.")
        weight = weight / self._mean(float(weight.sum()), len(weight))

        def part(start: int) -> _Read:
            some = slice(start, start + CHUNK)
            return lambda: (frame.iloc[some] if hasattr(frame, "iloc") else frame[some], y[some], weight[some])

        return [part(start) for start in range(0, len(frame), CHUNK)], len(frame)

    def _weights(self, given: Any) -> NDArray[np.float64]:
        try:
            found = np.asarray(given, np.float64).ravel()
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.what}: sample_weight has to hold numbers: {library_text(error)}") from error
        if not np.isfinite(found).all() or found.min(initial=0) < 0:
            raise InputError(f"{self.what}: sample_weight has finite numbers from 0 on.")
        return found

    def _mean(self, total: float, rows: int) -> float:
        if not total:
            raise InputError(f"{self.what}: all of sample_weight is 0.")
        return total / rows

    def _parquet(self) -> tuple[list[_Read], int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = [self.rows] if isinstance(self.rows, (str, Path)) else list(self.rows)
        if not isinstance(self.y, str):
            raise UsageError(f"{self.what} is in parquet files: name the column to predict.")
        if not isinstance(self.weight, (str, type(None))):
            raise UsageError(f"{self.what} is in parquet files: sample_weight is the name of a column there.")
        found, rows, total = [], 0, 0.0
        for path in paths:
            try:
                file = pq.ParquetFile(path)
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"cannot read {path}: {library_text(error)}") from error
            for name in (self.y, self.weight):
                if name is not None and name not in file.schema_arrow.names:
                    raise InputError(f"{path} has no column {name}.")
            if self.weight is not None:
                total += float(self._weights(file.read(columns=[self.weight]).column(0).to_numpy()).sum())
            groups: list[int] = []
            for group in range(file.num_row_groups):
                groups.append(group)
                rows += file.metadata.row_group(group).num_rows
                many = sum(file.metadata.row_group(each).num_rows for each in groups)
                if many >= CHUNK or group == file.num_row_groups - 1:
                    found.append((path, groups))
                    groups = []
        if not rows:
            raise InputError(f"{self.what} has no rows.")
        mean = 1.0 if self.weight is None else self._mean(total, rows)
        return [self._groups(*each, mean) for each in found], rows

    def _groups(self, path: str | Path, groups: Sequence[int], mean: float) -> _Read:
        import pyarrow.parquet as pq

        def read() -> tuple[Any, Any, NDArray[np.float64]]:
            frame = pq.ParquetFile(path).read_row_groups(groups).to_pandas()
            y, weight = frame.pop(self.y).to_numpy(), np.ones(len(frame))
            if self.weight is not None:
                weight = self._weights(frame.pop(self.weight)) / mean
            return frame, y, weight

        return read


class Source:
    """The rows of a table as tensors, part by part. Parts are kept if all of them fit into ``memory`` bytes."""

    def __init__(self, table: Table, reader: Reader, head: Head, memory: int) -> None:
        self._readers, self.rows = table.readers(reader.frame)
        self._reader, self._head, self._what = reader, head, table.what
        self.fits = self.rows * (len(reader.columns) + 2) * 8 <= memory
        self._keep_fronts = self.fits and not table.is_parquet
        self._kept: dict[int, Rows] = {}
        self._masks: dict[int, NDArray[np.bool_]] | None = None
        self._share, self._seed, self._held_out = 0.0, 0, False

    @property
    def parts(self) -> list[Part]:
        return [lambda at=at: self._part(at) for at in range(len(self._readers))]  # type: ignore[misc]

    def frame(self) -> Any:
        """The first rows as they are given."""
        return self._readers[0]()[0]

    def hold_out(self, share: float, seed: int) -> Source:
        """Keep a share of the rows, drawn at random, for the source that is given back."""
        other = Source.__new__(Source)
        other.__dict__ |= self.__dict__ | {"_kept": {}, "_held_out": True, "_share": share, "_seed": seed}
        other._what = "the part held out for validation"
        self._share, self._seed, self._kept = share, seed, {}
        return other

    def _part(self, at: int) -> Rows:
        if at in self._kept:
            return self._kept[at]
        frame, y, weight = self._readers[at]()
        if self._share:
            drawn = np.random.default_rng((self._seed, at)).random(len(y)) < self._share
            chosen = np.flatnonzero(drawn == self._held_out)
            frame = frame.iloc[chosen] if hasattr(frame, "iloc") else frame[chosen]
            y, weight = y[chosen], weight[chosen]
        numbers, codes = self._reader.inputs(frame, keep=self._keep_fronts)
        found = Rows(numbers, codes, targets_of(y, self._head, self._what), torch.from_numpy(weight))
        if self.fits:
            self._kept[at] = found
        return found


def batches(parts: Sequence[Part], batch: int, rng: np.random.Generator | None) -> Iterator[Rows]:
    """Batches of all rows: in order without ``rng``; else parts by chance, and rows by chance within them."""
    left: Rows | None = None
    order = np.arange(len(parts)) if rng is None else rng.permutation(len(parts))
    for at in order.tolist():
        rows = parts[at]()
        if left is not None:
            rows = Rows(*(torch.cat(each) for each in zip(*(_tensors(some) for some in (left, rows)), strict=True)))
        chosen = torch.arange(len(rows)) if rng is None else torch.from_numpy(rng.permutation(len(rows)))
        full = len(rows) - len(rows) % batch
        for start in range(0, full, batch):
            yield rows.take(chosen[start : start + batch])
        left = rows.take(chosen[full:]) if full < len(rows) else None
    if left is not None:
        yield left


def _tensors(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return rows.numbers, rows.codes, rows.y, rows.weight


def sample(parts: Sequence[Part], most: int, seed: int) -> Rows:
    """Some rows by chance, evenly over the parts."""
    rng = np.random.default_rng(seed)
    each = max(1, most // len(parts))
    found = []
    for part in parts:
        rows = part()
        found.append(rows.take(torch.from_numpy(np.sort(rng.permutation(len(rows))[:each]))))
    return Rows(*(torch.cat(some) for some in zip(*map(_tensors, found), strict=True)))
