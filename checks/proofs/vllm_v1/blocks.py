"""Obligations about vLLM V1's blocks: slots, prefix hits, and requests that fit in alone.

A request that is let in can be served alone in an empty pool (PRV-V1-KV-7, PRV-V1-KV-8), so that no
preemption ends with no request able to run. Source: vllm-v1, "Memory Management & Preemption",
"Prefix Caching" and "Memory Limit: KV Cache Blocks". Positions are placed in blocks by the formulas
of `spec.nano_vllm.config`, which both schedulers share.
"""

from functools import partial

from checks.proofs.registry import Natural, Positive, Statement
from checks.proofs.vllm_v1.moves import of_every_run
from checks.proofs.vllm_v1.scope import obligation
from spec.core.arithmetic import Number, Truth, cdiv, implies
from spec.core.blocks import block_bytes, block_index, missing_blocks
from spec.vllm_v1.config import (
    hit_blocks_at_most,
    largest_end,
    profiled_blocks,
    slots_end,
)

_ANY_LENGTH = "every length, every block size"
_of_lengths = partial(of_every_run, bounds=_ANY_LENGTH)
_of_slots = partial(
    of_every_run, bounds=f"{_ANY_LENGTH}, lookahead and model length", rules=["V1-KV-7"]
)

# --- slots ----------------------------------------------------------------------------------------


@_of_lengths("PRV-V1-KV-1", rules=["V1-KV-7"])
def missing_blocks_are_exactly_enough(
    end: Natural, held: Natural, block_size: Positive
) -> Statement:
    """The blocks that a request lacks are never fewer than none; with them it has a slot for each
    position, and with one block fewer it would not.
    """
    missing = missing_blocks(end, held, block_size)
    return Statement(
        [
            missing >= 0,
            (held + missing) * block_size >= end,
            implies(missing > 0, (held + missing - 1) * block_size < end),
        ]
    )


@_of_slots("PRV-V1-KV-2")
def every_position_has_its_block(
    computed: Number,
    new: Number,
    lookahead: Natural,
    position: Natural,
    max_model_len: Number,
    held: Natural,
    block_size: Positive,
) -> Statement:
    """Each position that a step computes lies in a block of the request's table."""
    # No position is beyond the model length, so the cut of the slots there cuts none off.
    end = slots_end(computed + new, lookahead, max_model_len)
    return Statement(
        block_index(position, block_size) < held + missing_blocks(end, held, block_size),
        given=[computed + new <= max_model_len, position < computed + new],
    )


@_of_slots("PRV-V1-KV-3")
def a_step_takes_few_blocks(
    computed: Number,
    new: Positive,
    lookahead: Natural,
    max_model_len: Number,
    held: Natural,
    block_size: Positive,
) -> Statement:
    """A step takes no more blocks for a request than hold its new tokens and lookahead, and for one
    that decodes without drafts at most one.
    """
    # Its blocks hold what it has computed.
    end = slots_end(computed + new, lookahead, max_model_len)
    missing = missing_blocks(end, held, block_size)
    return Statement(
        [missing <= cdiv(new + lookahead, block_size), implies(new + lookahead == 1, missing <= 1)],
        given=[computed <= held * block_size],
    )


# --- prefix hits ----------------------------------------------------------------------------------


@_of_lengths("PRV-V1-KV-4", rules=["V1-KV-5"])
def a_hit_leaves_something_to_compute(tokens: Positive, block_size: Positive) -> Statement:
    """However much is cached, a hit leaves at least one token to compute; a full hit leaves one
    block of them at most.
    """
    hit = hit_blocks_at_most(tokens, block_size)
    left = tokens - hit * block_size
    return Statement([hit >= 0, left >= 1, left <= block_size])


@_of_lengths("PRV-V1-KV-5", rules=[])
def hit_blocks_are_not_written(hit: Natural, position: Number, block_size: Positive) -> Statement:
    """A block that was hit is never written by the request that hit it."""
    # `hit` blocks at the front of its table; it computes from the first token behind them.
    return Statement(block_index(position, block_size) >= hit, [position >= hit * block_size])


# --- a request that is let in fits in alone -------------------------------------------------------

_of_the_largest_end = partial(
    of_every_run,
    where="oversized=refused",
    bounds="every prompt, output, number of drafts, lookahead and model length",
    rules=["V1-LIF-7"],
)


