"""Images of machine code: relocatable ELF objects for x86-64, laid out, mapped, and linked with what they call.

LLVM takes 25 to 300 ms for a kernel. Its image is made once, where it is compiled; a process that loads it copies it.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from collage.core.cpuinfo import compiled_for
from collage.native.kernel_library import leaves_out_avx512
from collage.native.library import address_of, core

PAGE = 4096
"""What is written to while the code runs begins on a page of its own."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_OBJECT = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELA, _ZEROS = 2, 4, 8  # types of sections
_WRITE, _ALLOC, _THREAD_LOCAL = 1, 2, 0x400  # flags of sections
_UNWIND = 0x70000001
_NOWHERE = 0  # the section of what the object does not have
_WORD, _NEAR, _CALL, _FAR = 1, 2, 4, 24
_SLOTS = (9, 41, 42)
"""Relocations. WORD is an address; NEAR (32 bits) and FAR (64) are distances; CALL is the distance of a function, which
may be that of a stub, and SLOTS are distances of words that hold an address."""
_JUMP = b"\xff\x25"  # jmp [rip + distance]
_JUMP_BYTES, _WORD_BYTES = 8, 8
_POINTERS = "__TVM"
"""Words of the object whose names begin like this hold the address of the function that the rest names."""


class ImageError(ValueError):
    """Bytes are no object that an image can be made of."""


@dataclass(frozen=True)
class Image:
    """Code and data. From offset ``writable`` on, a multiple of PAGE, the code writes; ``size`` is all of it in bytes.

    ``functions`` are the offsets of its functions by name. The word at each offset of ``imports`` takes the address of
    the function with that name, and to each word in ``moved`` the address of the image has to be added.
    """

    content: bytes
    writable: int
    size: int
    functions: dict[str, int]
    imports: tuple[tuple[str, int], ...]
    moved: tuple[int, ...]

    @cached_property
    def digest(self) -> str:
        """A hash of all of it, which tells it from other images, and from one that was damaged."""
        about = self.writable, self.size, sorted(self.functions.items()), self.imports, self.moved
        return hashlib.sha256(repr(about).encode() + self.content).hexdigest()


@dataclass(frozen=True)
class _Section:
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def kept(self) -> bool:
        """Whether it is in memory when the code runs. Nothing unwinds these frames, so tables for that are not."""
        return bool(self.flags & _ALLOC) and self.type != _UNWIND and self.size > 0


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


@dataclass(frozen=True)
class _Relocation:
    """What has to be filled in at an offset of a section: where the symbol is, with something added to it."""

    section: int
    offset: int
    kind: int
    symbol: _Symbol
    added: int


def image_of(data: bytes, prefix: str, names: Sequence[str], known: Callable[[str], bool]) -> Image:
    """The image of an object. ``names`` are those of its functions, which ``prefix`` stands before in the object.

    ``known`` tells whether a process that loads the image has a function of that name. Raises ImageError.
    """
    try:
        return _Layout(data, known).image(prefix, names)
    except ImageError:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise ImageError(f"a damaged object: {error}") from error


