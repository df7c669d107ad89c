"""Arrays from what a caller gives: arrays of numpy and of other libraries, numbers and texts, and nested lists of them.

Arrays have to be of the type that is wanted. Numbers and lists have no type of their own, and are converted.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np

from collage.graph.dataflow import Array
from collage.graph.torch_tensors import array_over, is_tensor


class MismatchError(Exception):
    """A value is not of the type. The message says what it is instead, and continues a sentence about the value."""


def given_array(value: Any, wanted: np.dtype[Any]) -> Array:
    """The value as an array: of the dtype ``wanted``, unless it is an array of another dtype.

    Raises MismatchError for what is no array, and for numbers that the dtype does not hold. Numbers may be rounded to
    a floating-point type, and to no other.
    """
    found, typed = _array(value)
    if found.dtype.type is np.void and wanted.isbuiltin == 2 and found.dtype.itemsize == wanted.itemsize:
        return found.view(wanted)  # files of numpy hold bfloat16 and similar types as raw bytes
    return found if typed or found.dtype == wanted else _converted(found, wanted)


def shape_of(value: Any) -> tuple[int, ...]:
    """The extents of the value as an array. Raises MismatchError for what is none."""
    return _array(value)[0].shape


def cast_hint(value: Any, dtype: str) -> str:
    """The call that converts an array, or a tensor of PyTorch, to the dtype of that name."""
    return f".to(torch.{dtype})" if is_tensor(value) else f".astype({dtype!r})"


def given_texts(value: Any) -> Array:
    """The value as an array of Python strings (dtype object), itself if it is one already.

    Bytes are read as UTF-8. Raises MismatchError.
    """
    found, typed = _array(value)
    if found.dtype.kind not in "OUS" and (typed or found.size):  # a list without elements may be one of texts
        raise MismatchError(f"has dtype {found.dtype}, the model takes strings")
    texts: Array = found if found.dtype.kind == "O" else found.astype(object)
    for place, each in np.ndenumerate(texts):
        if isinstance(each, bytes):
            if texts is value:
                texts = texts.copy()
            try:
                texts[place] = each.decode()
            except UnicodeDecodeError as error:
                raise MismatchError(f"has bytes that are no UTF-8: {error}") from error
        elif not isinstance(each, str):
            kind = type(each).__name__
            hint = '; write "" for a missing one' if kind in ("NoneType", "float", "NAType") else ""
            raise MismatchError(f"has an element that is a {kind}, the model takes strings{hint}")
    return texts


def _array(value: Any) -> tuple[Array, bool]:
    """The value as an array, and whether it came with a dtype of its own."""
    if isinstance(value, np.ndarray):
        return value, True
    if is_tensor(value):
        try:
            return array_over(value), True
        except Exception as error:  # subclasses of tensors raise anything
            raise MismatchError(str(error) if type(error) is TypeError else f"is no array: {error}") from error
    typed = hasattr(value, "__dlpack__")
    try:
        return np.from_dlpack(value) if typed else np.asarray(value), typed
    except Exception as error:  # objects of other libraries raise anything
        raise MismatchError(f"is no array: {error}") from error


def _converted(array: Array, wanted: np.dtype[Any]) -> Array:
    kind = array.dtype.kind
    are_numbers = all(isinstance(each, Number) for each in array.flat) if kind == "O" else kind in "biufcV"
    if not are_numbers or (kind == "c" and wanted.kind != "c"):
        raise MismatchError(f"has elements that are no numbers of type {wanted}")
    try:
        with np.errstate(over="raise", invalid="raise"):
            found: Array = array.astype(wanted)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise MismatchError(f"has numbers that {wanted} does not hold: {error}") from error
    if wanted.kind == "b" or "int" in wanted.name:
        # Numpy does not compare integers of 4 bits with those of 64.
        exact = found.astype(np.int64) if wanted.kind == "V" else found
        if not np.array_equal(exact, array):
            raise MismatchError(f"has numbers that {wanted} does not hold")
    return found
