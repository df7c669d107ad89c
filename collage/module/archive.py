"""A zip archive whose entries begin at 64-byte boundaries, so that kernels can use them in the mapped file."""

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

from collage.core.typed import parse_object, shown
from collage.kernel.buffers import ALIGNMENT, aligned_bytes
from collage.kernel.frames import Buffer

MANIFEST, DIGEST, SIGNATURE = (
    "manifest.json",
    "manifest.sha256",
    "signature.json",
)  # older versions could sign files
_MOST_TEXT, _SHORT = 1 << 28, 1 << 12
"""The most bytes of an unpacked manifest, and of the digest."""
_DENSITY, _VALUES = 64, 4
"""The most bytes and values of a manifest for each packed byte, since a file of some kilobytes could become gigabytes
of memory. Those of our models have up to 15 bytes and 1.2 values. Lists of equal modules would have more."""
_ANY_TEXT, _ANY_VALUES = 1 << 20, 1 << 16
"""So many bytes and values may be packed as they like: they take 20 MB of memory at most."""
_ZLIB_EXTRA = 6
"""Bytes that ``zlib.compress`` adds to what a zip archive holds."""
_LOCAL_HEADER = 30
"""Bytes of a local header without the name and the extra field after it."""
_PADDING = struct.Struct("<HHH")
_PADDING_ID = 0xD935  # Android's zipalign uses the same one
_LARGE, _ZIP64_EXTRA = 1 << 30, 20
"""Entries of more bytes have sizes of 64 bits in their local header, for which zipfile appends so many bytes to it. It
would do so by itself from some 2 GB on."""
_DAMAGE = (
    *(zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError),
    *(OSError, OverflowError),
)
"""What zipfile raises beside BadZipFile, depending on where a file is damaged. NotImplementedError is for a version
that it does not know, RuntimeError for encryption."""


class NewArchive:
    """An archive that is being written to a stream; entries are named by their content, and each is stored once.

    It is a context manager, which closes the archive and hides errors of that when writing has failed.
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
            # Closing fails, too. Without this, Python would close it later and print that error.
            with suppress(OSError, ValueError):
                self._zip.close()

    def put(self, folder: str, data: Buffer) -> str:
        """Store the bytes, and return the name of their entry."""
        name = f"{folder}/{hashlib.sha256(data).hexdigest()}"
        if name not in self._names:
            self._names.add(name)
            info = new_entry(name)
            info.file_size = len(data)
            large = len(data) > _LARGE
            start = self._stream.tell() + _LOCAL_HEADER + len(name) + _PADDING.size + large * _ZIP64_EXTRA
            pad = -start % ALIGNMENT
            info.extra = _PADDING.pack(_PADDING_ID, 2 + pad, ALIGNMENT) + bytes(pad)
            with self._zip.open(info, "w", force_zip64=large) as entry:
                entry.write(data)
        return name

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, its digest and the directory."""
        data = json.dumps(manifest).encode()
        dense = _too_dense(data, 0) and _too_dense(data, len(zlib.compress(data)) - _ZLIB_EXTRA)
        method = zipfile.ZIP_STORED if dense else zipfile.ZIP_DEFLATED
        self._zip.writestr(new_entry(MANIFEST), data, compress_type=method)
        self._zip.writestr(new_entry(DIGEST), hashlib.sha256(data).hexdigest())
        self._zip.close()


