"""The ONNX files inside packages: installed ones, wheels, folders."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from collage.errors import CollageError

PACKAGES = ("silero-vad", "rapidocr-onnxruntime", "magika")
HINT = (
    f"none of {', '.join(PACKAGES)} is installed. Their wheels will do: "
    f"pip download --no-deps -d wheels {' '.join(PACKAGES)} && scripts/check_real_models wheels"
)


class NoModelsError(CollageError):
    """The search has found no model to check. The message is one line for the user."""


def networks(paths: Sequence[Path], only: Sequence[str]) -> dict[str, bytes]:
    """The models in files, folders and wheels, or in the installed packages; those with ``only`` in their names.

    A name has the package (or folder) and the file name without the suffix. Raises NoModelsError if there is none.
    """
    found = dict(sorted(_given(paths) if paths else _installed()))
    if not found:
        raise NoModelsError(f"no ONNX file in {', '.join(map(str, paths))}" if paths else HINT)
    chosen = {name: data for name, data in found.items() if not only or any(part in name for part in only)}
    if not chosen:
        raise NoModelsError(f"no model is called so; there are {', '.join(found)}")
    return chosen


def _given(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if path.is_dir():
            yield from _given(each for each in path.rglob("*") if each.suffix in (".onnx", ".whl"))
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                for member in wheel.namelist():
                    if member.endswith(".onnx"):
                        yield f"{path.name.partition('-')[0]}/{Path(member).stem}", wheel.read(member)
        else:
            yield f"{path.parent.name}/{path.stem}", path.read_bytes()


def _installed() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        try:
            listed = files(package) or []
        except PackageNotFoundError:
            continue
        for each in listed:
            if each.suffix == ".onnx":
                yield f"{package.replace('-', '_')}/{each.stem}", each.read_binary()
