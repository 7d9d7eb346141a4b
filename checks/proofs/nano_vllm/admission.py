"""Obligations about nano-vLLM's gates, its prefix hits, and the batch sizes of captured graphs.

The argument for the budget, any number of sequences in a prefill step: a sequence that passes the
token gate leaves the step's tokens within it (PRV-NANO-ADM-1); all others enter only through their
sum.

Source: nano-vllm, "Admission Checks: Two Gates, Both Must Pass", "With Prefix Cache: Reuse the
Work", "Why Prefix Caching Matters in Practice" and "CUDA Graphs: Why Decode Gets Special
Treatment".
"""

from collections.abc import Callable, Iterable
from functools import partial

from checks.proofs.nano_vllm.blocks import LEAST_BLOCK, BlockSize, make_config
from checks.proofs.nano_vllm.moves import of_every_run
from checks.proofs.nano_vllm.scope import obligation
from checks.proofs.registry import Natural, Numbers, Positive, Statement, Verdict
from checks.proofs.unshared import unshared
from spec.core.arithmetic import Number, Truth, every, implies, some
from spec.core.blocks import block_count
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import FullHit, GraphSizes, MemoryGate, NanoVllmConfig, TokenGate
from spec.nano_vllm.formulas import (
    can_allocate,
    captured_sizes,
    counted_tokens,
    lookup_blocks,
    within_budget,
)

# --- the token gate -------------------------------------------------------------------------------


def _prefill(batched: Natural, budget: Number, length: Number, cached: Natural) -> list[Truth]:
    """Conditions; `batched`: tokens that the step already computes, `cached`: of the sequence."""
    return [batched <= budget, cached <= length]


_of_prefill = partial(of_every_run, bounds="every length, hit and budget", given=_prefill)


def _passes(
    batched: Number, budget: Number, length: Number, cached: Number, gate: TokenGate
) -> Truth:
    return within_budget(batched, counted_tokens(length, cached, gate), budget)


@_of_prefill(
    "PRV-NANO-ADM-1",
    bounds="any number of sequences; every length, hit and budget; both readings of the gate",
    rules=["NANO-ADM-1"],
    each=[{"gate": gate} for gate in TokenGate],
)
def token_gate_keeps_the_budget(
    batched: Number, budget: Number, length: Number, cached: Number, gate: TokenGate
) -> Statement:
    """A sequence that passes the token gate leaves the step's tokens within the budget."""
    # Only tokens that are not cached are computed, whichever are counted against the budget.
    passes = _passes(batched, budget, length, cached, gate)
    return Statement(implies(passes, batched + length - cached <= budget))


@_of_prefill("PRV-NANO-PFX-1", where="token_gate=new_tokens", rules=["NANO-PFX-7"])
def new_tokens_alone_count(
    batched: Number, budget: Number, length: Number, cached: Number
) -> Statement:
    """Tokens that are found in the cache do not count against the budget, where the gate counts new
    tokens.
    """
    passes = _passes(batched, budget, length, cached, TokenGate.NEW_TOKENS)
    return Statement(implies(batched + length - cached <= budget, passes))


BLOCK = LEAST_BLOCK  # tokens; of the runs that show a refutation


