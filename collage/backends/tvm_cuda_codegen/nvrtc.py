"""NVRTC, NVIDIA's compiler of CUDA C++ as a library. It needs neither a GPU nor a driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collage.backends.base import UnsupportedError
from collage.core.surroundings import cache_folder

__all__ = ["NvrtcError", "compile_cubin"]

_OPTIONS = ("--std=c++17", "--device-int128", "--extra-device-vectorization")
"""There is no --use_fast_math: it would flush subnormal numbers to 0 and divide inexactly."""

_HALF_HEADERS = re.compile(r"#include <cuda_(fp16|bf16)\.h>")

_BUNDLED = 13, 5
"""The first version of NVRTC that has headers of its own."""

_STANDARD_HEADERS: Mapping[str, str] = {
    "cuda/std/cstdint": """
namespace cuda { namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int;
using uint64_t = unsigned long long;
} }
""",
    "cuda/std/type_traits": """
namespace cuda { namespace std {
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_integral; template <class A> struct is_signed; template <class A> struct is_unsigned;
template <class A> struct is_floating_point;
template <bool, class A = void> struct enable_if {}; template <class A> struct enable_if<true, A> { using type = A; };
template <bool, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
""",
    "math_constants.h": """
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000LL)
""",
}
"""What TVM's source includes of CUDA's own headers, which are no part of NVRTC: as much as the source uses."""


class NvrtcError(RuntimeError):
    """NVRTC refuses the source. The message is its log."""


def compile_cubin(source: str, architecture: str) -> bytes:
    """Compile CUDA C++ to machine code for an architecture such as ``sm_90``.

    Raises NvrtcError for a source that does not compile, and UnsupportedError where NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    headers = [text.encode() for text in _STANDARD_HEADERS.values()]
    names = [name.encode() for name in _STANDARD_HEADERS]
    options = [f"--gpu-architecture={architecture}", *_OPTIONS, *_include_paths(nvrtc, source)]
    program = _value(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(headers), headers, names))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [each.encode() for each in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(_log(nvrtc, program) or str(status))
        cubin = bytearray(_value(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _value(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the library is loaded by the first call
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedError("NVRTC is not installed: pip install 'collage-compiler[gpu]'") from error
    return nvrtc


def _include_paths(nvrtc: Any, source: str) -> list[str]:
    """Options that name the folder of NVRTC's own headers where the source needs any: those of float16 and bfloat16.

    NVRTC unpacks them into the user's cache folder, once for each version. Those before 13.5 have none, and get the
    headers of CUDA's toolkit. Raises UnsupportedError where that is not installed.
    """
    if not _HALF_HEADERS.search(source):
        return []
    major, minor = _version(nvrtc)
    folder = cache_folder() / f"nvrtc-{major}.{minor}"
    # The bindings may be newer than the library: PyTorch brings one of its own.
    if (major, minor) < _BUNDLED or not hasattr(nvrtc, "nvrtcInstallBundledHeaders"):
        if (toolkit := _toolkit_headers()) is not None:
            return [f"-I{toolkit}", f"-I{toolkit / 'cccl'}"]
        raise UnsupportedError(
            f"NVRTC {major}.{minor} has no headers for float16: pip install -U nvidia-cuda-nvrtc, or "
            "nvidia-cuda-runtime, which has them"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    _value(nvrtc, nvrtc.nvrtcInstallBundledHeaders(str(folder).encode(), 0)[:1])
    return [f"-I{folder}", f"-I{folder / 'cccl'}"]


def _toolkit_headers() -> Path | None:
    """The folder of the toolkit's headers: that of NVIDIA's wheels, or of an installation."""
    spec = find_spec("nvidia")
    wheels = [Path(each) for each in spec.submodule_search_locations or ()] if spec is not None else []
    roots = [root for each in wheels for root in sorted(each.glob("*"))]
    roots += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    return next((root / "include" for root in roots if (root / "include" / "cuda_fp16.h").exists()), None)


def _version(nvrtc: Any) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


def _log(nvrtc: Any, program: Any) -> str:
    text = bytearray(_value(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _value(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return bytes(text).rstrip(b"\0\n").decode(errors="replace")


def _value(nvrtc: Any, answer: Sequence[Any]) -> Any:
    """The value in an answer, if it has one. Raises RuntimeError for an error."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {status}")
    return values[0] if values else None
