"""The CPU as ``/proc/cpuinfo`` describes it: a name, and the instruction sets that decide a kernel's speed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence

_X86 = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512", "amx", "asimd", "sve", "bf16")
_ARM = ("asimd", "sve", "sme", "bf16", "i8mm", "fp", "fcma", "neon", "vfp", "half", "atomics")
_FEATURES = ("flags", "Features", "features", "isa")
_FLAG_LINES = ("flags", "Features")

_WHICH = (
    *("CPU implementer", "CPU architecture", "CPU part", "CPU variant", "CPU revision"),  # Arm
    *("uarch", "mvendorid", "marchid", "mimpid"),  # RISC-V
    *("cpu", "revision", "cpu model", "CPU Family", "Model Name", "machine"),  # POWER, MIPS, LoongArch, S/390
)
"""Fields that tell one kind of core from another where there are no ``flags``."""


def describe_cpu(text: str, machine: Callable[[], str]) -> tuple[str, str]:
    """The CPU's name and a hash of its instruction sets, from the text of the file.

    ``machine`` gives the architecture's name, for CPUs that have no name of their own. Where cores differ, as on
    phones, the name lists each kind, but not how many there are of each: the number of threads is recorded elsewhere.
    """
    cores = [*_cores(text)]
    first: dict[str, str] = {}
    for core in cores:
        first = {**core, **first}
    if "flags" in first or "cpu family" in first or not first:
        return _x86(first, machine)
    return _others(cores, first, machine)


def _x86(first: dict[str, str], machine: Callable[[], str]) -> tuple[str, str]:
    """The name and the hash on x86. Databases and module files hold them, so they are what the first version made."""
    names = [first.get("model name") or machine()]
    names += [f"{key} {first[key]}" for key in ("cpu family", "model", "stepping") if key in first]
    return ", ".join(names), _hash([f for f in first.get("flags", "").split() if f.startswith(_X86)])


ARITHMETIC = (
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
)
"""Flags of x86 that tell of arithmetic in fewer than 32 bits, which is several times as fast."""

_OF_PRECISION = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8"),
}
"""For each reduced precision, the flags of which one is needed. Without any of them it is emulated, and slower."""


def cpu_flags(text: str) -> frozenset[str]:
    """The names of the instruction sets, as the text of the file has them."""
    first = next((s for s in map(_fields, text.split("\n\n")) if any(name in s for name in _FLAG_LINES)), {})
    return frozenset(" ".join(first.get(name, "") for name in _FLAG_LINES).split())


_COMPILED = (
    *("sse", "pni", "ssse", "avx", "amx", "fma", "f16c", "bmi", "popcnt", "abm", "movbe", "adx"),
    *("gfni", "xop", "tbm"),
)


def compiled_for(text: str) -> frozenset[str]:
    """The names of the instruction sets that compilers use without being asked for each, from the text of the file."""
    return frozenset(flag for flag in cpu_flags(text) if flag.startswith(_COMPILED))


def precisions_of(flags: Container[str]) -> frozenset[str]:
    """The reduced precisions for which a CPU with these flags has instructions."""
    return frozenset(name for name, some in _OF_PRECISION.items() if any(each in flags for each in some))


def _others(cores: Sequence[dict[str, str]], first: dict[str, str], machine: Callable[[], str]) -> tuple[str, str]:
    """The name and the hash on other architectures: each kind of core and, on Arm, the timer's rate ("BogoMIPS").

    The timer tells Graviton 2 from Ampere's Altra; both have Arm's Neoverse N1 r3p1.
    """
    kinds = {" ".join(core[key] for key in _WHICH if core.get(key)) for core in cores}
    names = [first.get("model name") or machine(), *sorted(kinds - {""})]
    if "CPU implementer" in first and "BogoMIPS" in first:
        names.append(f"timer {first['BogoMIPS']}")
    features = {core[name] for core in cores for name in _FEATURES if core.get(name)}
    if "CPU implementer" in first:
        features = {" ".join(sorted(f for f in each.split() if f.startswith(_ARM))) for each in features}
    return ", ".join(names), _hash(features)


def _hash(found: Sequence[str] | set[str]) -> str:
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest()[:8]


def _cores(text: str) -> Sequence[dict[str, str]]:
    """The fields of each paragraph; a paragraph describes a core or the board."""
    return [_fields(paragraph) for paragraph in text.split("\n\n")]


def _fields(paragraph: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in paragraph.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields
