"""What releases of sendnn-inference do otherwise, and rules that do not hold everywhere.

A difference is recognised by what happens in the step, never by the text of a report. `due` says
where it must show, so that one that no longer occurs is noticed. An episode ends where a known
difference shows: what the release does after it follows from it and is not compared.
"""

from collections.abc import Collection, Mapping, Sequence

from checks.harness.difference import (
    Evidence,
    ExpectedViolation,
    KnownDifference,
    first_step,
    in_step,
)
from checks.harness.system import Action
from spec.core.arithmetic import cdiv
from spec.core.blocks import BlockPool
from spec.core.records import DECODE
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import left_padding
from spec.spyre.records import Step
from spec.spyre.state import State

# --- a reservation that stays ----------------------------------------------------


def _promised_to_leavers(action: Action, last: Step) -> int:
    """Blocks promised to admitted requests whose clients leave before the next step."""
    return sum(row.reserved for row in last.after.admitted if row.id in action.abort)


def _reservation_stays(evidence: Evidence) -> bool:
    """Between the steps more is reserved than present requests are promised: what leavers were."""
    index, records = evidence.index, evidence.records
    if index == 0 or len(records) <= index or "before" not in records[index]:
        return False
    leaked = _promised_to_leavers(evidence.actions[index], evidence.found[index - 1])
    promised = sum(row.reserved for row in evidence.found[index].before.admitted)
    reserved = int(records[index]["before"]["blocks"]["reserved"])
    explained = evidence.differs_only_in("before.blocks.reserved", "blocks.reserved")
    return (
        leaked > 0
        and reserved == promised + leaked
        and (explained or _is_refused_for(leaked, evidence))
    )


def _is_refused_for(leaked: int, evidence: Evidence) -> bool:
    """A request that the reference admits is refused, and lacks blocks but for what is leaked."""
    due, found = evidence.expected[evidence.index], evidence.found[evidence.index]
    others = {row.id for row in found.after.admitted}
    new = [row for row in due.after.admitted if row.id not in others]
    free = len(due.before.pool.free) - sum(row.reserved for row in due.before.admitted)
    taken = [block for row in new for block in row.blocks if block in due.before.pool.free]
    needed = len(taken) + sum(row.reserved for row in new)
    return bool(new) and free - leaked < needed <= free


def _reservation_due(
    _config: object, actions: Sequence[Action], steps: Sequence[Step]
) -> int | None:
    leaks = map(_promised_to_leavers, actions[1:], steps)
    return next((index for index, leaked in enumerate(leaks, start=1) if leaked), None)


# --- more counted as computed than was ---------------------------------------------------------


@in_step
def _counts_ahead(evidence: Evidence, due: Step, step: Step) -> bool:
    """The scheduler counts tokens as computed that lie behind the end of the runner's chunk.

    Where the client leaves in this very step, the blocks of these tokens show it.
    """
    slot, chunk, ahead = step.after.prefilling, step.chunk, _blocks_ahead(evidence.config, due)
    if chunk is None or chunk.inner_padding == 0 or not _same_but_for(ahead, due.after, step.after):
        return False
    if slot is not None and slot.id == chunk.id:
        return bool(slot.computed > chunk.end) and evidence.differs_only_in(
            *("after.pool", "blocks.used", "blocks.reserved", "blocks.free"),
            *(f"after.prefilling.{name}" for name in ("computed", "blocks", "reserved")),
        )
    is_gone = chunk.id in evidence.actions[evidence.index].abort_running
    return is_gone and bool(ahead) and evidence.differs_only_in("after.pool")


def _same_but_for(blocks: Collection[int], due: State, state: State) -> bool:
    """The pools agree on all other blocks: their order, holders and contents."""

    def others(pool: BlockPool) -> tuple[object, object, object]:
        counts, keys = (
            {block: what for block, what in held.items() if block not in blocks}
            for held in (pool.references, pool.keys)
        )
        return [block for block in pool.free if block not in blocks], counts, keys

    return others(due.pool) == others(state.pool)


@first_step
def _ahead_due(config: SpyreConfig, action: Action, step: Step) -> bool:
    """A request that leaves in the step leaves a full block, hashed, or one that had a content."""
    if step.chunk is None or step.chunk.id not in action.abort_running:
        return _tokens_ahead(config, step) > 0
    had_contents = any(block in step.before.pool.keys for block in _blocks_ahead(config, step))
    return had_contents or _tokens_ahead(config, step) >= config.block_size


def _tokens_ahead(config: SpyreConfig, step: Step) -> int:
    """Of a request with a hit inside a chunk: how far hit plus a chunk passes the chunk's end."""
    chunk = step.chunk
    if chunk is None or not step.happened("admit") or chunk.inner_padding == 0:
        return 0
    prompt_len = step.tkv
    hit = chunk.cached_tokens + chunk.inner_padding
    padding = left_padding(prompt_len, config.block_size, config.chunk_size)
    first = config.chunk_size - (0 if hit >= config.chunk_size - padding else padding)
    return max(min(hit + first, prompt_len) - chunk.end, 0)


