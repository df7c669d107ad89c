"""Model files of the tree libraries: which kind a file is, by its content, and the ONNX model of one."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, Literal

import onnx

from collage.core.library_text import library_text
from collage.errors import ModelError, UsageError
from collage.frontend.trees.booster import as_model
from collage.frontend.trees.catboost_binary import MAGIC, read_binary
from collage.frontend.trees.catboost_json import CatBoostModel, read_catboost
from collage.frontend.trees.json_text import read_json
from collage.frontend.trees.lightgbm_text import read_lightgbm
from collage.frontend.trees.ubjson import read_ubjson
from collage.frontend.trees.xgboost_json import read_xgboost

FileKind = Literal[
    "LightGBM text", "XGBoost JSON", "XGBoost UBJSON", "CatBoost binary", "CatBoost JSON", "joblib or pickle"
]

KINDS: tuple[FileKind, ...] = (
    "LightGBM text",
    "XGBoost JSON",
    "XGBoost UBJSON",
    "CatBoost binary",
    "CatBoost JSON",
    "joblib or pickle",
)
"""The kinds that are recognised, for messages."""

_START = 1 << 16
"""As much of a compressed file is unpacked at most to see what it is."""


def recognise(source: str | Path | bytes) -> FileKind | None:
    """The kind of a model file, or of its bytes, by its content; None for what is none of ``KINDS``.

    Raises ModelError for a file that cannot be read.
    """
    data = source if isinstance(source, bytes) else _bytes(Path(source))
    if data.startswith(MAGIC):
        return "CatBoost binary"
    if data.startswith((b"tree\n", b"tree\r\n")):
        return "LightGBM text"
    if _is_pickle(data) or _is_pickle(_unpacked(data)):
        return "joblib or pickle"
    if data[:1] == b"{" and data[1:2] in b"iUIlL$#" and b"learner" in data[:64]:
        return "XGBoost UBJSON"
    if data.lstrip()[:1] == b"{":
        if b'"learner"' in data and b'"gradient_booster"' in data:
            return "XGBoost JSON"
        if b'"features_info"' in data and (b'"oblivious_trees"' in data or b'"trees"' in data):
            return "CatBoost JSON"
    return None


def _is_pickle(data: bytes) -> bool:
    """Whether it starts like a pickle of protocol 2 or later."""
    return len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5


def _unpacked(data: bytes) -> bytes:
    """The first bytes of what the data hold compressed, as joblib does; nothing for other data."""
    try:
        if data[:1] == b"\x78":
            return zlib.decompressobj().decompress(data[:_START], 16)
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data[:_START], 16)
        if data[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(data, 16)
        if data[:6] == b"\xfd7zXZ\x00" or data[:3] == b"\x5d\x00\x00":
            return lzma.LZMADecompressor().decompress(data, 16)
    except (zlib.error, OSError, EOFError, lzma.LZMAError, ValueError):
        pass
    return b""


def read_model_file(path: str | Path, trust: bool = False) -> onnx.ModelProto:
    """The ONNX model of a tree library's model file.

    joblib and pickle files are programs, which only run with ``trust``. Raises ModelError for a file that is damaged,
    that needs a library which is not installed, or that has something that Collage does not take, and UsageError for
    a program without ``trust``.
    """
    path = Path(path)
    data, what = _bytes(path), path.name
    kind = recognise(data)
    if kind == "LightGBM text":
        return as_model(read_lightgbm(data, what))
    if kind == "XGBoost JSON":
        return as_model(read_xgboost(read_json(data, what), what))
    if kind == "XGBoost UBJSON":
        return as_model(read_xgboost(read_ubjson(data, what), what))
    if kind == "CatBoost JSON":
        return _of_catboost(read_catboost(read_json(data, what), what))
    if kind == "CatBoost binary":
        return _of_catboost(read_binary(data, what))
    if kind == "joblib or pickle":
        return _of_program(path, data, trust)
    raise ModelError(f"{what} is no model file that Collage knows. It takes ONNX, and {', '.join(KINDS)}.")


def _of_catboost(model: CatBoostModel) -> onnx.ModelProto:
    """The ONNX model, which predicts what CatBoostClassifier does, or CatBoostRegressor."""
    if model.is_classifier:
        return as_model(model.booster, "classifier", model.labels or None)
    return as_model(model.booster, "regressor")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}.") from error


def _of_program(path: Path, data: bytes, trust: bool) -> onnx.ModelProto:
    from collage.frontend.trees.objects import from_object

    found = _object(path, data, trust)
    model = from_object(found)
    if model is None:
        raise ModelError(
            f"{path.name} holds a {type(found).__module__}.{type(found).__qualname__}, and Collage takes models of "
            "LightGBM, XGBoost, CatBoost and scikit-learn."
        )
    return model


def read_object(path: str | Path, trust: bool = False) -> Any:
    """The object of a joblib or pickle file, a program, which only runs with ``trust``. Raises as above."""
    path = Path(path)
    data = _bytes(path)
    if recognise(data) != "joblib or pickle":
        raise ModelError(f"{path.name} is no joblib or pickle file.")
    return _object(path, data, trust)


def _object(path: Path, data: bytes, trust: bool) -> Any:
    if not trust:
        raise UsageError(
            f"{path.name} is a joblib or pickle file. Such files are programs, which can do anything on this machine: "
            "--trust runs it."
        )
    try:
        import joblib
    except ImportError as error:
        raise ModelError(f"{path.name} needs joblib to read: pip install 'collage-compiler[trees]'.") from error
    try:
        return joblib.load(io.BytesIO(data))
    except Exception as error:  # it runs the file, which raises anything
        raise ModelError(f"{path.name} cannot be loaded: {library_text(error)}") from error
