"""The built-in backend that makes layout transforms, and the choice of a backend for a transform.

A transform is needed where one kernel gives a value in another layout than the next one takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage.backends.base import LAYOUT, Availability, Backend, BackendKind, UnsupportedError
from collage.graph.storage import (
    BF16_STORAGES,
    BLOCKED_BF16,
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    FORMATS,
    PLAIN,
    PLAIN_BF16,
    STORAGES,
    is_narrow,
    steps_of,
    widened,
)
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform, read_transform

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource

log = logging.getLogger(__name__)

_AROUND_STEPS = {
    PLAIN: (PLAIN, PLAIN_BF16),
    CHANNELS_LAST: (*STORAGES, CHANNELS_LAST_BF16, BLOCKED_BF16),
}
"""The storages that values of 8 bits are converted from and to, by the order of their elements."""


class LayoutTransforms(Backend):
    """oneDNN's reorders on Collage's team, between the formats that are always there, on the host."""

    name = LAYOUT
    kind = BackendKind.LIBRARY

    def available(self) -> Availability:
        """Available where oneDNN is. Without it, kernels that differ in these formats cannot be combined."""
        from collage.backends.onednn import OneDnn

        return OneDnn().available()

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The backend is offered nothing, since no operator of a model changes a layout."""
        return ()

    def on_team(self) -> bool:
        """Layout transforms always run on the team."""
        return True

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Raises UnsupportedError: it makes transforms only (see ``codegen_transform``)."""
        raise UnsupportedError("layout transforms stand between operators")

    def transforms(self, transform: LayoutTransform) -> bool:
        """Whether both storages are built in, or one has steps of 8 bits and the other one is built in.

        To and from bfloat16 the order changes, too, only if one side is plain.

        Each transform that a model may need is measured, and the others would be hundreds that no placement needs.
        """
        ends = {transform.source, transform.target}
        if steps := [each for each in ends if steps_of(each) is not None]:
            around = _AROUND_STEPS.get(widened(steps[0]), ())
            return len(steps) == 1 and ends <= {*around, *steps}
        if not ends <= {*STORAGES, *BF16_STORAGES}:
            return False
        mixed = is_narrow(transform.source) != is_narrow(transform.target)
        return not mixed or PLAIN in ends or widened(transform.source) == widened(transform.target)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """The same as ``load_transform``, since it makes nothing but transforms."""
        return self.load_transform(artifact, options)

    def load_transform(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A kernel that is split over the team's threads. Raises ValueError for what is no transform."""
        from collage.backends.onednn_kernels.reorder import reorder_kernel

        found = read_transform(artifact, FORMATS)
        if not self.transforms(found):
            raise ValueError(f"no transform {found} on the host")
        return reorder_kernel(found.kind, found.source, found.target, options.threads)


def maker_of(transform: LayoutTransform, backends: Mapping[str, Backend]) -> Backend | None:
    """The first of the backends that makes the layout transform, or None."""
    for name, backend in backends.items():
        try:
            if backend.transforms(transform):
                return backend
        except Exception as error:  # a plug-in's own code may raise anything
            log.warning("%s: %s: %s: %s", name, transform, type(error).__name__, error)
    return None
