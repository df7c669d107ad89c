"""PyTorch on a GPU as an engine on whole models: its own kernels, or those of its compiler, in a CUDA graph.

Its graphs and its compiler are tested on the CPU. docs/gpu.md tells what has run on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from collage.backends.base import Availability, UnsupportedError
from collage.backends.cuda_engine import CudaEngine
from collage.backends.onnx_engine import serialised
from collage.graph.storage import CUDA
from collage.kernel.frames import Framed, frame, unframe
from collage.kernel.kernel import Kernel, Session
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph

_CHANNELS_LAST = "channels last"
"""Images and weights of convolutions are stored so, which tensor cores like best."""
_INDUCTOR = "inductor"
"""PyTorch's compiler, which tries its own kernels against those of libraries."""
_KIND = "torch"
_GRAPHS = "graphs 2"
"""This is counted up when graphs compute otherwise than before, for which old measurements do not hold."""


class TorchCuda(CudaEngine):
    """Takes whole models in their own precision: TF32 is off. A module holds the graph and what was compiled."""

    name = "torch_cuda"
    keeps_nan = True
    extra = "torch"
    runs_on: ClassVar[str] = CUDA
    """PyTorch's name of the device."""
    mode: ClassVar[str] = "max-autotune-no-cudagraphs"
    """The compiler's mode. The graph is captured here, with inputs and outputs where they are."""

    def library(self) -> Availability:
        """The version of PyTorch, if it was built for GPUs. It is not imported for that."""
        try:
            version = metadata.version("torch")
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install 'collage-compiler[torch]'")
        if not _built_for():
            return Availability(
                reason=f"PyTorch {version} computes on the CPU only: install one that is built for CUDA"
            )
        return Availability(version)

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """PyTorch's own kernels in both formats, and its compiler."""
        return ("", _CHANNELS_LAST, _INDUCTOR)

    def settings(self, options: BuildOptions) -> str:
        """The version of our graphs."""
        return _GRAPHS

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """True, since cuDNN may choose Winograd's algorithm."""
        return True

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """The simplified model, and what the compiler has made of it. Raises UnsupportedError.

        It is loaded and run once, so that whatever PyTorch does not take is known now.
        """
        from collage.backends.torch_graph.convert import simplified

        simple = simplified(model)
        if options.profile == _INDUCTOR:
            _refuse_inexact(simple)
        data, compiled = serialised(simple), b""
        with _recorded():
            self._loaded(simple, options)
            if options.profile == _INDUCTOR:
                import torch

                compiled = (torch.compiler.save_cache_artifacts() or (b"",))[0]
        return frame(_KIND, {}, [data, compiled])

    def load(self, artifact: bytes | Framed, options: BuildOptions) -> Kernel:
        """The kernel of the graph. Raises UnsupportedError, and what PyTorch raises."""
        import onnx

        framed = unframe(_KIND, artifact)
        if len(framed.arrays[1]):
            import torch

            torch.compiler.load_cache_artifacts(bytes(framed.arrays[1]))
        return self._loaded(onnx.load_model_from_string(bytes(framed.arrays[0])), options)

    def session(self, model: bytes, options: BuildOptions) -> Session:
        """PyTorch's own kernels, one by one. Raises UnsupportedError where shapes depend on data."""
        import onnx

        from collage.backends.torch_graph.convert import graph_module, simplified
        from collage.backends.torch_graph.kernel import TorchSession

        simple = simplified(onnx.load_model_from_string(model))
        return TorchSession(graph_module(simple, writing=False).to(self.runs_on), self.runs_on)

    def _loaded(self, simple: ModelProto, options: BuildOptions) -> Kernel:
        """The kernel of a simplified model, which has run once on zeros."""
        import torch

        from collage.backends.torch_graph.convert import graph_module
        from collage.backends.torch_graph.kernel import TorchKernel, exactly
        from collage.frontend.read.shapes import model_inputs

        inputs = [_zeros(info, self.runs_on) for info in model_inputs(simple)]
        module = graph_module(simple, writing=True).to(self.runs_on)
        if options.profile == _CHANNELS_LAST:
            module = module.to(memory_format=torch.channels_last)
        with exactly():
            made = graph_module(simple, writing=False).to(self.runs_on)(*inputs)
            types = [(tuple(each.shape), each.dtype) for each in made]
            if options.profile == _INDUCTOR:
                module = torch.compile(module, mode=self.mode, dynamic=False, fullgraph=True)
                module(*inputs, *(torch.empty(shape, dtype=kind, device=self.runs_on) for shape, kind in types))
        if self.runs_on == CUDA:
            torch.cuda.synchronize()  # weights are made on PyTorch's own stream, and kernels run on another one
        return TorchKernel(module, types, self.runs_on)


def _refuse_inexact(model: ModelProto) -> None:
    """Raises UnsupportedError for what PyTorch's compiler computes otherwise than its own kernels.

    Its quotients are approximate on a GPU.
    """
    from collage.frontend.rewrite.rounded_quotients import rounded_quotients
    from collage.frontend.rewrite.value_types import Types

    graph = model.graph
    for index, reason in rounded_quotients(graph, Types.of(graph)).items():
        raise UnsupportedError(f"PyTorch's compiler may change the last bit, and {graph.node[index].op_type} {reason}")


def _recorded() -> AbstractContextManager[None]:
    """Within it PyTorch records only what it compiles there, as far as this version can tell that apart."""
    from torch.compiler import _cache

    manager = getattr(_cache, "CacheArtifactManager", None)
    fresh = getattr(manager, "with_fresh_cache", nullcontext)
    found: AbstractContextManager[None] = fresh()
    return found


def _zeros(info: Any, device: str) -> Any:
    """Zeros of an input's type; indices that are 0 are in every axis. Raises UnsupportedError without a shape."""
    import onnx
    import torch

    from collage.backends.torch_graph.tensors import torch_dtype

    kind = info.type.tensor_type
    if any(not dim.HasField("dim_value") for dim in kind.shape.dim):
        raise UnsupportedError(f"the shape of {info.name} is not known")
    shape = [dim.dim_value for dim in kind.shape.dim]
    dtype = torch_dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return torch.zeros(shape, dtype=dtype, device=device)


def _built_for() -> str:
    """The version of CUDA that the installed PyTorch was built for, or ""."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        if found := re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)", text, re.MULTILINE):
            return found[1]
    return ""
