"""The memory of a device, for the rules: blank blocks, freed blocks, last uses."""

from collections.abc import Iterable, Iterator, Mapping

from spec.core.blocks import BlockPool
from spec.core.words import by_name
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Group, State
from spec.vllm_v0.rules.registry import is_released


def blank(pool: BlockPool) -> list[int]:
    """Free blocks without contents, the next that is handed out in front."""
    return [block for block in pool.free if block not in pool.keys]


def device_tables(group: Group, config: VllmV0Config, *, on_cpu: bool) -> list[tuple[int, ...]]:
    """The group's tables on a device in the order in which they are given back.

    Its encoder's is the last; the release leaves that on the GPU.
    """
    own = [sequence.blocks for sequence in group.sequences] if group.is_swapped == on_cpu else []
    cross_on_cpu = group.is_swapped and not is_released(config)
    return [*own, group.cross] if cross_on_cpu == on_cpu else own


def pushed(pool: BlockPool, tables: Iterable[Iterable[int]]) -> list[int]:
    """Blocks that become free when these tables are given back, one after the other."""
    holders, freed = dict(pool.references), []
    for block in (block for table in tables for block in table):
        holders[block] = holders.get(block, 1) - 1
        if holders[block] == 0:
            freed.append(block)
    return freed


def wrong_ranks(
    state: State, groups: Mapping[str, float], marks: Mapping[int, float]
) -> Iterator[str]:
    """How the last uses in a state differ from these of its groups and of its blocks.

    In the state they are ranks, 0 for what was never used.
    """
    ranks = {age: rank for rank, age in enumerate(sorted({0, *groups.values(), *marks.values()}))}
    due = {id_: ranks[age] for id_, age in groups.items()}
    found = {group.id: group.mark for group in state.present}
    if found != due:
        yield f"last uses of requests {by_name(found)}, expected {by_name(due)}"
    of_blocks = {block: ranks[age] for block, age in marks.items()}
    if {**state.marks} != of_blocks:
        yield f"last uses of blocks {by_name(state.marks)}, expected {by_name(of_blocks)}"