def _behind_another(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt that fills the cache; then one of other tokens, and one that finds its beginning."""
    budget, shared = numbers["budget"], ("shared", numbers["cached"])
    prompts = (
        [shared],
        [("own:1", numbers["batched"])],
        [shared, ("own:2", numbers["length"] - numbers["cached"])],
    )
    return make_config(budget, block_size=BLOCK, num_blocks=4 * budget), [
        Request(id=str(index), prompt=Prompt.of_parts(parts), max_tokens=1, arrival=min(index, 1))
        for index, parts in enumerate(prompts)
    ]


@obligation(
    "PRV-NANO-PFX-2",
    given=_prefill,
    where="token_gate=full_length",
    bounds=f"every length, hit and budget; block {BLOCK}",
    rules=["NANO-PFX-7"],
    expected=Verdict.REFUTED,
    scenario=_behind_another,
)
def all_tokens_count(batched: Number, budget: Number, length: Number, cached: Number) -> Statement:
    """Tokens that are found in the cache do not count against the budget, as the release has it."""
    # False: the gate adds the cached ones. Prompts fit the model length, and that the budget.
    passes = _passes(batched, budget, length, cached, TokenGate.FULL_LENGTH)
    whole_blocks = cached % BLOCK == 0
    return Statement(
        implies(batched + length - cached <= budget, passes),
        given=[batched >= 1, batched < budget, length < budget, cached < length, whole_blocks],
    )


# --- the memory gate ------------------------------------------------------------------------------


@of_every_run(
    "PRV-NANO-ADM-2",
    bounds="any number of sequences, any pool, any prefix hit; both readings of the gate",
    rules=["NANO-ADM-2"],
)
def memory_gate_is_enough(
    free: Natural, blocks: Number, shared: Natural, revived: Natural
) -> Statement:
    """A sequence that passes the memory gate finds its blocks; where the gate leaves out those that
    others hold, a refused one would not.
    """
    # Of its blocks `shared` are found and held by others, `revived` are found and free.
    fresh = blocks - shared - revived
    enough = free - revived - fresh >= 0
    all_free, new_free = (can_allocate(free, blocks, shared, gate) for gate in MemoryGate)
    return Statement([implies(all_free, enough), new_free == enough], given=[fresh >= 0])


@of_every_run(
    "PRV-NANO-ADM-3",
    where="oversized=refused",
    bounds="every length, output, pool and block size; every reading of the gates; a sequence that "
    "is alone",
    rules=["NANO-LIF-7"],
)
def what_is_let_in_is_admitted_alone(
    length: Positive,
    total: Number,
    budget: Number,
    block_size: BlockSize,
    num_blocks: Number,
    cached: Natural,
) -> Statement:
    """A sequence that is let in passes both gates when it is alone, also after a preemption."""
    # `length` of a prefill: prompt and what was generated, a token at least is missing; the budget
    # is at least the model length, as the configuration demands.
    blocks = block_count(length, block_size)
    return Statement(
        [
            *(_passes(0, budget, length, cached, gate) for gate in TokenGate),
            *(can_allocate(num_blocks, blocks, 0, gate) for gate in MemoryGate),
        ],
        given=[
            length < total,
            total <= budget,
            cached <= length,
            block_count(total - 1, block_size) <= num_blocks,
        ],
    )


# --- prefix hits ----------------------------------------------------------------------------------


def _left_by_a_hit(length: Number, block_size: Number, reading: FullHit) -> Number:
    """Tokens to compute if all blocks that are looked up are cached."""
    return length - lookup_blocks(length, block_size, reading) * block_size


@of_every_run(
    "PRV-NANO-PFX-3",
    where="full_hit=last_computed",
    bounds="every length, every block size",
    rules=["NANO-PFX-8"],
)
def last_block_is_computed(length: Positive, block_size: Positive) -> Statement:
    """Where the last block is not looked up, a full hit leaves at least one token to compute and at
    most a block of them.
    """
    left = _left_by_a_hit(length, block_size, FullHit.LAST_COMPUTED)
    return Statement([left >= 1, left <= block_size])


def _twice_the_same(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """One prompt, served twice."""
    length, prompt = numbers["length"], Prompt.of_stream("shared", numbers["length"])
    config = make_config(length + 1, block_size=numbers["block_size"], num_blocks=2 * length)
    return config, [
        Request(id=str(index), prompt=prompt, max_tokens=1, arrival=index) for index in range(2)
    ]


@obligation(
    "PRV-NANO-PFX-4",
    where="full_hit=all_cached",
    bounds="every length, every block size from 2",
    rules=["NANO-PFX-8"],
    expected=Verdict.REFUTED,
    scenario=_twice_the_same,
)
def a_full_hit_leaves_a_token(length: Positive, block_size: BlockSize) -> Statement:
    """A full hit leaves at least one token to compute, as the release has it."""
    # False: a prompt of whole blocks is found as a whole, and gets a token all the same.
    left = _left_by_a_hit(length, block_size, FullHit.ALL_CACHED)
    return Statement(left >= 1)


# --- captured graphs ------------------------------------------------------------------------------

LARGEST = 512  # sequences; the released limit
_LIMITS = range(1, LARGEST + 1)


def _a_batch(batch: Positive, max_num_seqs: Number) -> list[Truth]:
    return [batch <= max_num_seqs, max_num_seqs <= LARGEST]


_of_a_batch = partial(
    obligation,
    bounds=f"every batch; max_num_seqs 1 to {LARGEST}",
    given=_a_batch,
    rules=["NANO-DEC-4"],
)


def _of_sizes(
    quantified: Callable[[Iterable[Truth]], Truth],
    max_num_seqs: Number,
    limits: Iterable[int],
    sizes: GraphSizes,
    holds: Callable[[int], Truth],
) -> Statement:
    """The statement that `holds` is true of some or every captured size, for each of the limits."""
    return Statement(
        implies(max_num_seqs == largest, quantified(map(holds, captured_sizes(largest, sizes))))
        for largest in limits
    )


@_of_a_batch("PRV-NANO-GRA-1", where="graph_sizes=powers_of_two")
def powers_of_two_hold_every_batch(batch: Number, max_num_seqs: Number) -> Statement:
    """With powers of two some captured size holds every decode batch, and pads it to less than
    twice its size.
    """
    return _of_sizes(
        some,
        max_num_seqs,
        _LIMITS,
        GraphSizes.POWERS_OF_TWO,
        lambda size: every([size >= batch, size < 2 * batch]),
    )


@_of_a_batch(
    "PRV-NANO-GRA-2",
    where="graph_sizes=released",
    bounds=f"every batch; max_num_seqs 1 to 8, or a multiple of 16 up to {LARGEST}",
)
def released_sizes_hold_some_batches(batch: Number, max_num_seqs: Number) -> Statement:
    """With the released sizes some captured size holds every decode batch, if max_num_seqs is at
    most 8 or a multiple of 16.
    """
    limits = [*range(1, 9), *range(16, LARGEST + 1, 16)]
    return _of_sizes(some, max_num_seqs, limits, GraphSizes.RELEASED, lambda size: size >= batch)


@_of_a_batch("PRV-NANO-GRA-4", where="graph_sizes=powers_of_two", rules=[])
def powers_of_two_end_where_batches_do(batch: Number, max_num_seqs: Number) -> Statement:
    """With powers of two no captured size is twice max_num_seqs or more."""
    # So none is larger than the one that holds the largest batch.
    return _of_sizes(
        every, max_num_seqs, _LIMITS, GraphSizes.POWERS_OF_TWO, lambda size: size < 2 * max_num_seqs
    )


@_of_a_batch("PRV-NANO-GRA-5", where="graph_sizes=released", rules=[])
def released_sizes_end_where_batches_do(batch: Number, max_num_seqs: Number) -> Statement:
    """With the released sizes none above 8 is larger than max_num_seqs."""
    # The first four are captured whatever batches there are.
    return _of_sizes(
        every,
        max_num_seqs,
        _LIMITS,
        GraphSizes.RELEASED,
        lambda size: some([size <= 8, size <= max_num_seqs]),
    )


def _full_batch(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """As many requests as decode in the batch."""
    config = NanoVllmConfig(
        block_size=BLOCK,
        max_num_seqs=numbers["max_num_seqs"],
        max_model_len=4,
        max_num_batched_tokens=max(numbers["batch"], 4),
    )
    return config, unshared(*[(1, 2)] * numbers["batch"])


@_of_a_batch(
    "PRV-NANO-GRA-3", where="graph_sizes=released", expected=Verdict.REFUTED, scenario=_full_batch
)
def released_sizes_hold_every_batch(batch: Number, max_num_seqs: Number) -> Statement:
    """With the released sizes some captured size holds every decode batch."""
    # False above 8: nothing is captured beyond the last multiple of 16.
    return _of_sizes(some, max_num_seqs, _LIMITS, GraphSizes.RELEASED, lambda size: size >= batch)
