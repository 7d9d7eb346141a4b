"""Planted faults of the engine: small wrong versions of its parts, to be switched in one at a time.

They are the slips that an engine is prone to: a formula one off, a list in the wrong order, and
what is kept from an earlier step although it no longer holds. Run as a module, it prints by what
each is found, and how soon.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen

from engine.spyre.blocks import BlockManager, FreeList
from engine.spyre.scheduler import admission, apply, decode, prefill
from engine.spyre.scheduler.admission import LastChunk, Projection
from engine.spyre.scheduler.requests import Batch, RequestState, WaitingQueue
from engine.spyre.scheduler.state import SchedulerState
from tests.checks.harness.cases import ENGINE, Hunt, hunt, table_of

Right = Callable[..., Any]


@frozen
class EngineFault:
    """A wrong version of `attribute` of a module or class."""

    name: str
    sentence: str
    area: str
    place: Any
    attribute: str
    wrong: Right

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Switch the fault in."""
        right = getattr(self.place, self.attribute)
        if isinstance(self.place, type):
            wrong = self.wrong

            def method(*given: Any, **more: Any) -> Any:
                return wrong(right, *given, **more)

            monkeypatch.setattr(self.place, self.attribute, method)
        else:
            monkeypatch.setattr(self.place, self.attribute, partial(self.wrong, right))


ENGINE_FAULTS: list[EngineFault] = []


def fault(area: str, place: Any, attribute: str) -> Callable[[Right], Right]:
    """Enter the decorated function, which is given the right one first, then the arguments."""

    def register(wrong: Right) -> Right:
        name, sentence = wrong.__name__.replace("_", " "), wrong.__doc__ or ""
        ENGINE_FAULTS.append(EngineFault(name, sentence, area, place, attribute, wrong))
        return wrong

    return register


# --- admission ------------------------------------------------------------------------------------


@fault("admission", LastChunk, "_exact_volume_holds")
def volume_never_refuses(_right: Right, *_given: Any) -> bool:
    """The exact volume rule admits everybody."""
    return True


@fault("admission", admission, "exact_volume_holds")
def limit_one_too_high(right: Right, *given: Any) -> bool:
    """The exact rule admits one token over the limit."""
    *batch, limit, block_size = given
    return bool(right(*batch, limit + 1, block_size))


@fault("admission", admission, "exact_volume_holds")
def limit_one_too_low(right: Right, *given: Any) -> bool:
    """The exact rule refuses what just reaches the limit."""
    *batch, limit, block_size = given
    return bool(right(*batch, limit - 1, block_size))


@fault("admission", admission, "exact_volume_holds")
def last_token_not_counted(right: Right, *given: Any) -> bool:
    """The exact rule takes the candidate to generate one token fewer."""
    lengths, remaining, (length, still), limit, size = given
    return bool(right(lengths, remaining, (length, max(still - 1, 1)), limit, size))


@fault("admission", admission, "surely_exceed")
def shapes_refused_too_soon(right: Right, lengths: Any, remaining: Any, *rest: Any) -> Any:
    """The bound for many shapes at once refuses what just reaches the limit."""
    candidates, limit = rest
    return right(lengths, remaining, candidates, limit - 1)


@fault("admission", Projection, "is_of")
def projection_outlives_its_moment(_right: Right, *_given: Any) -> bool:
    """The projected tkv of the batch are kept although the batch has moved on."""
    return True


@fault("admission", LastChunk, "_joining")
def model_length_not_asked(right: Right, *given: Any) -> Any:
    """The text's maximum-length condition always holds."""
    return evolve(right(*given), max_model_len=2**31)


@fault("admission", prefill, "_has_free_slot")
def one_slot_too_many(_right: Right, state: SchedulerState) -> bool:
    """One request more is admitted than there are slots."""
    return len(state.decoding) <= state.config.max_num_seqs


