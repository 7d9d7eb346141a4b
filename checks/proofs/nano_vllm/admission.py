"""Obligations about nano-vLLM's gates, its prefix hits, and the batch sizes of captured graphs.

The argument for the budget, any number of sequences in a prefill step: whoever passes the token
gate leaves the step's tokens within it (PRV-NANO-ADM-1); all others enter only through their sum.

Source: nano-vllm, "Admission Checks: Two Gates, Both Must Pass", "With Prefix Cache: Reuse the
Work", "Why Prefix Caching Matters in Practice" and "CUDA Graphs: Why Decode Gets Special
Treatment".
"""

from collections.abc import Iterable

from checks.proofs.nano_vllm.blocks import LEAST_BLOCK
from checks.proofs.registry import Integer, Numbers, Statement, Verdict, obligation
from spec.core.arithmetic import Truth, every, implies, some
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


def _prefill(integer: Integer) -> list[Truth]:
    """`batched`: what the step computes already, of a sequence `cached` tokens need not be."""
    batched, budget = integer("batched"), integer("budget")
    length, cached = integer("length"), integer("cached")
    return [batched >= 0, batched <= budget, cached >= 0, cached <= length]


@obligation(
    "PRV-NANO-ADM-1",
    "Whoever passes the token gate leaves the tokens that the step computes within the budget.",
    bounds="any number of sequences; every length, hit and budget; both readings of the gate",
    rules=["NANO-ADM-1"],
)
def token_gate_keeps_the_budget(integer: Integer) -> Statement:
    """Only what is not cached is computed, whatever was held against the budget."""
    batched, budget = integer("batched"), integer("budget")
    length, cached = integer("length"), integer("cached")

    def claim(gate: TokenGate) -> Truth:
        passes = within_budget(batched, counted_tokens(length, cached, gate), budget)
        return implies(passes, batched + length - cached <= budget)

    return Statement(given=_prefill(integer), claim=every(claim(gate) for gate in TokenGate))


def _cached_are_free(integer: Integer, gate: TokenGate) -> Truth:
    """Whoever's new tokens fit the budget passes."""
    batched, budget = integer("batched"), integer("budget")
    length, cached = integer("length"), integer("cached")
    passes = within_budget(batched, counted_tokens(length, cached, gate), budget)
    return implies(batched + length - cached <= budget, passes)


@obligation(
    "PRV-NANO-PFX-1",
    "Tokens that are found in the cache do not count against the budget, where the gate counts "
    "new tokens.",
    bounds="every length, hit and budget",
    rules=["NANO-PFX-7"],
)
def new_tokens_alone_count(integer: Integer) -> Statement:
    """As the text has it."""
    claim = _cached_are_free(integer, TokenGate.NEW_TOKENS)
    return Statement(given=_prefill(integer), claim=claim)


BLOCK = LEAST_BLOCK  # tokens; of the runs that show a refutation


