"""Pages that move: the setting, pools, fixed memory, statistics and the summary."""

from __future__ import annotations

import pytest
import weir
from memory_tools import MIB, cleaned, settings  # noqa: F401

BLOCKS = 16
BLOCK = 24 * MIB


@pytest.fixture
def moving():
    with settings("moving_pages:True", "expandable_segments:False"):
        yield


def moved():
    return weir.memory_stats()["moving.pages_moved"]


def holes():
    """Returns the blocks that lie between free ones."""
    blocks = [weir.buffer(BLOCK) for _ in range(BLOCKS)]
    del blocks[::2]
    return blocks


def test_free_pages_serve_a_large_block(moving):
    assert "moving_pages:True" in weir.get_allocator_settings()
    kept = holes()
    for number, block in enumerate(kept):
        block.fill_(number)
    reserved, before = weir.memory_reserved(), moved()
    large = weir.buffer(BLOCKS // 2 * BLOCK).fill_(77)
    assert weir.memory_reserved() == reserved
    assert moved() > before
    for number, block in enumerate(kept):
        assert block.tobytes() == bytes([number]) * BLOCK
    assert large[-4:].tobytes() == b"MMMM"


def test_without_moving_pages():
    with settings("expandable_segments:True", "expandable_segments:False"):
        kept = holes()
        reserved, before = weir.memory_reserved(), moved()
        large = weir.buffer(BLOCKS // 2 * BLOCK)
        assert weir.memory_reserved() > reserved
        assert moved() == before
        del kept, large


def test_statistics(moving):
    names = ["pages_made", "pages_moved", "moved_bytes", "pages_returned", "aliases", "aliases_peak"]
    names += ["aliases_unmapped", "unmovable_partial_bytes", "unmovable_fixed_bytes", "unmovable_busy_bytes"]
    names += ["unmovable_pool_bytes"]
    flat = weir.memory_stats()
    assert [key for key in flat if key.startswith("moving.")] == sorted(f"moving.{name}" for name in names)
    kept = holes()
    large = weir.buffer(BLOCKS // 2 * BLOCK)
    flat, nested = weir.memory_stats(), weir.memory_stats_as_nested_dict()
    assert nested["moving"] == {name: flat[f"moving.{name}"] for name in names}
    assert flat["moving.moved_bytes"] >= MIB * flat["moving.pages_moved"] > 0
    assert 0 < flat["moving.aliases"] <= flat["moving.aliases_peak"]
    del kept, large


def test_summary(moving):
    kept = holes()
    large = weir.buffer(BLOCKS // 2 * BLOCK)
    lines = weir.memory_summary().splitlines()
    stats = weir.memory_stats()
    assert lines[-3].startswith(f"| Pages: {stats['moving.pages_made']} made, {stats['moving.pages_moved']} moved (")
    assert lines[-2].startswith(f"| Old mappings: {stats['moving.aliases']} kept (at most ")
    assert {len(line) for line in lines} == {77}
    del kept, large


@pytest.mark.parametrize("by_address", [False, True])
def test_fixed_pages_stay(moving, by_address):
    blocks = [weir.buffer(BLOCK) for _ in range(BLOCKS)]
    for block in blocks[::2]:
        weir.fix_pages(block.pointer if by_address else block[8:16])
    del block, blocks[::2]
    reserved, before = weir.memory_reserved(), moved()
    large = weir.buffer(BLOCKS // 2 * BLOCK)
    assert moved() == before
    assert weir.memory_reserved() > reserved
    assert weir.memory_stats()["moving.unmovable_fixed_bytes"] > 0
    del blocks, large


def test_what_cannot_be_fixed():
    with pytest.raises(ValueError, match="needs device memory"):
        weir.fix_pages(weir.host_empty(64))
    with pytest.raises(ValueError, match="invalid device pointer"):
        weir.fix_pages(12345)
    with pytest.raises(TypeError):
        weir.fix_pages("memory")
    weir.fix_pages(weir.buffer(64))  # memory that never moves


@pytest.mark.parametrize("moves", [False, True])
def test_pages_of_a_pool(moving, moves):
    pool = weir.MemPool(moving_pages=moves)
    before = moved()
    with weir.use_mem_pool(pool):
        kept = holes()
        reserved = weir.memory_reserved()
        large = weir.buffer(BLOCKS // 2 * BLOCK)
    assert (moved() > before) == moves
    assert (weir.memory_reserved() == reserved) == moves
    del kept, large, pool


def test_the_option_is_named():
    with pytest.raises(TypeError):
        weir.MemPool(None, False, False, True)
