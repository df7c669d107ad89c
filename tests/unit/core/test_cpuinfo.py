"""CPUs are told apart by what /proc/cpuinfo says of them; x86's fingerprints stay as databases hold them."""

from __future__ import annotations

import itertools

import pytest

from collage.core.cpuinfo import cpu_flags, describe_cpu, precisions_of

N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
V1 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 "
    "sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
)
A72 = "fp asimd evtstrm crc32 cpuid"
A76 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
APPLE = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
    "asimddp sha512 asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp flagm2 frint"
)


def arm(
    cores: int,
    features: str,
    bogomips: str,
    part: str,
    implementer: str = "0x41",
    model: str = "0x3:1",
    first: int = 0,
) -> str:
    """Paragraphs as arm64 kernels write them."""
    variant, _, revision = model.partition(":")
    return "".join(
        f"processor\t: {first + core}\nBogoMIPS\t: {bogomips}\nFeatures\t: {features}\n"
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: {variant}\nCPU part\t: {part}\n"
        f"CPU revision\t: {revision}\n\n"
        for core in range(cores)
    )


GRAVITON_2 = arm(4, N1, "243.75", "0xd0c")
M1_EFFICIENT = arm(4, APPLE, "48.00", "0x022", "0x61", "0x1:1")
ARM = {
    "Graviton 2": GRAVITON_2,
    "Graviton 3": arm(4, V1, "2100.00", "0xd40", model="0x1:1"),
    "Ampere Altra": arm(80, N1, "50.00", "0xd0c"),
    "AmpereOne": arm(8, V1, "2000.00", "0xac3", "0xc0", "0x0:0"),
    "Apple M1": M1_EFFICIENT + arm(4, APPLE, "48.00", "0x023", "0x61", "0x1:1", first=4),
    "Apple M1, as a guest with slow cores": M1_EFFICIENT,
    "Apple M2": arm(4, APPLE, "48.00", "0x032", "0x61", "0x1:0")
    + arm(4, APPLE, "48.00", "0x033", "0x61", "0x1:0", first=4),
    "Raspberry Pi 4": arm(4, A72, "108.00", "0xd08", model="0x0:3")
    + "Revision\t: c03114\nSerial\t\t: 10000000abcdef01\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
    "Raspberry Pi 5": arm(4, A76, "108.00", "0xd0b", model="0x4:1")
    + "Revision\t: d04170\nSerial\t\t: 0123456789abcdef\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n",
}
RISCV = {
    "VisionFive 2": (
        "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb\nmmu\t\t: sv39\n"
        "uarch\t\t: sifive,u74-mc\nmvendorid\t: 0x489\nmarchid\t\t: 0x8000000000000007\nmimpid\t\t: 0x4210427\n\n"
    ),
    "SpacemiT K1": (
        "processor\t: 0\nhart\t\t: 0\nmodel name\t: Spacemit(R) X60\nisa\t\t: rv64imafdcv_zicbom_zicboz_zba_zbb\n"
        "mmu\t\t: sv39\nmvendorid\t: 0x710\nmarchid\t\t: 0x8000000058000001\nmimpid\t\t: 0x1000000049772200\n\n"
    ),
}
AMD = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"
    "model name\t: AMD EPYC 7763 64-Core Processor\nstepping\t: 1\nmicrocode\t: 0xa0011d1\ncpu MHz\t\t: 2445.404\n"
    "flags\t\t: fpu vme de pse sse sse2 ht pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 avx f16c avx2 vaes\n"
    "bogomips\t: 4890.80\n\n"
)
INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
    "model name\t: Intel(R) Xeon(R) Platinum 8488C\nstepping\t: 8\nmicrocode\t: 0x2b000590\ncpu MHz\t\t: 2400.000\n"
    "flags\t\t: fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx f16c avx2 avx512f avx512dq avx512bw avx512vl avx_vnni "
    "avx512_bf16 amx_bf16 amx_tile amx_int8\nbogomips\t: 4800.00\n\n"
)


def of(text: str, machine: str = "aarch64") -> tuple[str, str]:
    return describe_cpu(text, lambda: machine)


@pytest.mark.parametrize(
    ("text", "device", "flags"),
    [
        (AMD, "AMD EPYC 7763 64-Core Processor, cpu family 25, model 1, stepping 1", "5263292c"),
        (INTEL, "Intel(R) Xeon(R) Platinum 8488C, cpu family 6, model 143, stepping 8", "fa5a5ecb"),
        ("", "x86_64", "e3b0c442"),
    ],
    ids=["AMD", "Intel", "no file"],
)
def test_x86_keeps_its_fingerprint(text: str, device: str, flags: str) -> None:
    """These are what the first version gave: databases and module files hold them."""
    assert of(text, "x86_64") == (device, flags)
    assert of(text + text.replace("processor\t: 0", "processor\t: 1"), "x86_64") == (device, flags)


def test_no_two_machines_are_the_same() -> None:
    found = {name: of(text) for name, text in ARM.items()}
    found |= {name: of(text, "riscv64") for name, text in RISCV.items()}
    for (a, one), (b, other) in itertools.combinations(found.items(), 2):
        assert one != other, (a, b)
        if "guest" not in a + b:
            assert one[0] != other[0], (a, b)


def test_what_says_nothing_of_the_speed_does_not_count() -> None:
    """Neither the number of cores, nor a board's serial number, nor what the kernel adds to the features."""
    assert of(GRAVITON_2) == of(arm(64, N1 + " bti", "243.75", "0xd0c"))
    pi = ARM["Raspberry Pi 4"]
    assert of(pi) == of(pi.replace("10000000abcdef01", "1000000012345678"))
    assert of(pi)[0] == "aarch64, 0x41 8 0xd08 0x0 3, timer 108.00"


def test_each_kind_of_core_counts_whatever_their_order() -> None:
    big, little = arm(2, A76, "38.40", "0xd0b"), arm(6, A76, "38.40", "0xd05")
    assert of(big + little) == of(little + big)
    assert len({of(big), of(little), of(big + little)}) == 3


def test_instruction_sets_count() -> None:
    assert of(GRAVITON_2)[1] != of(arm(4, N1 + " sve", "243.75", "0xd0c"))[1]
    text = RISCV["VisionFive 2"]
    assert of(text, "riscv64")[1] != of(text.replace("rv64imafdc_", "rv64imafdcv_"), "riscv64")[1]


@pytest.mark.parametrize(
    ("flags", "precisions"),
    [
        ("fpu avx2 fma avx512f avx512bw", set()),
        ("fpu avx2 fma avx512f avx512_vnni", {"int8"}),
        ("fpu avx512f avx512_bf16", {"bf16"}),
        ("fpu avx512f avx512_bf16 avx512_vnni", {"bf16", "int8"}),
        ("fpu avx512f amx_tile amx_bf16 amx_int8", {"bf16", "int8"}),
        ("", set()),
    ],
)
def test_instructions_for_reduced_precisions(flags: str, precisions: set[str]) -> None:
    text = f"processor\t: 0\nmodel name\t: made up\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n\n"
    assert cpu_flags(text) == {*flags.split()}
    assert precisions_of(cpu_flags(text)) == precisions
    assert cpu_flags("") == frozenset()
    assert "asimd" in cpu_flags(GRAVITON_2)
