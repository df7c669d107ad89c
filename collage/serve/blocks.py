"""The blocks of the cache of keys and values: who uses which, and which hold prefixes that are worth keeping."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from collage.errors import CollageError

_KEY_BYTES = 16


class OutOfBlocksError(CollageError):
    """The pool has too few free blocks. The scheduler counts them before, so this is a fault of ours."""


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full block: a hash of its tokens and of the key of the block before it, so of its whole prefix.

    The hash is a cryptographic one, because whoever can make two prefixes collide reads the answers to another's.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


class BlockPool:
    """Counts the users of each block. A full block with a key stays in the cache after its last user has gone.

    A block is in one of three states: used (by at least one sequence), kept (by nobody, but found by its key), or
    empty. Kept blocks are handed out again, the least recently used first, when no empty one is left.
    """

    def __init__(self, count: int, *, keep: bool = True) -> None:
        """A pool of ``count`` blocks with the ids 0 to count - 1. Without ``keep``, no block is found by its key."""
        self.count = count
        self.keeps = keep
        self._empty = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._key_of: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0

    @property
    def free(self) -> int:
        """The number of blocks that can be handed out: the empty ones, and those that are only kept."""
        return len(self._empty) + len(self._kept)

    @property
    def used(self) -> int:
        """The number of blocks that sequences use."""
        return self.count - self.free

    def lookup(self, keys: Iterable[bytes]) -> tuple[tuple[int, ...], int]:
        """The blocks of the longest known prefix of a chain of keys, and how many of them are free now."""
        found: list[int] = []
        free = 0
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
            free += not self._users[block]
        return tuple(found), free

    def sole(self, blocks: Iterable[int]) -> int:
        """How many of these blocks have one user only, and so are free when that user releases them."""
        return sum(self._users[block] == 1 for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Count one more user of each of these used or kept blocks."""
        for block in blocks:
            if not self._users[block]:
                del self._kept[block]
            self._users[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out blocks with one user each. Raises OutOfBlocksError, and hands out none, when there are too few."""
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks of the cache were asked for, and {self.free} are free.")
        found = [self._empty.pop() if self._empty else self._evicted() for _ in range(count)]
        for block in found:
            self._users[block] = 1
        return found

    def _evicted(self) -> int:
        block, _ = self._kept.popitem(last=False)
        del self._by_key[self._key_of.pop(block)]
        self.evictions += 1
        return block

    def register(self, block: int, key: bytes) -> None:
        """Let a used block that is full and computed be found by its key. The first block with a key stays the one."""
        if self.keeps and key not in self._by_key and block not in self._key_of:
            self._by_key[key] = block
            self._key_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Count one user less of each block. A sequence's last blocks are evicted first: its prefix is used more."""
        for block in reversed(blocks):
            self._users[block] -= 1
            assert self._users[block] >= 0, f"block {block} was released twice"
            if not self._users[block]:
                if block in self._key_of:
                    self._kept[block] = None
                else:
                    self._empty.append(block)

    def check(self, users: Iterable[Sequence[int]]) -> None:
        """Assert that the pool is consistent, and that its blocks are used by exactly these sequences' lists."""
        expected = [0] * self.count
        for blocks in users:
            for block in blocks:
                expected[block] += 1
        assert self._users == expected, "the counts of users are not those of the sequences"
        idle = [*self._empty, *self._kept]
        assert len(set(idle)) == len(idle), "a block is free twice"
        assert set(idle) == {b for b in range(self.count) if not expected[b]}, "a block has leaked"
        assert {b: k for k, b in self._by_key.items()} == self._key_of
        assert set(self._kept) <= set(self._key_of)
        assert not set(self._empty) & set(self._key_of)