def _behind_another(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt that fills the cache; then one of other tokens, and one that finds its beginning."""
    config = NanoVllmConfig(
        block_size=BLOCK,
        num_blocks=4 * numbers["budget"],
        max_model_len=numbers["budget"],
        max_num_batched_tokens=numbers["budget"],
    )
    shared = ("shared", numbers["cached"])
    prompts = (
        [shared],
        [("own:1", numbers["batched"])],
        [shared, ("own:2", numbers["length"] - numbers["cached"])],
    )
    return config, [
        Request(id=str(index), prompt=Prompt.of_parts(parts), max_tokens=1, arrival=min(index, 1))
        for index, parts in enumerate(prompts)
    ]


@obligation(
    "PRV-NANO-PFX-2",
    "Tokens that are found in the cache do not count against the budget, as the release has it.",
    bounds=f"every length, hit and budget; block {BLOCK}",
    rules=["NANO-PFX-7"],
    expected=Verdict.REFUTED,
    scenario=_behind_another,
)
def all_tokens_count(integer: Integer) -> Statement:
    """False: the gate adds the cached ones. Prompts fit the model length, and that the budget."""
    batched, budget = integer("batched"), integer("budget")
    length, cached = integer("length"), integer("cached")
    return Statement(
        given=[
            *_prefill(integer),
            batched >= 1,
            batched < budget,
            length < budget,
            cached < length,
            cached % BLOCK == 0,
        ],
        claim=_cached_are_free(integer, TokenGate.FULL_LENGTH),
    )


# --- the memory gate ------------------------------------------------------------------------------


@obligation(
    "PRV-NANO-ADM-2",
    "Whoever passes the memory gate finds its blocks; where the gate leaves out those that others "
    "hold, whoever is refused would not.",
    bounds="any number of sequences, any pool, any prefix hit; both readings of the gate",
    rules=["NANO-ADM-2"],
)
def memory_gate_is_enough(integer: Integer) -> Statement:
    """Of its blocks `shared` are found and held by somebody, `revived` are found and free."""
    free, blocks = integer("free"), integer("blocks")
    shared, revived = integer("shared"), integer("revived")
    fresh = blocks - shared - revived
    enough = free - revived - fresh >= 0

    def passes(gate: MemoryGate) -> Truth:
        return can_allocate(free, blocks, shared, gate)

    return Statement(
        given=[free >= 0, shared >= 0, revived >= 0, fresh >= 0],
        claim=every(
            [
                implies(passes(MemoryGate.ALL_BLOCKS), enough),
                passes(MemoryGate.NEW_BLOCKS) == enough,
            ]
        ),
    )


@obligation(
    "PRV-NANO-ADM-3",
    "Whoever is let in passes both gates when nobody else is there, also after a preemption.",
    bounds="every length, output, pool and block size; every reading of the gates",
    rules=["NANO-LIF-7"],
)
def whoever_is_let_in_is_admitted_alone(integer: Integer) -> Statement:
    """`length` of a prefill: prompt and what was generated, a token at least is missing.

    The budget is at least the model length, as the configuration demands.
    """
    length, total, budget = integer("length"), integer("total"), integer("budget")
    block_size, num_blocks = integer("block_size"), integer("num_blocks")
    cached, blocks = integer("cached"), block_count(length, block_size)
    return Statement(
        given=[
            block_size >= LEAST_BLOCK,
            length >= 1,
            length < total,
            total <= budget,
            cached >= 0,
            cached <= length,
            block_count(total - 1, block_size) <= num_blocks,
        ],
        claim=every(
            [
                *(within_budget(0, counted_tokens(length, cached, g), budget) for g in TokenGate),
                *(can_allocate(num_blocks, blocks, 0, gate) for gate in MemoryGate),
            ]
        ),
    )


# --- prefix hits ----------------------------------------------------------------------------------


@obligation(
    "PRV-NANO-PFX-3",
    "Where the last block is not looked up, a full hit leaves at least one token to compute and at "
    "most a block of them.",
    bounds="every length, every block size",
    rules=["NANO-PFX-8"],
)
def last_block_is_computed(integer: Integer) -> Statement:
    """As in the later commit."""
    length, block_size = integer("length"), integer("block_size")
    left = length - lookup_blocks(length, block_size, FullHit.LAST_COMPUTED) * block_size
    return Statement(
        given=[block_size >= 1, length >= 1], claim=every([left >= 1, left <= block_size])
    )


def _twice_the_same(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """One prompt, served twice."""
    length, block_size = numbers["length"], numbers["block_size"]
    config = NanoVllmConfig(
        block_size=block_size,
        num_blocks=2 * length,
        max_model_len=length + 1,
        max_num_batched_tokens=length + 1,
    )
    prompt = Prompt.of_stream("shared", length)
    return config, [
        Request(id=str(index), prompt=prompt, max_tokens=1, arrival=index) for index in range(2)
    ]


@obligation(
    "PRV-NANO-PFX-4",
    "A full hit leaves at least one token to compute, as the release has it.",
    bounds="every length, every block size from 2",
    rules=["NANO-PFX-8"],
    expected=Verdict.REFUTED,
    scenario=_twice_the_same,
)
def a_full_hit_leaves_a_token(integer: Integer) -> Statement:
    """False: a prompt of whole blocks is found as a whole, and gets a token all the same."""
    length, block_size = integer("length"), integer("block_size")
    cached = lookup_blocks(length, block_size, FullHit.ALL_CACHED) * block_size
    return Statement(given=[block_size >= LEAST_BLOCK, length >= 1], claim=length - cached >= 1)


# --- captured graphs ------------------------------------------------------------------------------

LARGEST = 512  # sequences; the released limit
_BATCHES = f"every batch; max_num_seqs 1 to {LARGEST}"


def _holds(integer: Integer, largest: int, reading: GraphSizes) -> Truth:
    """Some captured size holds the batch where batches have up to `largest` sequences."""
    batch = integer("batch")
    return some(size >= batch for size in captured_sizes(largest, reading))


def _for_limits(integer: Integer, claims: Iterable[tuple[int, Truth]]) -> Truth:
    """The claim about the limit that is chosen."""
    return every(implies(integer("max_num_seqs") == largest, claim) for largest, claim in claims)


def _batch(integer: Integer) -> list[Truth]:
    batch, largest = integer("batch"), integer("max_num_seqs")
    return [batch >= 1, batch <= largest, largest <= LARGEST]


@obligation(
    "PRV-NANO-GRA-1",
    "With powers of two some captured size holds every decode batch, and pads it to less than "
    "twice its size.",
    bounds=_BATCHES,
    rules=["NANO-DEC-4"],
)
def powers_of_two_hold_every_batch(integer: Integer) -> Statement:
    """The next larger power."""
    batch = integer("batch")

    def claim(largest: int) -> Truth:
        sizes = captured_sizes(largest, GraphSizes.POWERS_OF_TWO)
        return some(every([size >= batch, size < 2 * batch]) for size in sizes)

    limits = range(1, LARGEST + 1)
    return Statement(
        given=_batch(integer),
        claim=_for_limits(integer, ((largest, claim(largest)) for largest in limits)),
    )


def _released_sizes(integer: Integer, limits: Iterable[int]) -> Truth:
    held = ((largest, _holds(integer, largest, GraphSizes.RELEASED)) for largest in limits)
    return _for_limits(integer, held)


@obligation(
    "PRV-NANO-GRA-2",
    "With the released sizes some captured size holds every decode batch, if max_num_seqs is at "
    "most 8 or a multiple of 16.",
    bounds=_BATCHES,
    rules=["NANO-DEC-4"],
)
def released_sizes_hold_some_batches(integer: Integer) -> Statement:
    """As with the released limit."""
    limits = [*range(1, 9), *range(16, LARGEST + 1, 16)]
    return Statement(given=_batch(integer), claim=_released_sizes(integer, limits))


def _full_batch(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """As many requests as decode in the batch."""
    config = NanoVllmConfig(
        block_size=BLOCK,
        max_num_seqs=numbers["max_num_seqs"],
        max_model_len=4,
        max_num_batched_tokens=max(numbers["batch"], 4),
    )
    return config, [
        Request(id=str(index), prompt=Prompt.of_stream(f"own:{index}", 1), max_tokens=2)
        for index in range(numbers["batch"])
    ]


@obligation(
    "PRV-NANO-GRA-3",
    "With the released sizes some captured size holds every decode batch.",
    bounds=_BATCHES,
    rules=["NANO-DEC-4"],
    expected=Verdict.REFUTED,
    scenario=_full_batch,
)
def released_sizes_hold_every_batch(integer: Integer) -> Statement:
    """False above 8: nothing is captured beyond the last multiple of 16."""
    claim = _released_sizes(integer, range(1, LARGEST + 1))
    return Statement(given=_batch(integer), claim=claim)
