"""The transitions of one block in proofs agree with the pool's, block by block."""

from collections.abc import Callable
from random import Random

import pytest

from checks.proofs.spyre import block_pool as pool
from checks.proofs.spyre.block_pool import Block, pool_stale, seen
from reference.core import block_pool
from spec.core.blocks import BlockPool
from tests.checks.command import lockstep

EPISODES, STEPS, SIZE = 60, 30, 5


def choices(found: BlockPool) -> dict[str, list[int]]:
    """The blocks to which each transition may happen."""
    held = sorted(found.references)
    return {
        "touch": sorted(found.keys),
        "allocate": list(found.free[:1]),
        "register": [block for block in held if block not in found.keys],
        "release": held,
    }


def happened(found: BlockPool, transition: str, block: int, key: bytes) -> BlockPool:
    match transition:
        case "touch":
            return block_pool.touch(found, [block])
        case "allocate":
            return block_pool.allocate(found, 1)[0]
        case "register":
            return block_pool.register(found, [block], [key])
    return block_pool.release(found, [block])


TOLD: dict[str, Callable[[Block], Block]] = {
    "touch": pool.touched,
    "allocate": pool.allocated,
    "register": pool.registered,
    "release": pool.released,
}


@pytest.mark.parametrize("episode", range(EPISODES))
def test_every_transition_of_the_pool_is_that_of_its_blocks(episode: int) -> None:
    random, found = Random(episode), block_pool.new_pool(SIZE)
    for step in range(STEPS):
        possible = {name: blocks for name, blocks in choices(found).items() if blocks}
        transition = random.choice(sorted(possible))
        chosen = random.choice(possible[transition])
        after = happened(found, transition, chosen, key=bytes([step]))
        for block in range(1, SIZE + 1):
            before = seen(found, block)
            expected = TOLD[transition](before) if block == chosen else before
            assert seen(after, block) == expected, (transition, block)
        found = after


def test_evidence_about_a_pool_that_is_another_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool_stale() is None
    right = block_pool.release

    def keeping_the_last(found: BlockPool, blocks: list[int]) -> BlockPool:
        return right(found, [block for block in blocks if found.references[block] > 1])

    monkeypatch.setattr(block_pool, "release", keeping_the_last)
    ran = lockstep("prove", "PRV-POOL-3")
    assert ran.code == 3
    assert "stale: PRV-POOL-3: release of block " in ran.out
