"""Layout transforms: kernels that bring a value from one storage to another, and the one that works for any format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from collage.core.typed import MalformedError
from collage.graph.dataflow import Array, TensorType
from collage.graph.formats import StorageFormat
from collage.graph.storage import Storage, from_layout, parse_storage, stored_type, to_layout
from collage.graph.value_type import read_type
from collage.kernel.kernel import Call, Kernel


@dataclass(frozen=True, slots=True)
class LayoutTransform:
    """What a layout transform does, with any value of logical type ``kind``: another format, or another device."""

    kind: TensorType
    source: Storage
    target: Storage

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} of {self.kind}"


def transform_artifact(transform: LayoutTransform) -> bytes:
    """The transform as text, for ``read_transform``."""
    kind, source, target = transform.kind, transform.source, transform.target
    return json.dumps([kind.shape, kind.dtype, str(source), str(target)]).encode()


def read_transform(artifact: bytes, formats: Iterable[StorageFormat]) -> LayoutTransform:
    """The transform that an artifact describes, between these formats. Raises ValueError for anything else."""
    formats = tuple(formats)
    try:
        shape, dtype, source, target = json.loads(bytes(artifact))
    except RecursionError:  # the cause is a thousand frames of one function, which tell nothing
        raise MalformedError("it is nested too deeply") from None
    if not isinstance(source, str) or not isinstance(target, str):
        raise MalformedError("it does not name its storages")
    return LayoutTransform(read_type(shape, dtype), parse_storage(source, formats), parse_storage(target, formats))


class FormatKernel(Kernel):
    """A transform by the functions of its two formats, in the host's memory: right for any format, and slow."""

    def __init__(self, transform: LayoutTransform) -> None:
        """Raises ValueError when a value of that type cannot be stored so."""
        self._transform = transform
        self._types = [stored_type(transform.kind, each) for each in (transform.source, transform.target)]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says."""
        for array, kind in zip((*inputs, *outputs), self._types, strict=True):
            if TensorType(array.shape, array.dtype.name) != kind:
                raise ValueError(f"a layout transform takes or gives {kind}")
        (taken,), (given,) = inputs, outputs
        transform = self._transform

        def run() -> None:
            plain = from_layout(taken, transform.source, transform.kind)
            np.copyto(given, to_layout(plain, transform.target))

        return run
