"""Storage formats of a backend's own, and the layout transforms that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.graph.formats import StorageFormat
from collage.graph.storage import FORMATS, HOST
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.kernel.transform import FormatKernel, LayoutTransform, read_transform, transform_artifact


class TransformMaker:
    """The part of a backend that concerns storages. By default it has no format of its own and makes no transform."""

    def formats(self) -> Sequence[StorageFormat]:
        """Storage formats that it adds to the built-in ones; ``variants`` may take and give values in them.

        No other format may have their names. There are none by default.
        """
        return ()

    def transforms(self, transform: LayoutTransform) -> bool:
        """Whether it makes that layout transform, as a kernel between two others.

        By default it makes those in the host's memory that begin or end in a format of its own. A backend that has
        storages on another device says here that it copies there and back.
        """
        ends = transform.source, transform.target
        own = self.formats()
        return (
            any(end.format in own for end in ends)
            and all(end.format in (*FORMATS, *own) for end in ends)
            and all(end.device == HOST for end in ends)
        )

    def codegen_transform(self, transform: LayoutTransform, options: BuildOptions) -> bytes:
        """An artifact of the transform for ``load_transform``. Raises like ``Backend.codegen``."""
        return transform_artifact(transform)

    def load_transform(self, artifact: Any, options: BuildOptions) -> Kernel:
        """Make the kernel of a layout transform, with one input and one output, which are stored as it says.

        By default it is one that calls the formats' own functions, in numpy. A backend that has a faster kernel
        implements this method and ``codegen_transform``.
        """
        return FormatKernel(read_transform(artifact, (*FORMATS, *self.formats())))