@_of_the_largest_end("PRV-V1-KV-6", is_step=True)
def largest_end_bounds_every_step(
    prompt_len: Number,
    max_tokens: Number,
    generated: Number,
    drafts: Number,
    reached: Number,
    lookahead: Number,
    max_model_len: Number,
    most_drafts: Number,
) -> Statement:
    """No step needs slots beyond what was asked about when the request was let in."""
    # Its last token is never computed; `drafts` of this step stand behind its tokens. The step
    # computes the tokens before the one that is `reached`.
    end = slots_end(reached, lookahead, max_model_len)
    return Statement(
        end <= largest_end(prompt_len, max_tokens, most_drafts, lookahead, max_model_len),
        given=[
            generated < max_tokens,
            drafts <= most_drafts,
            reached <= prompt_len + generated + drafts,
        ],
    )


def _fits_the_pool(
    end: Number,
    pool: Number,
    block_size: Number,
    prompt_len: Number,
    max_tokens: Number,
    most_drafts: Number,
    lookahead: Number,
    max_model_len: Number,
) -> list[Truth]:
    """The pool holds what was asked about, and no step needs more (PRV-V1-KV-6)."""
    most = largest_end(prompt_len, max_tokens, most_drafts, lookahead, max_model_len)
    return [end <= most, cdiv(most, block_size) <= pool]


@_of_the_largest_end(
    "PRV-V1-KV-7",
    bounds=f"{_ANY_LENGTH}, pool, output, number of drafts, lookahead and model length",
    given=_fits_the_pool,
)
def what_is_let_in_fits_in_alone(
    end: Number, held: Natural, pool: Number, block_size: Positive
) -> Statement:
    """A request that is let in finds its blocks in every step when it is alone, and so never
    preempts itself then.
    """
    # `end` of any step. What it does not hold is free then; what it hits counts as held.
    return Statement(missing_blocks(end, held, block_size) <= pool - held, [held <= pool])


@_of_the_largest_end("PRV-V1-KV-8")
def largest_end_is_reached(
    prompt_len: Number,
    max_tokens: Number,
    drafts: Natural,
    most_drafts: Number,
    lookahead: Number,
    max_model_len: Number,
) -> Statement:
    """No request is asked for more than it may need: the step that computes its last token reaches
    what was asked about, but for drafts that model length, threshold or budget cut.
    """
    end = slots_end(prompt_len + max_tokens - 1 + drafts, lookahead, max_model_len)
    most = largest_end(prompt_len, max_tokens, most_drafts, lookahead, max_model_len)
    return Statement([end <= most, most - end <= most_drafts - drafts], [drafts <= most_drafts])


# --- the pool -------------------------------------------------------------------------------------


@obligation("PRV-V1-KV-9", bounds="every amount of memory, every size of a block", rules=[])
def pool_fits_the_profile(free_bytes: Natural, bytes_of_block: Positive) -> Statement:
    """The pool takes as many blocks as fit in nine tenths of the free memory, and not one more."""
    blocks, tenths = profiled_blocks(free_bytes, bytes_of_block), 9 * free_bytes
    fit, too_many = 10 * blocks * bytes_of_block, 10 * (blocks + 1) * bytes_of_block
    return Statement([fit <= tenths, too_many > tenths])


@obligation("PRV-V1-KV-10", bounds="every shape of a model, every size of a block", rules=[])
def bytes_of_a_block_are_those_of_each_element(
    layers: Natural,
    heads: Natural,
    head_dim: Natural,
    block_size: Positive,
    element_bytes: Natural,
) -> Statement:
    """With one of each a block has two bytes, for a key and a value; one layer, head, dimension of
    a head, slot or byte of an element more takes as many as one alone.
    """
    # Counted one by one: this holds for one formula and no other.
    shape: dict[str, Number] = {
        "layers": layers,
        "heads": heads,
        "head_dim": head_dim,
        "block_size": block_size,
        "element_bytes": element_bytes,
    }
    there = block_bytes(**shape)
    one_more = [
        block_bytes(**shape | {name: size + 1}) == there + block_bytes(**shape | {name: 1})
        for name, size in shape.items()
    ]
    return Statement([block_bytes(1, 1, 1, 1, 1) == 2, *one_more])
