"""What a backend loads: a kernel that is bound to buffers, or a session that runs a whole model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from collage.graph.dataflow import Array

Call: TypeAlias = Callable[[], None]
"""A kernel bound to its buffers. The call runs it in the calling thread, and returns when it is done."""


class Kernel(ABC):
    """A loaded kernel, ready to be bound to buffers. It may be bound several times, and its calls may be concurrent."""

    own_threads: bool = False
    """Whether it has threads of its own. A forked process lacks them, so the kernel is refused there."""

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call that reads ``inputs`` and fills ``outputs``.

        The arrays are C-contiguous, start at 64-byte boundaries, have the types of the subgraph's inputs and
        outputs, in that order, as the variant's storages have them (``collage.graph.storage.stored_type``), and
        keep their addresses for the life of the call. The kernel must not write
        to its inputs, nor keep anything between calls; the output may be one of the inputs that
        ``Backend.in_place`` names.
        """


class Session(ABC):
    """A whole ONNX model, loaded in an engine: for models that no kernel takes, with dynamic shapes or strings."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs of the model, in order, for its inputs, in order (those that are no initializers).

        Values are numpy arrays, lists for sequences, None for optionals that are not there; strings are arrays of
        Python strings. The outputs are the caller's own.
        """

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call | None:
        """A call that reads and writes these contiguous arrays, of the model's types, each time. By default None.

        None says that the engine allocates its outputs by itself. May raise anything for arrays that do not fit. If the
        call has an attribute ``reentrant`` that is true, several threads may call it and others of the session at the
        same time, also in a forked process: then nothing of Collage's is between the caller and the engine.
        """
        return None

    def bind_inputs(self, inputs: Sequence[Array]) -> Callable[[], Iterable[Any]]:
        """A call that reads these contiguous arrays of numbers each time, and gives outputs as ``run`` does.

        The outputs are read before the next call, and once. By default, it is ``run`` on the arrays. May raise anything
        for arrays that do not fit.
        """
        return partial(self.run, inputs)
