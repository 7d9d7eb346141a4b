"""The moves of nano-vLLM's reference that its proofs speak of, compared with its edges.

The events and the final state of a step must equal those of the step played by definition.
"""

from collections.abc import Iterator
from functools import partial
from random import Random

from attrs import evolve

from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.proofs import registry
from checks.proofs.links import MOST_ROWS, Edge, Link
from checks.proofs.nano_vllm.play import (
    ADMISSIONS,
    COMPUTATION,
    DECODE_BATCH,
    DEPARTURES,
    ceil_div,
    played,
    table_uses,
)
from checks.proofs.nano_vllm.scope import SCOPE
from checks.proofs.registry import Of
from spec.core.requests import Oversized, Prompt, Request
from spec.nano_vllm.config import (
    FullHit,
    GraphSizes,
    Hashing,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    NewBlock,
    Prefill,
    SequenceLimit,
    TokenGate,
)
from spec.nano_vllm.records import Sequence

# --- random large runs ----------------------------------------------------------------------------


# New blocks at a boundary and decoding first exclude each other.
_READINGS = [
    *((NewBlock.AFTER_BOUNDARY, full_hit) for full_hit in (*FullHit, *FullHit)),
    (NewBlock.AT_BOUNDARY, FullHit.ALL_CACHED),
    (NewBlock.AT_BOUNDARY, FullHit.LAST_COMPUTED),
]


def large_case(random: Random) -> Case:
    """A case with many rows, real blocks and real lengths, whose budget and pool bind.

    With new blocks at a boundary the pool is ample: a preempted request that comes back with whole
    blocks would find no slot.
    """
    block = random.choice((16, 64, 256))
    rows = random.choice((8, 24, 32, MOST_ROWS))
    model_len = block * random.choice((8, 12)) + random.choice((0, 1))
    all_captured = rows <= 8 or rows % 16 == 0
    new_block, full_hit = random.choice(_READINGS)
    is_early = new_block is NewBlock.AT_BOUNDARY
    config = NanoVllmConfig(
        block_size=block,
        max_num_seqs=rows,
        max_model_len=model_len,
        max_num_batched_tokens=MOST_ROWS * model_len,
        token_gate=random.choice([*TokenGate]),
        memory_gate=random.choice([*MemoryGate]),
        sequence_limit=random.choice([*SequenceLimit]),
        hit_check=random.choice([*HitCheck]),
        full_hit=full_hit,
        new_block=new_block,
        graph_sizes=random.choice([*GraphSizes]) if all_captured else GraphSizes.POWERS_OF_TWO,
        oversized=random.choice([*Oversized]),
    )
    count = MOST_ROWS + 6
    requests = tuple(_large_request(random, str(index), config) for index in range(count))
    needed = [ceil_div(request.most_tokens - 1, block) for request in requests]
    # Of the blocks that all need at once; with early blocks each may hold one more.
    share = 2 if is_early else random.choice((0.15, 0.25, 0.35, 0.5))
    config = evolve(config, num_blocks=max(*needed, int(sum(needed) * share)))
    return _with_binding_budget(random, Case(config, requests))


def _with_binding_budget(random: Random, case: Case) -> Case:
    """The case with a budget that some admission of the first step just keeps, or just exceeds."""
    config, batched, binding = case.config, 0, list[int]()
    step = next(served(case))
    for row in step.batch:
        new = step.scheduled[row.id]
        counted = row.prefill_len if config.token_gate is TokenGate.FULL_LENGTH else new
        binding.append(batched + counted - random.choice((0, 1)))
        batched += new
    budgets = [budget for budget in binding if budget > config.max_model_len]
    budget = random.choice(budgets or [config.max_model_len])
    return evolve(case, config=evolve(config, max_num_batched_tokens=budget))


def _large_request(random: Random, name: str, config: NanoVllmConfig) -> Request:
    """A prompt of a few blocks, often with a common beginning or the same as others'."""
    size = config.block_size
    common = size * random.choice((0, 0, 1, 2))
    own = random.choice((0, 1, random.randint(1, 2 * size), size - 3, size - 30 % size, size))
    if config.new_block is NewBlock.AT_BOUNDARY and (common + own) % size == 0:
        own += 1
    parts = [("common", common), (f"own {name}", own)] if common + own else [(name, size)]
    most = random.choice((1, 20, 40, 80, min(size + 2, 140)))
    arrival = random.choice((0, 0, 0, random.randint(0, 30)))
    return Request(
        id=name,
        prompt=Prompt.of_parts([part for part in parts if part[1]]),
        max_tokens=most,
        arrival=arrival,
        output_len=random.choice((None, None, random.randint(1, most))),
        abort_at=random.choice((None, None, None, None, arrival + random.randint(1, 40))),
    )


