"""What the cache holds of a kernel's weights in its network, and how to have it in the same state for timing.

A kernel called in a loop finds its weights in the cache. In the network it finds there what its neighbours' weights
have left. That is nothing where the network's weights exceed the last-level cache (53 convolutions that sum to 27.5 ms
in loops take 32 ms in sequence), and everything where they do not. So a kernel is timed in turn with others like it,
with weights of their own, among as many bytes as the network has.
"""

from __future__ import annotations

from collage.core.memory import last_level_cache
from collage.frontend.subgraph import Subgraph

_SMALL_BYTES = 256 << 10
"""Below this size, weights that are not in the cache cost less than the noise."""
_LEAST_BYTES = 1 << 20
_MOST_INSTANCES = 16
MOST_BYTES = 256 << 20
"""A race holds kernels with so many bytes of weights at most. More of them race in heats."""
_LOADING_S = 5.0


def weight_bytes(subgraph: Subgraph) -> int:
    """Bytes of the subgraph's constants."""
    return sum(array.nbytes for array in subgraph.weights.values())


def weights_among(subgraph: Subgraph) -> int:
    """Among how many bytes of weights the subgraph's weights are used in its network.

    It is a power of two, so that networks of about the same size share measurements, and at most twice the last-level
    cache. It is 0 where the size does not matter, since the weights are few, or too many to be in the cache at all.
    """
    own, cached = weight_bytes(subgraph), last_level_cache()
    if not _SMALL_BYTES <= own < cached:
        return 0
    network = max(_LEAST_BYTES, subgraph.model.network_bytes)
    return min(2 * cached, 1 << (network - 1).bit_length())


def instance_count(weights: int, among: int, cached: int, load_s: float) -> int:
    """How many instances to rotate of a kernel with that many bytes of weights that loads in ``load_s`` seconds.

    ``among`` is what ``weights_among`` returned, and ``cached`` is the size of the last-level cache in bytes. Where
    ``among`` is larger, the instances fill twice the cache, which does not forget strictly by age.
    """
    if not among:
        return 1
    wanted = 2 * cached // weights if among > cached else max(1, among // weights)
    affordable = min(_MOST_INSTANCES, 1 + MOST_BYTES // weights, 1 + int(_LOADING_S / max(load_s, 1e-6)))
    return min(wanted, affordable)