class _Layout:
    """Where the sections of an object are in its image: what is only read, the stubs, then what is written."""

    def __init__(self, data: bytes, known: Callable[[str], bool]) -> None:
        self._data = data
        self._known = known
        identity, kind, machine, *_, sections_at, _, _, _, _, size, count, _ = _HEADER.unpack_from(data)
        if identity[: len(_OBJECT)] != _OBJECT or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise ImageError("no relocatable object for x86-64")
        self._sections = [_Section(*_SECTION.unpack_from(data, sections_at + number * size)) for number in range(count)]
        self._symbols = [*self._read_symbols()]
        self._relocations = [*self._read_relocations()]
        self._imports: list[tuple[str, int]] = []
        self._moved: list[int] = []
        self._places: dict[int, int] = {}
        end = self._place(0, writable=False)
        called = dict.fromkeys(
            each.symbol.name for each in self._relocations if each.kind == _CALL and each.symbol.section == _NOWHERE
        )
        self._stubs = {name: _up(end, _JUMP_BYTES) + _JUMP_BYTES * at for at, name in enumerate(called)}
        self._writable = _up(_up(end, _JUMP_BYTES) + _JUMP_BYTES * len(called), PAGE)
        end = _up(self._place(self._writable, writable=True), _WORD_BYTES)
        slots = dict.fromkeys(each.symbol for each in self._relocations if each.kind in _SLOTS)
        words: list[str | _Symbol] = [*called, *slots]
        self._words = {word: end + _WORD_BYTES * at for at, word in enumerate(words)}
        self._size = _up(end + _WORD_BYTES * len(words), PAGE)
        self._content = bytearray(self._size)

    def image(self, prefix: str, names: Sequence[str]) -> Image:
        """The image with all that can be filled in now. Raises ImageError."""
        for number, place in self._places.items():
            section = self._sections[number]
            if section.type != _ZEROS:
                content = self._data[section.offset : section.offset + section.size]
                self._content[place : place + len(content)] = content
        for name, stub in self._stubs.items():
            distance = self._words[name] - (stub + len(_JUMP) + 4)
            self._content[stub : stub + 6] = _JUMP + struct.pack("<i", distance)
        for word, at in self._words.items():
            self._fill(at, word)
        for each in self._relocations:
            self._relocate(self._places[each.section] + each.offset, each)
        for symbol in self._symbols:
            if symbol.name.startswith(_POINTERS) and symbol.section in self._places:
                self._import(symbol.name.removeprefix("__"), self._address(symbol))
        exported = {s.name: s for s in self._symbols if s.section in self._places}
        try:
            functions = {name: self._address(exported[prefix + name]) for name in names}
        except KeyError as missing:
            raise ImageError(f"no function {missing}") from missing
        content = bytes(self._content).rstrip(b"\0")
        return Image(content, self._writable, self._size, functions, tuple(self._imports), tuple(self._moved))

    def _read_symbols(self) -> Iterator[_Symbol]:
        tables = [each for each in self._sections if each.type == _SYMBOLS]
        if len(tables) != 1:
            raise ImageError(f"{len(tables)} tables of symbols")
        strings = self._sections[tables[0].link]
        for at in range(tables[0].offset, tables[0].offset + tables[0].size, _SYMBOL.size):
            name_at, _, _, section, value, _ = _SYMBOL.unpack_from(self._data, at)
            start = strings.offset + name_at
            name = self._data[start : self._data.index(b"\0", start)].decode()
            yield _Symbol(name, section, value)

    def _read_relocations(self) -> Iterator[_Relocation]:
        """The relocations of sections that are kept."""
        for table in self._sections:
            if table.type != _RELA or not self._sections[table.info].kept:
                continue
            for at in range(table.offset, table.offset + table.size, _RELOCATION.size):
                offset, about, added = _RELOCATION.unpack_from(self._data, at)
                yield _Relocation(table.info, offset, about & 0xFFFFFFFF, self._symbols[about >> 32], added)

    def _place(self, end: int, *, writable: bool) -> int:
        """Place the kept sections that are written, or those that are not; where they end."""
        for number, section in enumerate(self._sections):
            if not section.kept or bool(section.flags & _WRITE) != writable:
                continue
            if section.flags & _THREAD_LOCAL:
                raise ImageError("data of threads")
            if section.align > PAGE:
                raise ImageError(f"a section at multiples of {section.align} bytes")
            self._places[number] = _up(end, max(section.align, 1))
            end = self._places[number] + section.size
        return end

    def _address(self, symbol: _Symbol) -> int:
        if symbol.section not in self._places:
            raise ImageError(f"{symbol.name or 'a symbol'} is not in memory")
        return self._places[symbol.section] + symbol.value

    def _import(self, name: str, at: int) -> None:
        if not self._known(name):
            raise ImageError(f"it needs {name}")
        self._imports.append((name, at))

    def _fill(self, at: int, what: str | _Symbol) -> None:
        """Let the word at that offset hold the address of a function that is called, or of a symbol."""
        if isinstance(what, str) or what.section == _NOWHERE:
            self._import(what if isinstance(what, str) else what.name, at)
        else:
            self._word(at, self._address(what))

    def _word(self, at: int, address: int) -> None:
        self._content[at : at + _WORD_BYTES] = struct.pack("<Q", address)
        self._moved.append(at)

    def _relocate(self, at: int, about: _Relocation) -> None:
        kind, symbol, added = about.kind, about.symbol, about.added
        if kind == _CALL and symbol.section == _NOWHERE:
            self._near(at, self._stubs[symbol.name] + added)
        elif kind in _SLOTS:
            self._near(at, self._words[symbol] + added)
        elif kind == _WORD and symbol.section != _NOWHERE:
            self._word(at, self._address(symbol) + added)
        elif kind in (_NEAR, _CALL):
            self._near(at, self._address(symbol) + added)
        elif kind == _FAR:
            self._content[at : at + _WORD_BYTES] = struct.pack("<q", self._address(symbol) + added - at)
        else:
            raise ImageError(f"relocation {kind} of {symbol.name or 'a section'}")

    def _near(self, at: int, target: int) -> None:
        self._content[at : at + 4] = struct.pack("<i", target - at)


