"""cuDNN 9's graph interface by ctypes: its handle, and descriptors with attributes.

The interface is that of the library itself ("cudnn_graph.h"). NVIDIA's package for Python on top of it,
``nvidia-cudnn-frontend``, would be one more package of another version, and adds nothing that is needed here.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.cuda_kernels.wheel import load_library, version_of
from collage.backends.cudnn_kernels.enums import Attribute, Kind, Type
from collage.core.cuda_driver import driver

__all__ = ["CudnnError", "Descriptor", "call", "handle", "library", "number_of_version", "version"]

NAME = "libcudnn.so.9"
_NOT_SUPPORTED = range(3000, 4000)
"""CUDNN_STATUS_NOT_SUPPORTED and the statuses that say what exactly is not supported."""
_DEVICE_ALLOCATION_FAILED = 4004
"""CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED: there is too little memory on the GPU."""
_LONGEST_MESSAGE = 512

_INTEGER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
_ELEMENTS: dict[Type, Any] = {
    Type.HANDLE: _ADDRESS,
    Type.BOOLEAN: ctypes.c_bool,
    Type.INT64: _INTEGER,
    Type.FLOAT: ctypes.c_float,
    Type.DOUBLE: ctypes.c_double,
    Type.VOID_PTR: _ADDRESS,
    Type.BACKEND_DESCRIPTOR: _ADDRESS,
    Type.CHAR: ctypes.c_char,
    Type.FRACTION: _INTEGER * 2,
}
"""The elements of attributes; those of all other types are enumerations."""


class CudnnError(RuntimeError):
    """cuDNN refuses a call. The message names the call and the status."""


def version() -> str:
    """The library's version; see ``version_of``."""
    return version_of("nvidia-cudnn-cu13", NAME)


@cache
def library() -> Any:
    """Load the library, once. Raises OSError where it cannot be loaded."""
    found = load_library(NAME)
    found.cudnnGetVersion.restype = ctypes.c_size_t
    found.cudnnGetLastErrorString.restype = None
    found.cudnnGetLastErrorString.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    found.cudnnSetStream.argtypes = (_ADDRESS, _ADDRESS)
    found.cudnnBackendExecute.argtypes = (_ADDRESS,) * 3
    return found


def number_of_version() -> int:
    """The version as one number, such as 91002 for 9.10.2."""
    return int(library().cudnnGetVersion())


@cache
def handle() -> int:
    """A handle in the driver's primary context. Raises CudnnError."""
    driver().enter()
    found = _ADDRESS()
    call("cudnnCreate", ctypes.byref(found))
    return found.value or 0


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; integers are addresses and handles.

    Raises UnsupportedError where the library says that it does not support what is asked for, and CudnnError.
    """
    pointers = (_ADDRESS(each) if type(each) is int else each for each in arguments)
    if status := getattr(library(), name)(*pointers):
        text = ctypes.create_string_buffer(_LONGEST_MESSAGE)
        library().cudnnGetLastErrorString(text, _LONGEST_MESSAGE)
        message = " ".join(text.value.decode(errors="replace").split())
        if status == _DEVICE_ALLOCATION_FAILED:
            message = f"out of memory of the GPU{'; ' if message else ''}{message}"
        kind = UnsupportedError if status in _NOT_SUPPORTED else CudnnError
        raise kind(f"{name}: status {status}{': ' if message else ''}{message}")


class Descriptor:
    """A descriptor of the graph interface, which lives as long as this does. It needs no GPU by itself."""

    def __init__(self, kind: Kind) -> None:
        """Create it in the library. Raises CudnnError."""
        made = _ADDRESS()
        call("cudnnBackendCreateDescriptor", ctypes.c_int(kind), ctypes.byref(made))
        self.address = made.value or 0
        self._keep: list[Any] = []
        destroy = library().cudnnBackendDestroyDescriptor
        weakref.finalize(self, destroy, _ADDRESS(self.address)).atexit = False

    def set(self, attribute: Attribute, kind: Type, *values: Any) -> None:
        """Set an attribute to some values; descriptors are kept alive. Raises CudnnError and UnsupportedError."""
        self._keep += [each for each in values if isinstance(each, Descriptor)]
        element = _ELEMENTS.get(kind, ctypes.c_int)
        plain = [each.address if isinstance(each, Descriptor) else each for each in values]
        self._set(attribute, kind, len(plain), (element * len(plain))(*plain))

    def set_bytes(self, attribute: Attribute, data: bytes) -> None:
        """Set an attribute of characters."""
        self._set(attribute, Type.CHAR, len(data), ctypes.create_string_buffer(data, len(data)))

    def finalize(self) -> Descriptor:
        """Let the library check the attributes. Raises CudnnError and UnsupportedError."""
        call("cudnnBackendFinalize", self.address)
        return self

    def get(self, attribute: Attribute, kind: Type, most: int) -> list[Any]:
        """The first values of an attribute, ``most`` at most. Raises CudnnError and UnsupportedError."""
        found = (_ELEMENTS.get(kind, ctypes.c_int) * max(1, most))()
        return list(found[: self._get(attribute, kind, most, found)])

    def count(self, attribute: Attribute, kind: Type) -> int:
        """The number of values that an attribute has."""
        return self._get(attribute, kind, 0, None)

    def get_bytes(self, attribute: Attribute) -> bytes:
        """The characters of an attribute."""
        count = self.count(attribute, Type.CHAR)
        text = ctypes.create_string_buffer(count)
        written = self._get(attribute, Type.CHAR, count, text)
        return text.raw[:written]

    def get_descriptors(self, attribute: Attribute, kind: Kind, most: int) -> list[Descriptor]:
        """The first descriptors that an attribute has, ``most`` at most."""
        made = [Descriptor(kind) for _ in range(most)]
        room = (_ADDRESS * max(1, most))(*(each.address for each in made))
        count = self._get(attribute, Type.BACKEND_DESCRIPTOR, most, room)
        return made[: min(count, most)]

    def _set(self, attribute: Attribute, kind: Type, count: int, values: Any) -> None:
        about = ctypes.c_int(attribute), ctypes.c_int(kind), _INTEGER(count)
        call("cudnnBackendSetAttribute", self.address, *about, values)

    def _get(self, attribute: Attribute, kind: Type, most: int, room: Any) -> int:
        found = _INTEGER()
        about = ctypes.c_int(attribute), ctypes.c_int(kind), _INTEGER(most)
        call("cudnnBackendGetAttribute", self.address, *about, ctypes.byref(found), room)
        return found.value
