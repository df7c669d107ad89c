"""Numbers of a damaged artifact by which a kernel would count its own work wrongly, and leave its buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.core.typed import MalformedError
from collage.kernel.options import BuildOptions
from collage.native.packed import from_artifact, to_bytes
from tests.backends.native_checks import BACKEND, needs_native, subgraphs_of
from tests.compile.backends.test_native_winograd import conv_model

pytestmark = needs_native


@pytest.mark.parametrize("channels", [(3, 16), (16, 16), (64, 64)])
def test_more_work_than_can_be_counted(channels: tuple[int, int]) -> None:
    """A step of zero lets 2**62 - 2 pictures be in the place of one."""
    chain = subgraphs_of(conv_model(channels, [16, 16], [3, 3], pads=[1] * 4))[-1]
    seen = set()
    for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
        options = BuildOptions(threads=2, variant=variant)
        name, packed = from_artifact(BACKEND.codegen(chain, options))
        changed = {**packed.numbers, "batch": (1 << 62) - 2}
        for steps in ("from", "to"):
            if steps in changed:
                changed[steps] = [0, *changed[steps][1:]]
        if "to_batch" in changed:
            changed["to_batch"] = 0
        with pytest.raises(MalformedError, match="pieces of work are too many"):
            BACKEND.load(to_bytes(name, replace(packed, numbers=changed)), options)
        seen.add(name)
    assert seen