def _up(offset: int, multiple: int) -> int:
    return -(-offset // multiple) * multiple


LAUNCH = "TVMBackendParallelLaunch"
"""What code calls for a parallel loop."""
_READ, _EXECUTE = 1, 4
_OURS: Mapping[str, str] = {
    LAUNCH: "collage_parallel_launch",
    "TVMBackendAllocWorkspace": "collage_take_workspace",
    "TVMBackendFreeWorkspace": "collage_give_workspace",
    "TVMFFIErrorSetRaisedFromCStrParts": "collage_nothing",
}
"""Functions of TVM's runtime, and those of the native core that do the same. What a kernel's code finds wrong with its
arguments is known before it is called, so that nobody reads the text of the error."""
_LIBRARIES = ("libm.so.6", "libc.so.6")


@dataclass(frozen=True, eq=False)
class Mapped:
    """An image in memory, which is there as long as this object lives, and the addresses of its functions."""

    memory: mmap.mmap
    addresses: Mapping[str, int]


@cache
def instruction_sets() -> frozenset[str]:
    """The instruction sets of this CPU that compiled code may use."""
    try:
        return compiled_for(Path("/proc/cpuinfo").read_text())
    except OSError:
        return frozenset()


def usable_sets() -> frozenset[str]:
    """Those of them that code may use in this process."""
    left_out = ("avx512", "amx") if leaves_out_avx512() else ()
    return frozenset(each for each in instruction_sets() if not each.startswith(left_out))


def is_known(name: str) -> bool:
    """Whether an image may call the function: one of C's library, or one that the native core has."""
    return name in _OURS or bool(_of_c(name))


def map_image(image: Image) -> Mapped:
    """The image in memory. It needs the native core. Raises OSError, and ValueError for an unknown function."""
    memory = mmap.mmap(-1, image.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(image.content)] = image.content
    held = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(held)
    del held  # else the memory could never be closed
    for name, at in image.imports:
        memory[at : at + 8] = struct.pack("<Q", _address(name))
    for at in image.moved:
        (offset,) = struct.unpack("<Q", memory[at : at + 8])
        memory[at : at + 8] = struct.pack("<Q", base + offset)
    if _protect()(base, image.writable, _READ | _EXECUTE):
        error = ctypes.get_errno()
        raise OSError(error, "memory cannot be made executable")
    return Mapped(memory, {name: base + offset for name, offset in image.functions.items()})


def _address(name: str) -> int:
    if name in _OURS:
        return address_of(getattr(core(), _OURS[name]))
    found = _of_c(name)
    if not found:
        raise ValueError(f"there is no function {name} here")
    return found


@cache
def _of_c(name: str) -> int:
    """The address of a function of C's library; 0 if it has none of that name."""
    for library in _LIBRARIES:
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


@cache
def _protect() -> Callable[[int, int, int], int]:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return protect
