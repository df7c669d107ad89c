"""Builds the native core and Collage's own kernels; everything else is in pyproject.toml."""

from copy import copy
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WARNINGS = ["-Wall", "-Wextra"]
KERNELS = "collage/native/kernels"
# Built once more for processors that have AVX2 but no AVX-512; lanes.h tells how.
AVX2_TOO = (
    *("isa", "attention", "bf16_gemm", "direct_conv", "expert_gemm", "expert_gemm_bf16", "expert_gemm_int8"),
    *("finish", "gemm", "int8_gemm", "lstm", "narrow_transposed", "shallow_conv", "soft_trees", "table"),
    *("top_k", "winograd"),
)


class BuildApart(build_ext):
    """Builds extensions side by side, each in a folder of its own: two have objects of the same name."""

    def build_extension(self, ext):
        apart = copy(self)
        apart.build_temp = str(Path(self.build_temp, ext.name))
        build_ext.build_extension(apart, ext)


# Without a compiler Collage installs all the same; `collage doctor` says what is missing.
setup(
    cmdclass={"build_ext": BuildApart},
    data_files=[("share/man/man1", ["docs/man/collage.1"])],  # `scripts/docs --man` writes it
    options={"build_ext": {"parallel": True}},  # _kernels and _kernels_avx2 take a minute each
    ext_modules=[
        Extension(
            "collage.native._core",
            [f"collage/native/{name}.cpp" for name in ("core", "tasks", "blas", "workspace")],
            depends=[f"collage/native/{name}.h" for name in ("core", "work_sharing", "ticket_lock", "wait", "blas")],
            extra_compile_args=["-std=c++17", "-O2", *WARNINGS, "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
        Extension(
            "collage.native._call",
            ["collage/native/call.cpp"],
            depends=["collage/native/core.h", f"{KERNELS}/table.h"],
            extra_compile_args=["-std=c++17", "-O2", *WARNINGS, "-Wno-missing-field-initializers"],
            optional=True,
        ),
        Extension(
            "collage.native._search",
            ["collage/native/search/cover.cpp", "collage/native/search/pipeline.cpp"],
            depends=["collage/native/search/cover.h", "collage/native/search/pipeline.h"],
            extra_compile_args=["-std=c++17", "-O3", *WARNINGS],
            optional=True,
        ),
        Extension(
            "collage.native._kernels",
            sorted(glob(f"{KERNELS}/*.cpp")),
            depends=sorted(glob(f"{KERNELS}/*.h")),
            extra_compile_args=["-std=c++17", "-O3", "-g0", *WARNINGS],
            optional=True,
        ),
        Extension(
            "collage.native._kernels_avx2",
            [f"{KERNELS}/{name}.cpp" for name in AVX2_TOO],
            depends=sorted(glob(f"{KERNELS}/*.h")),
            define_macros=[("COLLAGE_AVX2", "1")],
            extra_compile_args=["-std=c++17", "-O3", "-g0", *WARNINGS],
            optional=True,
        ),
    ],
)
