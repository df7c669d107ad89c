"""Loading Collage's own kernels, which `setup.py` builds from the folder `kernels`.

There are two libraries. One has all kernels, for AVX-512 if they are made of vectors. The other has those of float32
arithmetic once more for AVX2, and is used on processors that have no AVX-512.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

from collage.errors import CollageError
from collage.kernel.target import flags
from collage.native.library import address_of, built

REVISION = 17
"""The revision of the kernels' sources; kernels.h says when it changes."""

NOT_BUILT = (
    "Collage's own kernels were not built, or from older sources, and serving needs them: install a C++17 compiler "
    "(Debian: apt install g++) and install Collage again."
)
"""What to say if ``library_function`` finds nothing."""

_AVX512, _AVX2 = 512, 256


@cache
def kernels_problem() -> str:
    """The reason why Collage's own kernels cannot be used here and the way to mend that, or "" if they can."""
    try:
        isa = _load().collage_kernels_isa()
        for library in (_load(), _load_avx2()) if isa == _AVX2 else (_load(),):
            found = library.collage_kernels_revision()
            if found != REVISION:
                raise OSError(f"they were built from other sources (revision {found}, not {REVISION})")
    except (OSError, AttributeError) as error:  # AttributeError: one built from older sources
        return (
            f"Collage's own kernels cannot be used: {error}. They are built when Collage is installed from source "
            "and a C++17 compiler is found: install one (Debian: apt install g++) and install Collage again."
        )
    return "" if isa >= _AVX2 else "this processor has no AVX2, which Collage's own kernels need"


def has_avx512() -> bool:
    """Whether Collage's own kernels are those for AVX-512. Without it they read and write no bfloat16."""
    return not kernels_problem() and bool(_load().collage_kernels_isa() == _AVX512)


def leaves_out_avx512() -> bool:
    """Whether this process runs without AVX-512 on a CPU that has it by its description.

    COLLAGE_ISA=avx2 asks for that, and an emulator of another CPU does it.
    """
    return "avx512f" in flags() and not kernels_problem() and not has_avx512()


def kernel_function(name: str) -> int:
    """The address of a kernel, for a task. Raises CollageError when it cannot be used."""
    if problem := kernels_problem():
        raise CollageError(problem)
    if has_avx512():
        return address_of(getattr(_load(), name))
    try:
        return address_of(getattr(_load_avx2(), name))
    except AttributeError as error:
        raise CollageError(f"the kernel {name} needs AVX-512, which this processor lacks") from error


def library_function(name: str) -> int | None:
    """The address of a function for every processor, in its best form, or None if it was not built."""
    libraries = [_load] if kernels_problem() or has_avx512() else [_load_avx2, _load]
    for load in libraries:
        with suppress(OSError, AttributeError):
            return address_of(getattr(load(), name))
    return None


def kernel_libraries() -> list[ctypes.CDLL]:
    """The libraries of kernels, the best first. Each says by itself if this processor has what it needs."""
    return [_load(), _load_avx2()]


def has_bf16_dots() -> bool:
    """Whether the kernels and this processor have dot products of bfloat16."""
    return has_avx512() and bool(_load().collage_kernels_bf16())


def has_int8_dots() -> bool:
    """Whether the kernels and this processor have dot products of 8 bits."""
    return has_avx512() and bool(_load().collage_kernels_int8())


def narrow_problem() -> str:
    """The reason why the kernels cannot read and write bfloat16 here, or "" if they can.

    Weights alone may be stored as bfloat16 or in 8 bits wherever there are kernels at all.
    """
    if problem := kernels_problem():
        return problem
    return "" if has_avx512() else "this processor has no AVX-512, which data in fewer bits than float32 needs"


def amx_problem() -> str:
    """The reason why the kernels for the matrix unit (AMX) cannot be used here, or "" if they can."""
    if problem := narrow_problem():
        return problem
    if _load().collage_kernels_amx():
        return ""
    return "this processor has no AMX, or the system does not let it be used"


def rounding_problem() -> str:
    """The reason why data cannot be rounded to 8 bits and multiplied so by dot products here, or "" if it can."""
    if problem := narrow_problem():
        return problem
    return "" if has_int8_dots() else "this processor has no dot products of 8 bits (AVX512-VNNI)"


@cache
def _load() -> ctypes.CDLL:
    return ctypes.CDLL(str(built("_kernels")))


@cache
def _load_avx2() -> ctypes.CDLL:
    return ctypes.CDLL(str(built("_kernels_avx2")))
