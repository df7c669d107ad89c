"""A candidate's kernel: tuned, compiled, loaded, and bound to buffers that hold its reference inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TypeAlias

from collage.backends.base import DRAWS, Backend
from collage.backends.tuner import Tuner
from collage.check.sample import Sample
from collage.check.samples import Samples
from collage.check.stages import RejectedError, made_artifact, stage
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, stored_type
from collage.kernel.device_array import copy_on, empty_on
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure_db.results import Rejection, RejectionKind

SharedBuffers: TypeAlias = "dict[tuple[str, int, Storage], Array]"
"""Arrays of inputs and outputs ("in" and "out"), by position and storage."""


@dataclass(frozen=True)
class KernelSource:
    """What a kernel is built from. ``ready`` is its artifact if it was built ahead."""

    subgraph: Subgraph
    backend: Backend
    options: BuildOptions
    ready: bytes | None = None

    def tuned(self) -> KernelSource:
        """The source with the record of tuning in its options, where there are trials. Raises RejectedError."""
        options = self.options
        if options.tuning or not options.tune_trials or not isinstance(self.backend, Tuner):
            return self
        with stage("tune"):
            tuning = self.backend.tune(self.subgraph, options)
        return replace(self, options=replace(options, tuning=tuning))

    def compiled(self) -> bytes:
        """The artifact that the backend makes. Raises RejectedError."""
        if not self.backend.draws and not self.subgraph.members.isdisjoint(self.subgraph.model.random_nodes):
            raise RejectedError(Rejection(RejectionKind.UNSUPPORTED, DRAWS))
        if self.ready is not None:
            return self.ready
        return made_artifact(lambda: self.backend.codegen(self.subgraph, self.options))


@dataclass(frozen=True)
class KernelBuffers:
    """Aligned arrays for the inputs and outputs of a subgraph, in order, each in the storage of the variant."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    input_storages: tuple[Storage, ...]
    output_storages: tuple[Storage, ...]

    @staticmethod
    def of(source: KernelSource, samples: Samples, shared: SharedBuffers) -> KernelBuffers:
        """Buffers that hold the subgraph's usual inputs, which kernels of the same subgraph have ``shared``.

        Raises RejectedError if no reference values are known.
        """
        subgraph, variant = source.subgraph, source.options.variant
        input_storages = variant.inputs or (PLAIN,) * len(subgraph.inputs)
        output_storages = variant.outputs or (PLAIN,) * len(subgraph.outputs)
        usual = usual_sample(subgraph, samples)
        for at, storage in enumerate(input_storages):
            if ("in", at, storage) not in shared:
                shared["in", at, storage] = copy_on(storage.device, usual.stored(at, storage))
        for at, (kind, storage) in enumerate(zip(subgraph.output_types, output_storages, strict=True)):
            if ("out", at, storage) not in shared:
                stored = stored_type(kind, storage)
                shared["out", at, storage] = empty_on(storage.device, stored.shape, stored.dtype)
        return KernelBuffers(
            tuple(shared["in", at, storage] for at, storage in enumerate(input_storages)),
            tuple(shared["out", at, storage] for at, storage in enumerate(output_storages)),
            input_storages,
            output_storages,
        )


@dataclass(frozen=True)
class BoundKernel:
    """A kernel that is loaded and bound, which took ``load_s`` seconds. ``call`` runs it on the buffers."""

    source: KernelSource
    artifact: bytes
    buffers: KernelBuffers
    kernel: Kernel
    call: Call
    load_s: float

    def another(self) -> BoundKernel:
        """One more instance, with weights of its own, on the same buffers. Raises RejectedError."""
        return _bind(self.source, self.artifact, self.buffers)


def load(source: KernelSource, artifact: bytes, samples: Samples, shared: SharedBuffers) -> BoundKernel:
    """Load and bind what was compiled, to buffers that kernels of the same subgraph have ``shared``.

    Raises RejectedError.
    """
    return _bind(source, artifact, KernelBuffers.of(source, samples, shared))


def usual_sample(subgraph: Subgraph, samples: Samples) -> Sample:
    """The subgraph in the model's reference run. Raises RejectedError where a value is not known."""
    try:
        return samples.usual(subgraph)
    except KeyError as missing:
        name = subgraph.model.graph.values[missing.args[0]].name
        text = f"no reference value for {name or 'a value inside an ONNX node'}"
        raise RejectedError(Rejection(RejectionKind.UNSUPPORTED, text)) from missing


def _bind(source: KernelSource, artifact: bytes, buffers: KernelBuffers) -> BoundKernel:
    start = time.perf_counter()
    with stage("load"):
        loaded = source.backend.load(artifact, source.options)
    with stage("bind"):
        call = loaded.bind(buffers.inputs, buffers.outputs)
    return BoundKernel(source, artifact, buffers, loaded, call, time.perf_counter() - start)
