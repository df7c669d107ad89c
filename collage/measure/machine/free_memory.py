"""How much memory there was for a kernel that found too little, so that it is tried again with more.

On a GPU it is what was left before. On the host it is what the worker could have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from collage.backends.base import Backend
from collage.core.cuda_driver import free_memory
from collage.core.memory import memory_for_worker, memory_limit
from collage.graph.storage import CUDA
from collage.measure.machine.gpu_now import gpu_now
from collage.measure_db.results import Rejection, RejectionKind

Result = TypeVar("Result")


def with_free_memory(backend: Backend, work: Callable[[], Result]) -> Result | Rejection:
    """The result of the work, with the memory that there was before it where the backend has found too little."""
    free_bytes = free_memory() if backend.device == CUDA else memory_limit()
    found = work()
    if isinstance(found, Rejection) and found.kind is RejectionKind.MEMORY:
        return replace(found, free_bytes=free_bytes)
    return found


def after_death(backend: Backend, outcome: Result, limit: int | None = None) -> Result | Rejection:
    """The same for what has ended the worker: in the parent, with what is free now, or the worker's ``limit``."""
    if not isinstance(outcome, Rejection) or outcome.free_bytes is not None:
        return outcome
    if outcome.kind is not RejectionKind.MEMORY:
        return outcome
    on_gpu = backend.device == CUDA
    return replace(outcome, free_bytes=gpu_now().free_bytes if on_gpu else memory_for_worker(limit))
