"""Finding and loading MKL through its single dynamic library. Nothing is loaded before somebody asks."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from collage.backends.base import Availability
from collage.errors import CollageError
from collage.native.library import address_of, core, core_problem

PATH_VARIABLE = "COLLAGE_MKL"
"""The environment variable with the path of a ``libmkl_rt.so`` that is taken before all others."""

_INSTALL = "pip install 'collage-compiler[mkl]'"
_NAMES = ("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so")
_SEQUENTIAL, _LP64 = 1, 0  # arguments of MKL_Set_Threading_Layer and MKL_Set_Interface_Layer
_PACK = "cblas_sgemm_pack_get_size"
_BF16_COMPUTE = "cblas_gemm_bf16bf16f32_compute"


class _Blas(ctypes.Structure):
    """The C structure ``collage_blas`` of blas.h."""

    _fields_ = tuple(
        (n, ctypes.c_void_p) for n in ("sgemm", "sgemm_compute", "sgemm_batch", "set_threads", "bf16_compute")
    )


@dataclass(frozen=True)
class MklLibrary:
    """A loaded MKL whose calls by Collage are single-threaded."""

    c: ctypes.CDLL
    version: str
    blas: ctypes.Structure = field(repr=False)
    """The functions that ``collage_multiply`` calls (blas.h)."""

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies packed matrices of bfloat16, and the native core was built to call it."""
        return hasattr(self.c, _BF16_COMPUTE) and hasattr(core(), "collage_multiply_bf16")


def availability() -> Availability:
    """The version of the MKL that would be used, or why there is none and what to install."""
    if problem := core_problem():
        return Availability(reason=problem)
    found = _find()
    return Availability(version=found.version) if isinstance(found, MklLibrary) else Availability(reason=found)


def library() -> MklLibrary:
    """The library, ready to use. Raises CollageError with the reason when there is none."""
    found = _find()
    if isinstance(found, str):
        raise CollageError(f"MKL is not available: {found}")
    return found


@cache
def _find() -> MklLibrary | str:
    given = os.environ.get(PATH_VARIABLE)
    if given:
        found = _open(given)
        return found if isinstance(found, MklLibrary) else f"{PATH_VARIABLE}={given}: {found or 'no such file'}"
    reason = f"not installed: {_INSTALL}"
    for name in (*_NAMES, *(str(Path(sys.prefix) / "lib" / name) for name in _NAMES)):
        if not isinstance(found := _open(name), str):
            return found
        reason = found or reason
    return reason


def _open(path: str) -> MklLibrary | str:
    """The library of that name, or why it cannot be used, which is "" when there is no file of the name."""
    before = _loaded(path)
    try:
        c = ctypes.CDLL(path)
    except OSError as error:
        return "" if "No such file" in str(error) and path in str(error) else f"{error}; {_INSTALL}"
    try:
        _ = c[_PACK], c.cblas_sgemm_batch, c.MKL_Set_Num_Threads_Local
    except AttributeError as error:
        return f"{path} is no MKL, or too old ({error}): {_INSTALL}"
    if missing := _missing_parts():  # MKL would end the process if it missed one of its parts
        return f"{path} is not complete, {missing} is missing: {_INSTALL}"
    if not before and (c.MKL_Set_Threading_Layer(_SEQUENTIAL), c.MKL_Set_Interface_Layer(_LP64)) != (
        _SEQUENTIAL,
        _LP64,
    ):
        return f"{path} has been set up for other integers or threads than Collage's: unset MKL_INTERFACE_LAYER"
    return MklLibrary(c, _version(c), _blas(c, sequential=not before))


def _loaded(path: str) -> bool:
    """Whether somebody else has loaded it. Then Collage does not configure its threads."""
    with suppress(OSError):
        ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        return True
    return False


def _missing_parts() -> str:
    """Name of a library that MKL would load on its first call and that does not lie beside it, or ""."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    for line in maps:
        if "libmkl_rt.so" in line:
            loaded = Path(line.split(maxsplit=5)[-1])
            suffix = loaded.name.removeprefix("libmkl_rt")
            parts = ("core", "sequential", "intel_lp64")
            return next((n for p in parts if not (loaded.parent / (n := f"libmkl_{p}{suffix}")).exists()), "")
    return ""


def _version(c: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(200)
    c.mkl_get_version_string(text, len(text))
    found = re.search(rb"Version (\S+?)-", text.value)
    return found[1].decode() if found else text.value.decode().strip()


def _blas(c: ctypes.CDLL, *, sequential: bool) -> ctypes.Structure:
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    c.cblas_sgemm_pack_get_size.argtypes = [integer] * 4
    c.cblas_sgemm_pack_get_size.restype = ctypes.c_size_t
    c.cblas_sgemm_pack.argtypes = [*[integer] * 6, real, pointer, integer, pointer]
    c.cblas_sgemm_pack.restype = None
    functions = [c.cblas_sgemm, c.cblas_sgemm_compute, c.cblas_sgemm_batch]
    set_threads = 0 if sequential else address_of(c.MKL_Set_Num_Threads_Local)
    bf16 = 0
    if hasattr(c, _BF16_COMPUTE):
        c.cblas_gemm_bf16bf16f32_pack_get_size.argtypes = [integer] * 4
        c.cblas_gemm_bf16bf16f32_pack_get_size.restype = ctypes.c_size_t
        c.cblas_gemm_bf16bf16f32_pack.argtypes = [*[integer] * 6, pointer, integer, pointer]
        c.cblas_gemm_bf16bf16f32_pack.restype = None
        bf16 = address_of(c[_BF16_COMPUTE])
    return _Blas(*map(address_of, functions), set_threads, bf16)
