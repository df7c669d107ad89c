"""What backends for NVIDIA GPUs have in common: where they compute, when they can, and copies to the GPU and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.core.cuda import NoGpuError, gpu, needed
from collage.graph.formats import StorageFormat
from collage.graph.storage import (
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    CHANNELS_LAST_FP16,
    CUDA,
    HOST,
    PLAIN,
    PLAIN_BF16,
    PLAIN_FP16,
    is_narrow,
    widened,
)
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform, read_transform

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

T = TypeVar("T")

NEVER_RUN = "has never run on a GPU (docs/gpu.md)"
"""What the list of backends says of those that have not."""

_FORMATS: tuple[StorageFormat, ...] = tuple(
    each.format
    for each in (
        *(PLAIN, CHANNELS_LAST),
        *(PLAIN_BF16, CHANNELS_LAST_BF16),
        *(PLAIN_FP16, CHANNELS_LAST_FP16),
    )
)
"""The formats of values on the GPU."""
_REARRANGED = ("float32", "float16", "bfloat16")
"""The dtypes of values that can be in another format than the plain one."""


class CudaBackend(Backend):
    """A backend whose kernels compute on the GPU that CUDA takes by default."""

    device: ClassVar[str] = CUDA
    ahead_s: ClassVar[float] = 0.0

    @abstractmethod
    def library(self) -> Availability:
        """The version of its libraries, or the reason why they cannot be used, whether there is a GPU or not."""

    extra: ClassVar[str] = "gpu"
    """The extra of Collage that brings what it needs, in messages."""

    def misfit(self, version: str, same_cpu: bool) -> str:
        """Kernels run on the GPU, whatever the CPU."""
        return Backend.misfit(self, version, True)

    def available(self) -> Availability:
        """What its libraries say, and the GPU with its driver, which are part of the version.

        So they are part of the keys of measurements, and a module file names the GPU that it was compiled for.
        """
        try:
            found = gpu()
        except NoGpuError as error:
            untried = f". It {self.untried}" if self.untried else ""
            return Availability(reason=f"{error}; it needs {needed(self.extra)}{untried}")
        library = self.library()
        if not library:
            return library
        major, minor = found.driver
        return Availability(version=f"{library.version}, {found.name}, CUDA {major}.{minor}")

    def pays_switch(self) -> bool:
        """A launch is enqueued on the GPU, and costs nothing else."""
        return False

    def transforms(self, transform: LayoutTransform) -> bool:
        """Copies to the GPU and back, and to other formats there; float32 values may be rounded, and widened again.

        Values that are float16 or bfloat16 in the model itself take the formats that round nothing.

        To and from fewer bits the order changes, too, only if one side is plain: the others would be many that no
        placement needs.
        """
        source, target = transform.source, transform.target
        if CUDA not in (source.device, target.device) or not {source.device, target.device} <= {HOST, CUDA}:
            return False
        if transform.kind.dtype != "float32" and (is_narrow(source) or is_narrow(target)):
            return False
        if source.format == target.format:
            return source.format in _FORMATS and source.device != target.device
        ends = {source.format, target.format}
        if transform.kind.dtype not in _REARRANGED or not ends <= {*_FORMATS}:
            return False
        if is_narrow(source) and is_narrow(target):
            return False
        mixed = is_narrow(source) != is_narrow(target)
        return not mixed or PLAIN.format in ends or widened(source).format == widened(target).format

    def load_transform(self, artifact: Any, options: BuildOptions) -> Kernel:
        """The kernel of a copy."""
        from collage.backends.cuda_kernels.copies import TransformKernel

        found = read_transform(bytes(artifact), _FORMATS)
        if not self.transforms(found):
            raise ValueError(f"no transform {found} to the GPU, from it or there")
        return TransformKernel(found)


class CudaLibrary(CudaBackend):
    """A library whose heuristic offers algorithms for a subgraph; each of the first ones is a variant."""

    kind = BackendKind.LIBRARY
    title: ClassVar[str]
    computes: ClassVar[str]
    choices: ClassVar[str]
    """The library's own name, what it computes of a subgraph, and what its heuristic offers, in messages."""
    most_algorithms: ClassVar[int] = 4
    """The first algorithm is the best by the heuristic's estimate."""

    @abstractmethod
    def version(self) -> str:
        """The library's version, or "" where it cannot be loaded."""

    @abstractmethod
    def read(self, subgraph: Subgraph) -> object:
        """What the library computes of the subgraph. Raises UnsupportedError where that is nothing."""

    def library(self) -> Availability:
        """The version, or the extra that brings the library."""
        found = self.version()
        return (
            Availability(found) if found else Availability(reason="not installed: pip install 'collage-compiler[cuda]'")
        )

    def chosen(self, number: int, offered: Sequence[T]) -> T:
        """The algorithm of that number, from 1 on. Raises UnsupportedError where the heuristic offers fewer."""
        if number > len(offered):
            raise UnsupportedError(f"{self.title} offers {len(offered)} {self.choices} for this {self.computes}")
        return offered[number - 1]


def architecture(otherwise: str) -> str:
    """The architecture of the GPU that is here, or else ``otherwise``."""
    try:
        return gpu().architecture
    except NoGpuError:
        return otherwise


def refuse_other_gpu(compiled_for: str) -> None:
    """Raises UnsupportedError where machine code was compiled for another GPU than the one that is here."""
    here = gpu()
    if here.architecture != compiled_for:
        raise UnsupportedError(
            f"it was compiled for {compiled_for}, and {here.name} is {here.architecture}: compile the model again"
        )
