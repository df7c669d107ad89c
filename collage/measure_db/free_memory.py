"""How much memory a GPU had left before a kernel that found too little there, so that it is tried again with more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from collage.backends.base import Backend
from collage.core.cuda_driver import free_memory
from collage.graph.storage import CUDA
from collage.measure_db.gpu_now import gpu_now
from collage.measure_db.results import Rejection, RejectionKind

__all__ = ["after_death", "with_free_memory"]

Result = TypeVar("Result")


def with_free_memory(backend: Backend, work: Callable[[], Result]) -> Result | Rejection:
    """The result of the work, with the GPU's free memory before it where a backend for GPUs has found too little."""
    free_bytes = free_memory() if backend.device == CUDA else None
    found = work()
    if isinstance(found, Rejection) and found.kind is RejectionKind.MEMORY:
        return replace(found, free_bytes=free_bytes)
    return found


def after_death(backend: Backend, outcome: Result) -> Result | Rejection:
    """The same for what has ended the worker: in the parent, with what is free now."""
    if not isinstance(outcome, Rejection) or backend.device != CUDA or outcome.free_bytes is not None:
        return outcome
    if outcome.kind is not RejectionKind.MEMORY:
        return outcome
    return replace(outcome, free_bytes=gpu_now().free_bytes)
