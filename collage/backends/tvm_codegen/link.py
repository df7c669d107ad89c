"""LLVM IR as plain C functions, whose parallel loops run on the threads that the loader chooses.

TVM's loader gives Python a packed function and points the module's parallel loops to TVM's thread pool. One
function of our own, added to the LLVM IR, hands out the addresses and points the loops elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

PREFIX = "__tvm_ffi_"
"""What TVM puts before the names of functions."""
_LINK = "collage_link"
_LAUNCH = "@__TVMBackendParallelLaunch"  # the module's pointer to what runs its parallel loops


def is_parallel(code: bytes) -> bool:
    """Whether the LLVM IR has parallel loops."""
    return _LAUNCH.encode() in code


def linkable(code: bytes, names: Sequence[str]) -> bytes:
    """The LLVM IR with a function that `link` calls. `names` are the names of its functions."""
    stores = "".join(
        f'  %place{i} = getelementptr ptr, ptr %table, i64 {i}\n  store ptr @"{PREFIX}{name}", ptr %place{i}\n'
        for i, name in enumerate(names)
    )
    redirect = f"  store ptr %launch, ptr {_LAUNCH}\n" if is_parallel(code) else ""
    added = f"""
define dllexport i32 @{PREFIX}{_LINK}(ptr %self, ptr %args, i32 %count, ptr %result) {{
  %launch_slot = getelementptr i8, ptr %args, i64 8
  %launch = load ptr, ptr %launch_slot
  %table_slot = getelementptr i8, ptr %args, i64 24
  %table = load ptr, ptr %table_slot
{redirect}{stores}  ret i32 0
}}
"""
    return code + added.encode()


def link(module: Any, names: Sequence[str], parallel_launch: int) -> dict[str, int]:
    """Addresses of the loaded module's functions, the `names` that `linkable` was given, as functions of the
    type `int32_t (void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result)`.

    From now on its parallel loops call `parallel_launch`, which has `TVMBackendParallelLaunch`'s signature.
    """
    table = (ctypes.c_void_p * len(names))()
    module[_LINK](parallel_launch, ctypes.addressof(table))
    return {name: address or 0 for name, address in zip(names, table, strict=True)}