def _blocks_ahead(config: SpyreConfig, step: Step) -> tuple[int, ...]:
    """The free blocks that are handed out for these tokens, behind those of the chunk."""
    if step.chunk is None:
        return ()
    own = step.chunk.block_table[step.chunk.left_padding // config.block_size :]
    free = [block for block in step.before.pool.free if block not in own]
    return tuple(free[: cdiv(_tokens_ahead(config, step), config.block_size)])


# --- an assertion where the model length is no multiple of the block ----------------------------


def _length_asserted(evidence: Evidence) -> bool:
    failure = evidence.failure
    return (
        failure is not None
        and failure.type == "AssertionError"
        and "_can_decode_all_requests" in failure.at
        and evidence.config.max_model_len % evidence.config.block_size > 0
    )


@first_step
def _length_due(config: SpyreConfig, _action: object, step: Step) -> bool:
    return step.kind == DECODE and step.tkv > config.max_model_len


# --- freed blocks at the end of the free list where nothing is cached ---------------------------


@in_step
def _frees_at_the_end(evidence: Evidence, due: Step, step: Step) -> bool:
    """Without caching, what was given back follows all other blocks instead of leading them."""
    if evidence.config.prefix_caching:
        return False
    if not evidence.differs_only_in("before.pool.free", "after.pool.free"):
        return False
    index = evidence.index
    if due.before.pool.free != step.before.pool.free:  # an abort before the step
        left = evidence.expected[index - 1].after if index else due.before
        tables = {row.id: row.blocks for row in left.admitted}
        return _moved_behind(due.before, step.before, _given_back(tables, due.aborted))
    leavers = (*evidence.actions[index].abort_running, *due.finished)
    given_back = _given_back(_tables(due, evidence.config.block_size), leavers)
    return _moved_behind(due.after, step.after, given_back)


def _tables(step: Step, block_size: int) -> Mapping[str, tuple[int, ...]]:
    """The blocks of all requests that are admitted in the step, also of those that then leave."""
    tables = {row.id: row.blocks for row in (*step.before.admitted, *step.batch)}
    if step.chunk is None:
        return tables
    own = step.chunk.block_table[step.chunk.left_padding // block_size :]
    return {**tables, step.chunk.id: own}


def _given_back(tables: Mapping[str, tuple[int, ...]], leavers: Sequence[str]) -> list[int]:
    """The blocks of requests that leave, in the order in which they are freed."""
    return [block for one in leavers for block in reversed(tables.get(one, ()))]


def _moved_behind(expected: State, found: State, given_back: list[int]) -> bool:
    """The blocks given back are behind all others, which are as the reference has them."""
    others = [block for block in expected.pool.free if block not in given_back]
    return bool(given_back) and list(found.pool.free) == [*others, *given_back]


def _end_due(config: SpyreConfig, _actions: Sequence[Action], steps: Sequence[Step]) -> int | None:
    """The first time that blocks are freed while others are free."""
    if config.prefix_caching:
        return None
    free = steps[0].before.pool.free if steps else ()
    for step in steps:
        for now in (step.before.pool.free, step.after.pool.free):
            freed, kept = set(now) - set(free), set(now) & set(free)
            if freed and kept:
                return step.index
            free = now
    return None


_SINCE_PAUSING = tuple(
    f"sendnn-inference {version} "
    for version in ("2.4.0", "2.5.0", "2.6.0", "2.6.1", "2.6.2", "2.6.3")
)

KNOWN_DIFFERENCES = (
    KnownDifference(
        "SND-1",
        "sendnn",
        _SINCE_PAUSING,
        "what is reserved for a request stays reserved when its client leaves between two steps",
        "the list of finished requests is emptied by the next schedule() before the update that"
        " gives their reservation back",
        _reservation_stays,
        _reservation_due,
    ),
    KnownDifference(
        "SND-2",
        "sendnn",
        _SINCE_PAUSING,
        "after a prefix hit inside a chunk more tokens count as computed than the chunk computes",
        "the scheduler adds a whole chunk to the hit, the model runner stops at the chunk's end;"
        " blocks are found by lookups before they are written",
        _counts_ahead,
        _ahead_due,
    ),
    KnownDifference(
        "SND-3",
        "sendnn",
        _SINCE_PAUSING,
        "an assertion ends the server where tkv would exceed a model length that is no multiple"
        " of the block",
        "left padding takes the tkv to a block boundary behind the model length",
        _length_asserted,
        _length_due,
    ),
    KnownDifference(
        "SND-4",
        "sendnn",
        ("sendnn-inference 2.6.0 on vLLM 0.27.1", "sendnn-inference 2.6.1 on vLLM 0.27.1"),
        "without prefix caching freed blocks go to the end of the free list",
        "vLLM 0.27.1 looks whether caching is on before it puts blocks without content in front;"
        " 0.25.1 and 0.28.0 put them in front in any case",
        _frees_at_the_end,
        _end_due,
    ),
)

# --- rules that need not hold everywhere --------------------------------------------------------

EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        ("SPY-VOL-1",),
        "the text's volume rule admits batches that later exceed the limit",
        lambda config: not config.variant.keeps_limit and not config.may_pause,
    ),
    ExpectedViolation(
        ("SPY-LEN-1",),
        "left padding is taken back at block boundaries, the last lies beyond the model length",
        lambda config: config.max_model_len % config.block_size > 0,
    ),
    ExpectedViolation(
        ("SPY-PAU-6",),
        "without interleaving, 2.6.3 takes the tkv of a prefill step for that of the batch",
        lambda config: config.variant.pauses and config.is_judged_first,
    ),
)
