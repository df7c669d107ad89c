"""The blocks of the cache of keys and values: who uses which, and which hold prefixes that are worth keeping."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain

from collage.errors import CollageError

_KEY_BYTES = 16
_ROOT_BYTES = 32
_PERSON = b"collage salt"


class OutOfBlocksError(CollageError):
    """The pool has too few free blocks. The scheduler counts them before, so this is a fault of ours."""


def root_key(salt: str) -> bytes:
    """What stands for the block before the first one, for requests with this salt. It has another size than a key.

    A salt as it comes could be the key of another's prefix, and blocks behind it would be found behind that prefix.
    """
    text = salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_ROOT_BYTES, person=_PERSON).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full block: a hash of its tokens and of the key of the block before it, so of its whole prefix.

    ``parent`` is that key, or for the first block a ``root_key``. The hash is a cryptographic one, because whoever can
    make two prefixes collide reads the answers to another's.
    """
    return blake2b(parent + struct.pack(f"{len(tokens)}q", *tokens), digest_size=_KEY_BYTES).digest()


class BlockPool:
    """Counts the users of each block. A full block with a key stays in the cache after its last user has gone.

    A block is in one of three states: used (by at least one sequence), kept (by nobody, but found by its key), or
    empty. Kept blocks are handed out again, the least recently used first, when no empty one is left.

    With ``shares``, as many processes hold the cache, and block b is in share b % shares. A sequence gets its blocks
    from all shares in turn, so that each process has the same part of its attention to compute.

    ``free`` is the number of blocks that can be handed out: the empty ones, and those that are only kept.
    """

    def __init__(self, count: int, *, keep: bool = True, shares: int = 1) -> None:
        """A pool of ``count`` blocks with the ids 0 to count - 1. Without ``keep``, no block is found by its key."""
        self.count = count
        self.free = count
        self.keeps = keep
        self._empty = [list(range(count - 1 - (count - 1 - i) % shares, -1, -shares)) for i in range(shares)]
        self._users = [0] * count
        self._key_of: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}
        self._kept: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(shares)]
        self.evictions = 0

    @property
    def used(self) -> int:
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
                del self._kept[block % len(self._kept)][block]
                self.free -= 1
            self._users[block] += 1

    def allocate(self, count: int, before: Sequence[int] = ()) -> list[int]:
        """Hand out blocks with one user each, for a sequence that has the blocks ``before``.

        Each comes from the share that has the fewest of the sequence's, and of these the one that has the most free
        blocks. Raises OutOfBlocksError, and hands out none, when there are too few.
        """
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks of the cache were asked for, and {self.free} are free.")
        self.free -= count
        shares = range(len(self._empty))
        if len(shares) == 1:
            return [self._taken(0) for _ in range(count)]
        held = Counter(block % len(shares) for block in before)
        found = []
        for _ in range(count):
            share = min((i for i in shares if self._free_in(i)), key=lambda i: (held[i], -self._free_in(i)))
            held[share] += 1
            found.append(self._taken(share))
        return found

    def _free_in(self, share: int) -> int:
        return len(self._empty[share]) + len(self._kept[share])

    def _taken(self, share: int) -> int:
        empty = self._empty[share]
        block = empty.pop() if empty else self._evicted(share)
        self._users[block] = 1
        return block

    def _evicted(self, share: int) -> int:
        block, _ = self._kept[share].popitem(last=False)
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
                self.free += 1
                share = block % len(self._empty)
                if block in self._key_of:
                    self._kept[share][block] = None
                else:
                    self._empty[share].append(block)

    def check(self, users: Iterable[Sequence[int]]) -> None:
        """Assert that the pool is consistent, and that its blocks are used by exactly these sequences' lists."""
        expected = [0] * self.count
        for blocks in users:
            for block in blocks:
                expected[block] += 1
        assert self._users == expected, "the counts of users are not those of the sequences"
        kept, empty = list(chain(*self._kept)), list(chain(*self._empty))
        idle = [*empty, *kept]
        assert len(set(idle)) == len(idle) == self.free, "a block is free twice"
        assert set(idle) == {b for b in range(self.count) if not expected[b]}, "a block has leaked"
        assert {b: k for k, b in self._by_key.items()} == self._key_of
        assert set(kept) <= set(self._key_of)
        assert not set(empty) & set(self._key_of)
        for share, both in enumerate(zip(self._empty, self._kept, strict=True)):
            assert all(block % len(self._empty) == share for block in chain(*both))
