"""Loading artifacts: primitives alone, or with data that is rounded before."""

from __future__ import annotations

from collage.backends.onednn_kernels.artifact import from_artifact
from collage.backends.onednn_kernels.kernel import OneDnnKernel
from collage.backends.onednn_kernels.rounded_kernel import RoundedKernel
from collage.kernel import frames
from collage.native import NativeKernel


def load(artifact: frames.Artifact, threads: int | None = None) -> NativeKernel:
    """The kernel of an artifact, with weights of its own where these are not mapped, on so many threads.

    Raises ModuleFileError when this machine's oneDNN would pack the weights otherwise.
    """
    found = from_artifact(artifact)
    if found.rounding is not None:
        return RoundedKernel(found, found.rounding, threads)
    return OneDnnKernel(found, threads)
