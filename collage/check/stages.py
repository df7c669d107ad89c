"""The stages of making a kernel, and the rejection that an exception in one of them means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collage.backends.base import UnsupportedError
from collage.core.library_text import library_text
from collage.frontend.export.to_onnx import ExportError
from collage.measure_db.results import Rejection, RejectionKind

_MESSAGE_CHARS = 500
_OUT_OF_MEMORY = (
    *("bad_alloc", "bad allocation", "out of memory", "Failed to allocate memory"),
    *(
        "OUT_OF_MEMORY",
        "OutOfMemory",
        "ALLOC_FAILED",
        "ALLOCATION_FAILED",
    ),  # of CUDA, TensorRT, cuBLAS and cuDNN
)


class RejectedError(Exception):
    """A candidate cannot be used; ``rejection`` says why."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn whatever is raised into RejectedError with the stage's name: tune, codegen, load, bind or run."""
    try:
        yield
    except RejectedError:
        raise
    except BaseException as error:  # a backend raises anything, also SystemExit; the worker ignores SIGINT
        raise RejectedError(rejection_of(name, error)) from error


def made_artifact(make: Callable[[], object]) -> bytes:
    """The artifact that a call of a backend makes. Raises RejectedError, also if it gives anything but bytes."""
    with stage("codegen"):
        made = make()
        if not isinstance(made, (bytes, bytearray, memoryview)):
            raise TypeError(f"an artifact is bytes, and no {type(made).__name__}")
        return bytes(made)


def rejection_of(name: str, error: BaseException) -> Rejection:
    """The rejection that an exception in the stage of that name means."""
    text = library_text(error, _MESSAGE_CHARS)
    if isinstance(error, (UnsupportedError, ExportError)):
        return Rejection(RejectionKind.UNSUPPORTED, text or type(error).__name__)
    message = f"{name}: {type(error).__name__}" + (f": {text}" if text else "")
    out_of_memory = isinstance(error, MemoryError) or looks_like_memory(text)
    return Rejection(RejectionKind.MEMORY if out_of_memory else RejectionKind.FAILED, message)


def looks_like_memory(text: str) -> bool:
    """Whether a library's message says that an allocation failed."""
    return any(each in text for each in _OUT_OF_MEMORY)
