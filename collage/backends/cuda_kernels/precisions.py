"""The precisions that libraries for GPUs have, and what values of them are stored as."""

from __future__ import annotations

from collage.graph.storage import BF16, FP16

__all__ = ["dtype_of", "is_stored_narrow", "precision_of"]

_NARROW = {BF16: "bfloat16", FP16: "float16"}


def is_stored_narrow(precision: str) -> bool:
    """Whether values of that precision are stored in fewer bits."""
    return precision in _NARROW


def dtype_of(precision: str) -> str:
    """What values of that precision are stored as."""
    return _NARROW.get(precision, "float32")


def precision_of(dtype: str) -> str:
    """The precision of kernels whose values have that dtype in the model itself: "" for float32.

    Sums are float32 there, too. Raises KeyError for what libraries do not take.
    """
    return {dtype_of(each): each for each in ("", *_NARROW)}[dtype]
