"""The arrays of a run: reading them from files, making up inputs, and describing and saving outputs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from collage.core.new_file import refuse_special
from collage.core.temporary import TemporaryFolder
from collage.errors import CollageError, InputError, unknown_names
from collage.frontend.random_inputs import random_value
from collage.graph.dataflow import Array
from collage.runtime.inputs import listing
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort

_LONGEST = 200
"""The most bytes of a name in that of a file, which has room for 255 on most file systems."""


def read_arrays(files: Mapping[str, Path]) -> dict[str, Array]:
    """Read ``.npy`` files, by input name. Raises InputError, which names the file and what is wrong."""
    return {name: _read(name, path) for name, path in files.items()}


def read_samples(paths: Sequence[Path]) -> list[dict[str, Array]]:
    """Read ``.npz`` files, each of which holds the inputs of a sample by name, and folders of such files, by file name.

    Raises InputError, which names the file and what is wrong.
    """
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not found:
            raise InputError(f"the folder {path} holds no samples: write them with numpy.savez, one file each.")
        files += found
    return [_read_sample(path) for path in files]


def _read_sample(path: Path) -> dict[str, Array]:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("one array")
        with found as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}.") from error
    except Exception as error:  # numpy and the unpackers raise anything for files that are damaged or encrypted
        raise InputError(f"the sample {path} cannot be read; write it with numpy.savez.") from error


def _read(name: str, path: Path) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"input {name}: there is no file {path}.") from error
    except Exception as error:  # numpy raises anything for files that are damaged or something else
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if not text or "pickle" in text or isinstance(error, (SyntaxError, TokenError)):
            text = "it is cut short, damaged, or no .npy file"
        raise InputError(f"input {name}: {path} cannot be read: {text}. Write it with numpy.save.") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"input {name}: {path} holds several arrays (.npz); give an .npy file.")
    return found


def fill_inputs(
    ports: Sequence[Port | ValuePort], given: Mapping[str, Array], rng: np.random.Generator | None
) -> dict[str, Any]:
    """The given arrays, and random values for the inputs that are missing unless ``rng`` is None.

    Raises UsageError for names that are no inputs. Without ``rng``, raises InputError for missing inputs, with flags
    that are ready to paste.
    """
    unknown = set(given) - {port.name for port in ports}
    if unknown:
        raise unknown_names("input", unknown, [port.name for port in ports])
    missing = [port for port in ports if port.name not in given]
    if missing and rng is None:
        files = _file_names(port.name for port in missing)
        flags = " ".join(f"--input {shlex.quote(f'{name}={file}')}" for name, file in files.items())
        raise InputError(f"missing input: {listing(missing)}. Give {flags}, or --random for random values.")
    filled: dict[str, Any] = dict(given)
    for port in missing:
        assert rng is not None
        try:
            filled[port.name] = random_value(port.type, rng)
        except TypeError as error:
            raise InputError(f"input {port.name}: {error}. Call the module from Python.") from error
    return filled


def flat(outputs: Mapping[str, Any]) -> dict[str, Array]:
    """Outputs of any type as arrays by name: the items of a sequence are ``name[0]`` etc., text has numpy's dtype."""
    found: dict[str, Array] = {}
    for name, value in outputs.items():
        if isinstance(value, (list, tuple)):
            found.update(flat({f"{name}[{position}]": each for position, each in enumerate(value)}))
        elif value is not None:  # None is an optional that is not there
            array = np.asarray(value)
            found[name] = array.astype(str) if array.dtype.kind == "O" else array
    return found


def describe_array(name: str, array: Array) -> dict[str, Any]:
    """The name, dtype, shape, and least, greatest and mean value of an array, None where it has no real numbers."""
    found: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    numbers: Any = array
    if array.dtype.kind not in "fiubc":  # bfloat16 and similar dtypes
        try:
            numbers = array.astype(np.float32)
        except (TypeError, ValueError):
            return {**found, "min": None, "max": None, "mean": None}
    if array.size == 0 or array.dtype.kind == "c":
        return {**found, "min": None, "max": None, "mean": None}
    return {
        **found,
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "mean": float(numbers.mean(dtype=np.float64)),
    }


def save_arrays(folder: Path, arrays: Mapping[str, Array]) -> dict[str, Path]:
    """Write each array as a ``.npy`` file, and return the files by name: all of them, or CollageError and none.

    Arrays of dtypes that numpy does not have are written as raw bytes.
    """
    files = {name: folder / file for name, file in _file_names(arrays).items()}
    for path in files.values():
        refuse_special(path)
    path = folder
    try:
        with TemporaryFolder("outputs", folder) as new:
            for name, path in files.items():
                with (new / path.name).open("wb") as stream:
                    np.save(stream, arrays[name], allow_pickle=False)
                    stream.flush()
                    os.fsync(stream.fileno())
            for path in files.values():
                target = path.resolve()
                if target.exists():
                    shutil.copymode(target, new / path.name)
                shutil.move(new / path.name, target)
    except OSError as error:
        raise CollageError(f"cannot write {path}: {error.strerror or error}.") from error
    return files


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """A file for each name, which differ. Long names are shortened, since files have 255 bytes for theirs."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.+-]+", "_", name).strip("._") or "array"
        stem = plain.encode()[:_LONGEST].decode(errors="ignore")
        while f"{stem}.npy" in found.values():  # two names may differ only in what files cannot have
            stem += "_"
        found[name] = f"{stem}.npy"
    return found
