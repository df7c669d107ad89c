"""Whether iterations are much faster than when the decoder was compiled. Then they are measured again.

The scheduler chooses sizes of iterations by these times. A compile beside other work may have measured several times as
much, and not of all sizes alike: prompts would be computed in small pieces for as long as the file is used. Where
iterations are slower now, other work may be the reason, and the times of the file are the better ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from collage.serve.decoder.costs import measured_ms, streams_ms

if TYPE_CHECKING:
    from collage.serve.decoder.runner import DecoderRunner

logger = logging.getLogger(__name__)

_FASTER, _FASTER_MS = 1.5, 1.0
"""So many times as fast, and so many milliseconds less, are more than a machine's noise."""
_LOOKS, _SAMPLES = 3, 5
_MOST_LOOKED_AT = 32
"""A look takes iterations of the smallest bucket, and of the largest one up to so many tokens."""


def use_todays_costs(runner: DecoderRunner) -> bool:
    """Measure the times of iterations again where a look shows shorter ones. Returns whether that was done.

    The runner must be idle, and its cache empty. It takes a dozen iterations of few tokens to look.
    """
    few = [each for each in runner.buckets if each <= _MOST_LOOKED_AT]
    known_ms = {each: runner.cost_ms(each) for each in {runner.buckets[0], *few[-1:]}}
    now_ms = {each: streams_ms(runner, each, _LOOKS) for each in sorted(known_ms)}
    gains = [known_ms[each] > max(_FASTER * ms, ms + _FASTER_MS) for each, ms in now_ms.items()]
    if not any(gains):
        return False
    found = " and ".join(f"{ms:.1f} ms for {each} tokens" for each, ms in now_ms.items())
    before = " and ".join(f"{known_ms[each]:.1f}" for each in now_ms)
    logger.warning(
        "iterations take %s, and took %s when the decoder was compiled, perhaps beside other work: "
        "they are measured again for this server. Compile it once more on a quiet machine to spare that.",
        *(found, before),
    )
    runner.set_costs({}, {})
    runner.set_costs(*measured_ms(runner, runner.buckets, _SAMPLES))
    return True