@fault("admission", prefill, "_starts_with_last_chunk")
def judged_without_the_hit(_right: Right, state: SchedulerState, request: RequestState) -> bool:
    """Who needs one chunk only thanks to the cache is not judged."""
    return request.prefill_len <= state.config.chunk_size


@fault("admission", prefill, "may_reserve")
def shared_blocks_asked_for_again(right: Right, *given: int) -> bool:
    """Blocks that somebody holds already are set aside all the same."""
    worst_case, _, free, reserved = given
    return bool(right(worst_case, 0, free, reserved))


@fault("admission", prefill, "may_reserve")
def promises_forgotten(right: Right, *given: int) -> bool:
    """What is promised to others counts as free."""
    worst_case, shared, free, _ = given
    return bool(right(worst_case, shared, free, 0))


# --- padding and jumps ----------------------------------------------------------------------------


@fault("padding", decode, "layout")
def a_column_too_many(right: Right, lengths: Any, block_size: int) -> Any:
    """Every row gets one padding block more than it needs."""
    padding, tkv = right(lengths, block_size)
    return padding + block_size, tkv + block_size


@fault("padding", decode, "max_tkv")
def tkv_of_the_longest(_right: Right, decisive: Sequence[int], _block_size: int) -> int:
    """The tkv is that of the longest row, whoever reaches further into the last block."""
    return max(decisive)


@fault("padding", decode, "row_left_padding")
def padding_by_tokens(_right: Right, lengths: Any, width: int, block_size: int) -> Any:
    """Rows are padded by tokens and not by whole blocks."""
    return width * block_size - lengths - (-lengths.max() % block_size)


@fault("jumps", Batch, "of_rows")
def departure_not_noticed(right: Right, batch: Batch, rows: Sequence[int]) -> Batch:
    """When somebody leaves, the others keep their padding until one fills its block."""
    rest: Batch = right(batch, rows)
    rest.tkv = batch.tkv
    return rest


@fault("jumps", Batch, "with_front")
def newcomer_not_noticed(right: Right, batch: Batch, newcomer: RequestState) -> Batch:
    """When somebody joins, the others keep their padding until one fills its block."""
    joined: Batch = right(batch, newcomer)
    joined.tkv = batch.tkv
    return joined


# --- blocks ---------------------------------------------------------------------------------------


@fault("blocks", BlockManager, "freed_by")
def table_head_first(right: Right, blocks: BlockManager, tables: Any) -> Any:
    """A table is given back from its head on."""
    return right(blocks, [tuple(table)[::-1] for table in tables])


@fault("blocks", FreeList, "put_front")
def plain_blocks_last(_right: Right, free: FreeList, blocks: Sequence[int]) -> None:
    """Blocks without content go to the end of the free list."""
    free.put_back(blocks)


@fault("blocks", BlockManager, "watch")
def free_blocks_count_as_held(right: Right, blocks: BlockManager, hit: tuple[int, ...]) -> Any:
    """Cached blocks that nobody holds count as shared."""
    watched = right(blocks, hit)
    watched.held = len(hit)
    return watched


@fault("blocks", apply, "preempt")
def preempted_keeps_its_blocks(right: Right, state: SchedulerState, victim: RequestState) -> None:
    """Who is preempted gives no block back."""
    victim.blocks = ()
    right(state, victim)


# --- caching --------------------------------------------------------------------------------------


@fault("caching", prefill, "prefix_hit")
def lookup_not_repeated(right: Right, state: SchedulerState, request: RequestState) -> Any:
    """What a lookup found stays true whatever changes."""
    return request.hit or right(state, request)


@fault("caching", prefill, "_full_blocks")
def last_block_missed(right: Right, state: SchedulerState, request: RequestState) -> int:
    """The last full block of a prompt is not looked up."""
    return max(int(right(state, request)) - 1, 0)


@fault("caching", apply, "_register_filled")
def answers_not_cached(_right: Right, _state: SchedulerState, _rows: Batch) -> None:
    """Blocks that are filled while decoding are not found by lookups."""