class MappedArchive:
    """An archive of that kind, mapped into memory, so that processes which read it share its pages.

    With ``share`` off it is read into memory of this process, in huge pages if the system has them. Views of its
    entries keep the memory alive. The file must be replaced by renaming another one, as Collage does: cutting a mapped
    file short ends the processes that read it. Raises OSError if it cannot be read, zipfile.BadZipFile or ValueError if
    it is no archive.
    """

    def __init__(self, path: Path, *, share: bool = True) -> None:
        with open(path, "rb") as stream:
            self._data = _mapped(stream) if share else _own(stream)
            try:
                with zipfile.ZipFile(_View(self._data)) as archive:
                    self._entries = {info.filename: info for info in archive.infolist()}
                    text = _read_manifest(archive, len(self._data))
                    digest = _read(archive, DIGEST, _SHORT).decode() if DIGEST in self._entries else None
            except _DAMAGE as error:
                raise zipfile.BadZipFile(str(error)) from error
            self.digest = hashlib.sha256(text).hexdigest()
            """Digest of the manifest, which names all other entries by their digests."""
            if digest is not None and digest != self.digest:
                raise ValueError("its manifest is not the one that was written")
            self.has_digest = digest is not None
            """Whether the file holds the digest; files of older formats do not."""
            self.manifest = parse_object(text)

    def size(self, name: str) -> int:
        """The size of an entry in bytes. Raises KeyError when there is none of that name."""
        return self._entries[name].file_size

    def get(self, name: str, *, check: bool) -> memoryview:
        """The bytes of an entry, read-only; ``check`` compares them with their digest, which reads all of them.

        Raises KeyError when there is no entry of that name, and zipfile.BadZipFile when it is damaged.
        """
        info = self._entries[name]
        at = info.header_offset + _LOCAL_HEADER
        try:
            length, extra = struct.unpack_from("<HH", self._data, at - 4)
        except struct.error as error:
            raise zipfile.BadZipFile(f"{shown(name)} is not where the directory says") from error
        start = at + length + extra
        found = self._data[start : start + info.file_size]
        whole = info.compress_type == zipfile.ZIP_STORED and len(found) == info.file_size
        whole = whole and bytes(self._data[at : at + length]) == name.encode()
        if not whole or (check and hashlib.sha256(found).hexdigest() != name.rpartition("/")[2]):
            raise zipfile.BadZipFile(f"{shown(name)} does not have the bytes that were written")
        return found

    def verify(self) -> None:
        """Compare every entry with its digest. Raises zipfile.BadZipFile for one that differs or has none."""
        for name in self._entries.keys() - {MANIFEST, DIGEST, SIGNATURE}:
            self.get(name, check=True)


class _View(io.RawIOBase):
    """A file object over the mapped bytes, so that zipfile reads the same bytes that are used later."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise OSError("a place before the file's beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._data[self._at : self._at + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read an entry that describes other entries. Raises ValueError when it claims to be huge."""
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its {name} is packed by method {info.compress_type}")
    if info.file_size > most:
        raise ValueError(f"its {name} has {info.file_size} bytes")
    with archive.open(info) as entry:
        # Without a size, zipfile unpacks all of it, and then drops what is more than the entry claims to have.
        return entry.read(info.file_size)


def _read_manifest(archive: zipfile.ZipFile, file_bytes: int) -> bytes:
    """Read the manifest. Raises ValueError when its values would take far more memory than the file."""
    info = archive.getinfo(MANIFEST)
    packed = min(info.compress_size, file_bytes)
    text = _read(archive, MANIFEST, min(_MOST_TEXT, max(_ANY_TEXT, _DENSITY * packed)))
    if found := _too_dense(text, packed):
        raise ValueError(f"its {MANIFEST} has {found} in {packed} bytes")
    return text


def _too_dense(text: bytes, packed: int) -> str:
    """What a manifest of so many packed bytes has too much of to be read. Empty for one that is read."""
    if len(text) > max(_ANY_TEXT, _DENSITY * packed):
        return f"{len(text)} bytes"
    values = 1 + sum(text.count(each) for each in (b"{", b"[", b","))  # there are fewer where texts have commas
    return f"{values} values" if values > max(_ANY_VALUES, _VALUES * packed) else ""


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


def new_entry(name: str) -> zipfile.ZipInfo:
    """The header of an entry, without a time, so that equal modules become equal files."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o644 << 16
    return info