def rare_case(random: Random) -> Case:
    """A case with few slots, in which prompts that are cached as a whole and are in no prefill step
    are admitted together with others.
    """
    config = NanoVllmConfig(
        block_size=4,
        num_blocks=60,
        max_num_seqs=random.choice((2, 3)),
        max_model_len=32,
        max_num_batched_tokens=64,
        sequence_limit=SequenceLimit.BATCH,
        full_hit=FullHit.LAST_DECODED,
    )
    requests = tuple(
        Request(
            id=str(number),
            prompt=Prompt.of_parts([(random.choice(("common", f"own {number}")), 8)]),
            max_tokens=random.randint(1, 6),
            arrival=number // 4 * 3,
        )
        for number in range(16)
    )
    return Case(config, requests)


def covers(config: NanoVllmConfig) -> bool:
    """True where no prefill is cut and blocks are hashed when they are handed out."""
    return config.prefill is Prefill.WHOLE and config.hashing is Hashing.ALLOCATED


# In "documented" a prompt of whole blocks finds no slot for its first answer.
LINK = Link(
    *("nano-vllm", SCOPE, large_case, covers),
    stops=frozenset({"documented"}),
    rare_cases=rare_case,
)


# --- the parts of a step --------------------------------------------------------------------------


def _other(edge: Edge, part: str) -> Iterator[str]:
    """The difference between the reference and the played step in this part, if any."""
    stopped = None if edge.step is None else played(edge.ctx, edge.step).stopped
    if stopped is not None and stopped[0] == part:
        yield stopped[1]


@LINK.move(ADMISSIONS)
def admissions(edge: Edge) -> Iterator[str]:
    """Requests are admitted from the front of waiting while the sequence limit, the budget and the
    free blocks allow; the first that is refused ends it, by the first gate that refuses it. It
    takes the leading full blocks that are found, and the rest of the free list, first in first out.
    """
    yield from _other(edge, ADMISSIONS)


@LINK.move(DECODE_BATCH)
def decode_batch(edge: Edge) -> Iterator[str]:
    """If nothing is to be prefilled, the front of running decodes, up to the limit. A row is handed
    a block exactly where the reading says; where none is free the back of running is preempted.
    """
    yield from _other(edge, DECODE_BATCH)


@LINK.move(COMPUTATION)
def computation(edge: Edge) -> Iterator[str]:
    """A prefill computes of each admitted request its length without the cached tokens, in all no
    more than the budget; a decode step a token of each row. Each row gets one token.
    """
    yield from _other(edge, COMPUTATION)


@LINK.move(DEPARTURES)
def departures(edge: Edge) -> Iterator[str]:
    """Exactly the rows of the batch leave that have all their tokens or sampled the end."""
    yield from _other(edge, DEPARTURES)


# --- the state after an edge ----------------------------------------------------------------------


@LINK.move("the queues")
def queues(edge: Edge) -> Iterator[str]:
    """Arrivals go to the back of waiting, preempted requests to its front, admitted ones to the
    back of running; who leaves is gone, all others keep their order and what they have.
    """
    before, after = edge.before, edge.after
    if edge.step is None:
        if before == after:
            yield "a client comes or goes, and nothing changes"
        waiting = [row for row in before.waiting if row.id not in edge.left]
        running = [row for row in before.running if row.id not in edge.left]
        for name in (row.id for row in after.waiting if row.id in edge.arrived):
            waiting.append(Sequence(name, edge.ctx.requests[name].prompt_len))
        finished, left = before.finished, edge.left <= after.aborted - before.aborted
    else:
        play = played(edge.ctx, edge.step)
        if play.stopped:
            return
        waiting, running = play.waiting, play.running
        finished = before.finished | {*edge.step.finished}
        left = after.aborted == before.aborted
    yield from _rows("waiting", after.waiting, waiting)
    yield from _rows("running", after.running, running)
    if after.finished != finished or not left:
        yield f"finished {sorted(after.finished)}, aborted {sorted(after.aborted)}"


def _rows(queue: str, found: tuple[Sequence, ...], expected: list[Sequence]) -> Iterator[str]:
    if [*found] == expected:
        return
    ids, due = [row.id for row in found], [row.id for row in expected]
    if ids != due:
        yield f"{queue} {ids}, by the moves {due}"
        return
    for row, other in zip(found, expected, strict=True):
        if row != other:
            yield f"{queue}: {row}, by the moves {other}"


