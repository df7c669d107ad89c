"""Machine code that this process has made. Equal functions have equal code, whatever constants they are called with.

A network has the same region many times, each with weights of its own. The code, which LLVM takes a tenth of a second
for, is made once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi

from collage.backends.tvm_codegen.image import Image

__all__ = ["CodeCache"]

_Key = tuple[object, ...]


class CodeCache:
    """The ``most`` pieces of code that were asked for last."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[_Key, tuple[Mapping[str, Any], Image | bytes]] = OrderedDict()

    def code(
        self, funcs: Mapping[str, Any], about: tuple[object, ...], make: Callable[[], Image | bytes]
    ) -> Image | bytes:
        """The code of the PrimFuncs, which are by name. ``about`` is what it depends on besides, and can be hashed.

        Raises what ``make`` raises, which makes the code where it is not known.
        """
        key = (*((name, tvm_ffi.structural_hash(func)) for name, func in funcs.items()), about)
        known = self._known.get(key)
        if known is not None and _equal(known[0], funcs):
            self._known.move_to_end(key)
            return known[1]
        code = make()
        self._known[key] = (funcs, code)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return code


def _equal(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether functions with equal hashes are equal."""
    return all(tvm_ffi.structural_equal(func, others[name]) for name, func in some.items())
