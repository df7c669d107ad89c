"""The NVIDIA GPU as its driver describes it. Only the driver's library is asked: no GPU package is imported."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

OLDEST_DRIVER = (13, 0)
"""The oldest version of CUDA whose driver runs what is compiled here. NVRTC 13 needs it, and TensorRT for CUDA 13."""

LIBRARY = "libcuda.so.1"
"""The driver's library."""

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of ``cuDeviceGetAttribute``."""


class NoGpuError(OSError):
    """Raised where no GPU can be used. ``fix`` says what to do where a driver is installed, and is "" where none is."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class Gpu:
    """The GPU that CUDA takes by default: name, compute capability, memory in bytes, and its driver's CUDA version."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: tuple[int, int]

    @property
    def architecture(self) -> str:
        """The name of the architecture that compilers take, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


def gpu() -> Gpu:
    """Ask the driver. Raises NoGpuError, which says what is missing."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoGpuError(f"there is no NVIDIA driver ({LIBRARY})") from error
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise NoGpuError("the NVIDIA driver finds no GPU", "let this process see one, and check it with nvidia-smi")
    if driver.cuDriverGetVersion(ctypes.byref(version)) or driver.cuDeviceGet(ctypes.byref(device), 0):
        raise NoGpuError("the NVIDIA driver does not answer", "check it with nvidia-smi")
    found = version.value // 1000, version.value % 1000 // 10
    if found < OLDEST_DRIVER:
        raise NoGpuError(
            f"the NVIDIA driver is for CUDA {_dotted(found)}",
            f"install one for CUDA {_dotted(OLDEST_DRIVER)} or later",
        )
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    if driver.cuDeviceGetName(name, len(name), device):
        raise NoGpuError("the NVIDIA driver does not tell the GPU's name", "check it with nvidia-smi")
    capability = [ctypes.c_int(), ctypes.c_int()]
    for part, attribute in zip(capability, (_MAJOR, _MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = (part.value for part in capability)
    return Gpu(name.value.decode(errors="replace"), (major, minor), memory.value, found)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def needed(extra: str = "gpu") -> str:
    """What a machine needs for its GPU to be used, as the end of a sentence; ``extra`` is one of Collage's."""
    driver = f"its driver for CUDA {_dotted(OLDEST_DRIVER)} or later"
    return f"an NVIDIA GPU, {driver}, and pip install 'collage-compiler[{extra}]'"
