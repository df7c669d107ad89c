"""How many blocks of the cache fit into memory."""

from __future__ import annotations

import re
from pathlib import Path

from collage.core.cgroup import spare_memory
from collage.core.memory import physical_bytes
from collage.errors import UsageError, unknown_names
from collage.serve.attention import BLOCK_TOKENS, CACHE_TYPES, Heads

_SHARE = 0.6
"""The share of the free memory that the cache takes by default."""
_MOST_SHARE = 0.95
"""The share that it may take when asked to: the rest of the process needs some, too."""
_OWN_SHARE = 0.25
"""The share of the free memory that a copy of the weights may take."""
_SEQUENCES = 64
"""The sequences of full length for which the default has room at most."""


def free_bytes(root: Path = Path("/")) -> int:
    """The memory that this process may still take, in bytes."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        found = None
    free = int(found[1]) << 10 if found else physical_bytes() // 2
    spare = spare_memory(root)
    return free if spare is None else min(free, spare)


def has_room_for_own(weight_bytes: int, free: int) -> bool:
    """Whether a process should read weights of so many bytes into memory of its own, of which ``free`` bytes are left.

    There they lie in huge pages, where iterations of few tokens are faster; the cache needs most of the memory.
    """
    return weight_bytes <= free * _OWN_SHARE


def block_bytes(heads: Heads, layers: int, cache: str, parts: int = 1) -> int:
    """The bytes of a block of the cache in all layers, where ``parts`` processes have such heads each.

    Raises UsageError for a type of the cache that there is not.
    """
    if cache not in CACHE_TYPES:
        raise unknown_names("type of the cache", [cache], CACHE_TYPES)
    return parts * layers * heads.block_bytes(cache)


def chosen_blocks(wanted: int | None, bytes_each: int, max_length: int, free: int) -> int:
    """The blocks of the cache: those that are wanted, or as many as make sense in the ``free`` bytes.

    Without a wish they hold at least one sequence of ``max_length`` tokens; those that are wanted may be fewer, and
    longer requests are refused then. Raises UsageError, with the largest number that fits, if there is no memory for
    them.
    """
    fit = int(free * _MOST_SHARE) // bytes_each
    least = -(-max_length // BLOCK_TOKENS)
    if wanted is None:
        wanted = max(least, min(int(free * _SHARE) // bytes_each, least * _SEQUENCES))
        if wanted > fit:
            raise UsageError(
                f"a sequence of {max_length} tokens takes {least} blocks of the cache, and at most {fit} fit into the "
                f"{free / 2**30:.1f} GiB of memory that are free for it: choose a smaller longest sequence."
            )
    if wanted > fit:
        raise UsageError(
            f"{wanted} blocks of the cache take {wanted * bytes_each / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            f"memory are free for them: ask for at most {fit} blocks."
        )
    if wanted < 1:
        raise UsageError(f"the cache needs at least one block, not {wanted}.")
    return wanted
