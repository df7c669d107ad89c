"""The pool of blocks: counts, prefixes, eviction, no leak."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.serve.blocks import BlockPool, OutOfBlocksError, block_key, root_key

COUNT = 8

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 5)),
        st.tuples(st.just("share"), st.integers(0, 20)),
        st.tuples(st.just("register"), st.integers(0, 20)),
        st.tuples(st.just("release"), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.booleans(), st.integers(1, 4))
def test_blocks_do_not_leak(operations: list[tuple[str, int]], keep: bool, shares: int) -> None:
    """Whatever happens, each block is used by those that the pool says, or free once."""
    pool = BlockPool(COUNT, keep=keep, shares=shares)
    held: list[list[int]] = []
    names = iter(range(1000))
    for name, number in operations:
        if name == "allocate":
            if number > pool.free:
                with pytest.raises(OutOfBlocksError):
                    pool.allocate(number)
            else:
                held.append(pool.allocate(number))
                assert len(set(held[-1])) == number
        elif held:
            chosen = held[number % len(held)]
            if name == "share":
                pool.acquire(chosen)
                held.append(list(chosen))
            elif name == "register":
                for block in chosen:
                    pool.register(block, str(next(names)).encode())
            else:
                pool.release(held.pop(number % len(held)))
        pool.check(held)
        assert pool.used + pool.free == COUNT
    for blocks in held:
        pool.release(blocks)
    pool.check([])
    assert pool.free == COUNT
    assert len(set(pool.allocate(COUNT))) == COUNT


@pytest.mark.parametrize("shares", [2, 3, 4])
def test_each_sequence_is_balanced_over_shares(shares: int) -> None:
    """Sequences that grow by a block at a time beside others have as many blocks in each share, or one more."""
    pool = BlockPool(60, shares=shares)
    sequences: list[list[int]] = [[] for _ in range(4)]
    for turn in range(12):
        for number, blocks in enumerate(sequences):
            blocks += pool.allocate(1 + (turn + number) % 2 if len(blocks) < 12 else 0, blocks)
    for turn in range(3):  # some leave, of which blocks are kept or not, and others come
        for number in (turn, 3):
            left = sequences[number]
            pool.register(left[0], f"{turn} {number}".encode())
            pool.release(left)
            sequences[number] = pool.allocate(5)
            sequences[number] += pool.allocate(6, sequences[number])
    for blocks in sequences:
        counts = [sum(block % shares == share for block in blocks) for share in range(shares)]
        assert max(counts) - min(counts) <= 1
    pool.check(sequences)


def test_a_share_without_free_blocks_is_passed_over() -> None:
    pool = BlockPool(8, shares=2)
    first = pool.allocate(8)
    pool.release([block for block in first if block % 2])
    assert all(block % 2 for block in pool.allocate(4))


def test_keys_are_of_the_whole_prefix() -> None:
    first = block_key(b"", [1, 2])
    assert first == block_key(b"", [1, 2])
    assert first != block_key(root_key("salt"), [1, 2])
    assert block_key(first, [3, 4]) != block_key(block_key(b"", [1, 5]), [3, 4])
    assert block_key(b"", [1, 2]) != block_key(b"", [2, 1])


def test_a_prefix_is_found_until_it_is_evicted() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    keys = [b"a", b"b", b"c"]
    for block, key in zip(blocks, keys, strict=True):
        pool.register(block, key)
    assert pool.lookup([*keys, b"d"]) == (tuple(blocks), 0)
    pool.release(blocks)
    assert pool.lookup(keys) == (tuple(blocks), 3)
    assert pool.lookup([b"x", b"b"]) == ((), 0)
    pool.allocate(2)  # the empty block and one kept block: the end of the sequence
    assert pool.lookup(keys) == (tuple(blocks[:2]), 2)
    assert pool.evictions == 1


def test_the_least_recently_used_prefix_goes_first() -> None:
    pool = BlockPool(2)
    old, new = pool.allocate(1), pool.allocate(1)
    pool.register(old[0], b"old")
    pool.register(new[0], b"new")
    pool.release(old)
    pool.release(new)
    pool.acquire(old)  # used again, so that "new" is the older one now
    pool.release(old)
    pool.allocate(1)
    assert pool.lookup([b"old"])[0] == tuple(old)
    assert pool.lookup([b"new"])[0] == ()
