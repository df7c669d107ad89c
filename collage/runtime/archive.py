"""A zip archive whose entries begin at 64-byte boundaries, so that they can be used where the file is mapped."""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from collage.runtime.buffers import ALIGNMENT, aligned_bytes
from collage.runtime.frames import Buffer

_MANIFEST = "manifest.json"
_LOCAL_HEADER = 30
"""Bytes, without the name and what follows it."""
_PADDING = struct.Struct("<HHH")
_PADDING_ID = 0xD935  # the one that Android's zipalign uses
_DAMAGE = (zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError)
"""What zipfile raises beside BadZipFile, depending on where a file is damaged: the last two are for a way of packing
that it does not know, and for encryption."""


class NewArchive:
    """An archive that is being written to a stream: entries named by their content, each stored once.

    A context manager, for the case that writing fails.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED)
        self._names: set[str] = set()

    def __enter__(self) -> NewArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # It fails again; left alone, Python closes it and tells of that.
            with suppress(OSError, ValueError):
                self._zip.close()

    def put(self, folder: str, data: Buffer) -> str:
        """Store the bytes, and give the name under which they will be found."""
        name = f"{folder}/{hashlib.sha256(data).hexdigest()}"
        if name not in self._names:
            self._names.add(name)
            info = _entry(name)
            info.file_size = len(data)
            start = self._stream.tell() + _LOCAL_HEADER + len(name) + _PADDING.size
            pad = -start % ALIGNMENT
            info.extra = _PADDING.pack(_PADDING_ID, 2 + pad, ALIGNMENT) + bytes(pad)
            with self._zip.open(info, "w") as entry:
                entry.write(data)
        return name

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest and the directory."""
        self._zip.writestr(_entry(_MANIFEST), json.dumps(manifest), compress_type=zipfile.ZIP_DEFLATED)
        self._zip.close()


class MappedArchive:
    """An archive of that kind, mapped into memory: processes that read it share its pages.

    With ``share`` off it is read into memory of its own, which has huge pages where the system gives any: weights of
    300 MB that stream through a core take 8.9 ms then, and 10.2 in the pages of a file that was just written (9.4 in
    those of one that was read from a disk by a recent Linux).

    Raises OSError where the file cannot be read, and zipfile.BadZipFile where it is no archive. Views of its entries
    keep the memory alive. Whoever replaces the file must do so by renaming, as Collage does: a mapped file that is
    cut short ends its readers.
    """

    def __init__(self, path: Path, *, share: bool = True) -> None:
        with open(path, "rb") as stream:
            try:
                with zipfile.ZipFile(stream) as archive:
                    self._entries = {info.filename: info for info in archive.infolist()}
                    manifest = json.loads(archive.read(_MANIFEST))
            except _DAMAGE as error:
                raise zipfile.BadZipFile(str(error)) from None
            if not isinstance(manifest, dict):
                raise ValueError("its manifest is no object")
            self.manifest: dict[str, Any] = manifest
            self._data = _mapped(stream) if share else _own(stream)

    def size(self, name: str) -> int:
        """Bytes of an entry. Raises KeyError when there is none of that name."""
        return self._entries[name].file_size

    def get(self, name: str, *, check: bool) -> memoryview:
        """An entry's bytes, read-only. ``check`` compares them with their checksum, which reads all of them.

        Raises KeyError when there is none of that name, and zipfile.BadZipFile when it is damaged.
        """
        info = self._entries[name]
        at = info.header_offset + _LOCAL_HEADER
        try:
            length, extra = struct.unpack_from("<HH", self._data, at - 4)
        except struct.error:
            raise zipfile.BadZipFile(f"{name} is not where the directory says") from None
        start = at + length + extra
        found = self._data[start : start + info.file_size]
        whole = info.compress_type == zipfile.ZIP_STORED and len(found) == info.file_size
        whole = whole and bytes(self._data[at : at + length]) == name.encode()
        if not whole or (check and zlib.crc32(found) != info.CRC):
            raise zipfile.BadZipFile(f"{name} does not have the bytes that were written")
        return found


def _mapped(stream: IO[bytes]) -> memoryview:
    found = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            found.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(found)


def _own(stream: IO[bytes]) -> memoryview:
    block = aligned_bytes(stream.seek(0, os.SEEK_END))
    stream.seek(0)
    if cast(io.BufferedReader, stream).readinto(block.data) != block.nbytes:
        raise zipfile.BadZipFile("it became shorter while it was read")
    block.flags.writeable = False
    return block.data


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a time, so that equal modules are equal files."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o644 << 16
    return info