@fault("caching", apply, "_register_full_blocks")
def cached_a_token_late(
    right: Right, state: SchedulerState, request: RequestState, computed: int
) -> None:
    """A full block is found only once a token stands behind it."""
    right(state, request, computed - 1)


@fault("caching", SchedulerState, "tokens_of")
def keys_without_answers(
    right: Right, state: SchedulerState, request: RequestState, *span: int
) -> Any:
    """What was sampled does not count in the key of a block."""
    tokens = np.array(right(state, request, *span))
    first_sampled = max(request.request.prompt_len - span[0], 0)
    tokens[first_sampled:] = 0
    return tokens


@fault("caching", prefill, "redirected_blocks")
def redirection_not_told(_right: Right, *_given: int) -> int:
    """Blocks of a boundary chunk whose writes are redirected are not reported."""
    return 0


# --- order ----------------------------------------------------------------------------------------


@fault("order", Batch, "with_front")
def joins_at_the_back(right: Right, batch: Batch, newcomer: RequestState) -> Batch:
    """A newcomer stands behind the batch."""
    joined: Batch = right(batch, newcomer)
    return joined.of_rows([*range(1, len(joined)), 0])


@fault("order", WaitingQueue, "put_front")
def preempted_waits_last(_right: Right, queue: WaitingQueue, request: RequestState) -> None:
    """Who is preempted goes to the end of the queue."""
    queue.put_back(request)


@fault("order", decode, "_preempted")
def first_admitted_preempted(right: Right, state: SchedulerState, rows: Batch) -> Any:
    """The batch is preempted from its other end."""
    return right(state, rows.of_rows(range(len(rows))[::-1]))


@fault("order", prefill, "_first_to_overtake")
def nobody_overtakes(_right: Right, _state: SchedulerState) -> None:
    """With overtaking, nobody is looked at behind the head."""


@fault("order", prefill, "_priority_refusal")
def not_interleaved(right: Right, state: SchedulerState) -> Any:
    """Prefill steps follow each other although interleaving is on."""
    refusal = right(state)
    return None if refusal == "SPY-PRI-3" else refusal


@fault("order", decode, "choose_rows")
def longest_answer_first(right: Right, state: SchedulerState) -> Any:
    """Pausing serves in the opposite order of answers."""
    config = state.config
    state.config = evolve(config, long_output_first=not config.long_output_first)
    try:
        return right(state)
    finally:
        state.config = config


# --- accounting -----------------------------------------------------------------------------------


@fault("accounting", apply, "release")
def promise_not_taken_back(right: Right, state: SchedulerState, request: RequestState) -> None:
    """What was promised to somebody who leaves stays set aside."""
    state.reserved += request.reserved
    right(state, request)


@fault("accounting", apply, "still_promised")
def promised_for_ever(_right: Right, promised: int, _handed_out: int) -> int:
    """Blocks that are handed out stay promised."""
    return promised


@fault("accounting", Batch, "advance")
def tokens_generated_not_counted(right: Right, batch: Batch, tkv: int) -> None:
    """The count-down to the first end stands still."""
    batch.steps_to_end += 1
    right(batch, tkv)


@fault("accounting", apply, "_ending_rows")
def ends_a_token_early(right: Right, rows: Batch, ends: Collection[str] | None) -> Any:
    """Requests leave one token before their last."""
    if ends is None:
        return np.flatnonzero(rows.computed + 1 >= rows.ends_at).tolist()
    return right(rows, ends)


@fault("accounting", RequestState, "again")
def answer_lost_with_preemption(right: Right, request: RequestState, outputs: Any) -> RequestState:
    """Who is preempted loses the newest token."""
    again: RequestState = right(request, outputs[:-1])
    return again


def hunt_engine_fault(fault: EngineFault, episodes: int) -> Hunt:
    """Look for the fault in so many episodes."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        return hunt(ENGINE, episodes, name=f"{fault.area}: {fault.name}")


if __name__ == "__main__":
    print(table_of(hunt_engine_fault(one, 200) for one in ENGINE_FAULTS))