@LINK.move("the pool")
def pool(edge: Edge) -> Iterator[str]:
    """Blocks are taken from the front of the free list and given back to its end, the last of a
    table first, once no table has them. Full blocks are hashed, and the last hashed is found.
    """
    before, after = edge.before.pool, edge.after.pool
    if edge.step is None:
        yield from _given_back(edge)
        keys, cached = before.keys, before.cached
    else:
        play = played(edge.ctx, edge.step)
        if play.stopped:
            return
        if [*after.free] != play.free:
            yield f"free list {[*after.free]}, by the moves {play.free}"
        changed = play.hashed.items()
        keys = {**before.keys, **{block: key for block, key in changed if key is not None}}
        for block in (block for block, key in changed if key is None):
            keys.pop(block, None)
        cached = {**before.cached, **{key: (block,) for key, block in play.named.items()}}
    if after.keys != keys:
        yield f"hashed are {sorted(after.keys)}, by the moves {sorted(keys)}"
    if after.cached != cached:
        yield "the lookup table names other blocks than by the moves"


def _given_back(edge: Edge) -> Iterator[str]:
    """The difference in the free list after requests left between two steps."""
    tables, freed = table_uses(edge.before), list[int]()
    leavers = [row for row in edge.before.running if row.id in edge.left]
    for row in leavers:
        for block in reversed(row.blocks):
            tables[block] -= 1
            freed += [] if tables[block] else [block]
    free = [*edge.before.pool.free, *freed]
    found = [*edge.after.pool.free]
    if len(leavers) > 1:  # in which order they left is not known
        count = len(edge.before.pool.free)
        found, free = ([*some[:count], *sorted(some[count:])] for some in (found, free))
    if found != free:
        yield f"free list {found}, by the moves {free}"


@LINK.move("blocks")
def blocks(edge: Edge) -> Iterator[str]:
    """A running request holds the blocks of its computed tokens, and one more only where it was
    handed out at a boundary; a waiting one holds none. Free are those of the pool that none holds.
    """
    state, config = edge.after, edge.ctx.config
    at_boundary = config.new_block is NewBlock.AT_BOUNDARY
    for row in state.running:
        has_decoded = row.computed > row.prefill_len
        is_early = at_boundary and has_decoded and row.computed % config.block_size == 0
        if len(row.blocks) != ceil_div(row.computed, config.block_size) + is_early:
            yield f"{row.id} holds {len(row.blocks)} blocks for {row.computed} tokens"
    for row in state.waiting:
        if row.blocks or row.computed or row.hit_blocks:
            yield f"{row.id} waits with blocks {row.blocks} and {row.computed} tokens"
    tables = table_uses(state)
    if state.pool.references != tables:
        yield f"blocks are counted as {dict(state.pool.references)}, held as {dict(tables)}"
    size = config.num_blocks
    if size is None:
        size = config.max_num_seqs * ceil_div(config.max_model_len, config.block_size)
    if not len(state.pool.free) + len(tables) == state.pool.size == size:
        yield f"{len(state.pool.free)} of {size} blocks are free, {len(tables)} held"


@LINK.move("slots")
def slots(edge: Edge) -> Iterator[str]:
    """Every computed token has its place in a block of the table. No block is written by two rows
    of a step, nor is a hit written, unless hits are not checked or decoded first.
    """
    config = edge.ctx.config
    for row in edge.after.running:
        if row.computed > len(row.blocks) * config.block_size:
            yield f"{row.id} has {row.computed} tokens in {len(row.blocks)} blocks"
    if edge.step is None:
        return
    is_own = (
        config.hit_check is not HitCheck.NOTHING and config.full_hit is not FullHit.LAST_DECODED
    )
    writers: dict[int, str] = {}
    for row in edge.step.batch if is_own else ():
        first = row.computed - edge.step.scheduled[row.id]
        places = range(first // config.block_size, ceil_div(row.computed, config.block_size))
        for place in places if first < row.computed else ():
            if place < row.hit_blocks:
                yield f"{row.id} writes its hit {place}"
            elif place < len(row.blocks):
                writer = writers.setdefault(row.blocks[place], row.id)
                if writer != row.id:
                    yield f"{row.id} and {writer} write block {row.blocks[place]}"


of_every_run = partial(registry.obligation, basis=LINK.stale, of=Of.MACHINE)
