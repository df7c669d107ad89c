"""Builds the native core; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "collage.native._core",
            ["collage/native/core.cpp"],
            depends=["collage/native/core.h"],
            extra_compile_args=["-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,  # without a compiler Collage installs all the same; `collage doctor` says what is missing
        )
    ]
)
