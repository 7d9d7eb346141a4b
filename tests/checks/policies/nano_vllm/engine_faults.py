"""Planted faults of nano-vLLM's engine.

Run as a module, it prints the finding and the episode of each fault.
"""

from typing import Any

import numpy as np

from checks.harness.policy import system_of
from engine.core.blocks import FreeList
from engine.core.requests import RequestState, Slots, WaitingQueue
from engine.core.state import SchedulerState
from engine.nano_vllm import apply, decode, prefill
from engine.nano_vllm.blocks import BlockManager, PoolDraft
from engine.nano_vllm.running import Running
from tests.checks.faults.patches import Wrong, always
from tests.checks.harness.cases import hunt_table
from tests.checks.policies.engine_faults import EngineFaults, hunt_fault

ENGINE = system_of("nano-vllm", "engine")
ENGINE_FAULTS = EngineFaults()
fault = ENGINE_FAULTS.fault


# --- admission ------------------------------------------------------------------------------------

fault("admission", prefill, "within_budget")(
    lambda right, batched, counted, budget: right(batched, counted, budget + 1),
    "budget one too high: one token more than the budget is admitted",
)
fault("admission", prefill, "within_budget")(
    lambda right, _batched, counted, budget: right(0, counted, budget),
    "step not counted: tokens of the step's other requests do not count",
)
fault("admission", prefill, "counted_tokens")(
    lambda _right, length, _cached, _gate: length,
    "cached tokens counted: tokens in the cache count under every configuration",
)
fault("admission", prefill, "can_allocate")(
    lambda right, free, blocks, _shared, gate: right(free, blocks, 0, gate),
    "shared blocks asked for again: blocks that others hold count as needed",
)
fault("admission", prefill, "can_allocate")(
    lambda right, free, blocks, shared, gate: right(free + 1, blocks, shared, gate),
    "one block too many: a request is admitted for which one block is missing",
)


@fault("admission", PoolDraft, "is_held")
def planned_blocks_are_not_held(_right: Wrong, draft: PoolDraft, block: int) -> bool:
    """What the same step hands out to others does not count as held."""
    manager: BlockManager = draft._manager
    return manager.references[block] > 0


fault("admission", PoolDraft, "lookup")(
    lambda _right, draft, key: draft._manager.lookup(key),
    "blind to its own step: blocks hashed for others of the step are not found",
)
fault("admission", PoolDraft, "content_key")(
    lambda _right, draft, block: draft._manager.keys[block],
    "handed out and found: a block that the step hands out is found by its old content",
)


# --- blocks ---------------------------------------------------------------------------------------

fault("blocks", BlockManager, "_is_kept")(
    lambda _right, blocks, block: blocks.keys[block] is not None,
    "plain blocks first: blocks without content are handed out next",
)
fault("blocks", BlockManager, "release")(
    lambda right, blocks, table: right(blocks, table[::-1]),
    "released head first: a table is given back from its head on",
)
fault("blocks", FreeList, "put_back")(
    lambda _right, free, blocks: free.put_front(blocks),
    "last in, first out: blocks that are given back are handed out next",
)


@fault("blocks", apply, "preempt")
def preempted_keeps_its_blocks(right: Wrong, state: Any, victim: Any) -> None:
    """A preempted request gives no block back."""
    victim.blocks = ()
    right(state, victim)


# --- caching --------------------------------------------------------------------------------------

fault("caching", BlockManager, "watch")(
    lambda right, blocks, found, _awaited, others: right(blocks, found, (), others),
    "newly cached not noticed: a hit is kept although more of it is cached by now",
)


@fault("caching", prefill, "_hit")
def lookup_not_repeated(right: Wrong, state: Any, draft: Any, request: RequestState) -> Any:
    """A lookup is not repeated after a change."""
    return request.hit or right(state, draft, request)


fault("caching", prefill, "passes")(
    always(True), "hits not checked: a block is a hit if the table names it"
)
fault("caching", prefill, "lookup_blocks")(
    lambda right, *given: max(right(*given) - 1, 0),
    "last block missed: the last full block of a prompt is not looked up",
)
fault("caching", apply, "_hash_filled")(
    always(None), "answers not cached: blocks filled while decoding are not hashed"
)
fault("caching", SchedulerState, "request_tokens")(
    lambda _right, _state, _request, start, end: np.zeros(end - start, np.int64),
    "keys without tokens: no token counts in the key of a block",
)


@fault("caching", BlockManager, "_name")
def first_is_named(right: Wrong, blocks: BlockManager, named: Any, keys: Any) -> None:
    """Of blocks with equal content the first that was hashed is found."""
    first = {key: blocks.cached[key] for key in keys if key in blocks.cached}
    right(blocks, named, keys)
    blocks.cached.update(first)


@fault("caching", BlockManager, "_evict")
def old_content_is_kept(_right: Wrong, _blocks: BlockManager, _block: int, _key: Any) -> None:
    """A block that is allocated again keeps its hash and tokens."""


# --- order ----------------------------------------------------------------------------------------

fault("order", WaitingQueue, "put_front")(
    lambda _right, queue, request: queue.put_back(request),
    "preempted waits last: a preempted request goes to the end of the queue",
)


@fault("order", Running, "append")
def newcomers_run_in_front(right: Wrong, running: Running, row: Any) -> None:
    """A request that was prefilled goes to the front of the running queue."""
    right(running, row)
    running.rows.insert(0, running.rows.pop())


@fault("order", decode, "_with_victims")
def none_gives_way(right: Wrong, state: Any, growing: Any, refusal: Any) -> Any:
    """The row that needs a block is the one to be preempted."""
    rows = state.running.rows
    state.running.rows = [*(row for row in rows if row is not growing[0]), growing[0]]
    try:
        return right(state, growing, refusal)
    finally:
        state.running.rows = rows


# --- accounting -----------------------------------------------------------------------------------

fault("accounting", Running, "of_length")(
    lambda right, running, remainder: right(running, remainder + 1),
    "boundary one off: rows are taken to stand one token further in their blocks",
)
fault("accounting", Running, "ending")(
    always([]), "ends not seen: a request goes on though it has all tokens that it samples"
)
fault("accounting", apply, "_is_over")(
    always(False), "first token not counted: a request of one token goes on"
)
fault("accounting", RequestState, "again")(
    lambda right, request, outputs: right(request, outputs[:-1]),
    "answer lost with preemption: a preempted request loses its newest token",
)


@fault("accounting", Slots, "note")
def tokens_written_a_place_late(
    right: Wrong, slots: Slots, rows: Any, starts: Any, step: int, tokens: Any
) -> None:
    """Sampled tokens are noted one place behind their own."""
    right(slots, rows, starts, step + 1, tokens)


if __name__ == "__main__":
    print(hunt_table(hunt_fault(ENGINE, fault, 200) for fault in ENGINE_FAULTS))
