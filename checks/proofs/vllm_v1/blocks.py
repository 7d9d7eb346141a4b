"""Obligations about vLLM V1's blocks: slots, prefix hits, and requests that fit in alone.

Whoever is let in can be served alone in an empty pool (PRV-V1-KV-7, PRV-V1-KV-8), so that no
preemption ends with nobody able to run. Source: vllm-v1, "Memory Management & Preemption", "Prefix
Caching" and "Memory Limit: KV Cache Blocks". Positions are placed in blocks by the formulas of
`spec.nano_vllm.config`, which both schedulers share.
"""

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import Number, cdiv, every, implies
from spec.core.blocks import block_index
from spec.vllm_v1.config import (
    hit_blocks_at_most,
    largest_end,
    missing_blocks,
    profiled_blocks,
    slots_end,
)

_ANY = "every length, every block size"

# --- slots ----------------------------------------------------------------------------------------


@obligation(
    "PRV-V1-KV-1",
    "The blocks that a request lacks are never fewer than none; with them it has a slot for each "
    "position, and with one block fewer it would not.",
    bounds=_ANY,
    rules=["V1-KV-7"],
)
def missing_blocks_are_exactly_enough(integer: Integer) -> Statement:
    """Whatever it holds already."""
    end, held, block_size = integer("end"), integer("held"), integer("block_size")
    missing = missing_blocks(end, held, block_size)
    return Statement(
        given=[block_size >= 1, end >= 0, held >= 0],
        claim=every(
            [
                missing >= 0,
                (held + missing) * block_size >= end,
                implies(missing > 0, (held + missing - 1) * block_size < end),
            ]
        ),
    )


@obligation(
    "PRV-V1-KV-2",
    "Each position that a step computes lies in a block of the request's table.",
    bounds=f"{_ANY}, lookahead and model length",
    rules=["V1-KV-7"],
)
def every_position_has_its_block(integer: Integer) -> Statement:
    """No position is beyond the model length, so the cut of the slots there cuts none off."""
    computed, new, lookahead = integer("computed"), integer("new"), integer("lookahead")
    position, max_model_len = integer("position"), integer("max_model_len")
    held, block_size = integer("held"), integer("block_size")
    end = slots_end(computed, new, lookahead, max_model_len)
    return Statement(
        given=[
            block_size >= 1,
            held >= 0,
            lookahead >= 0,
            computed + new <= max_model_len,
            position >= 0,
            position < computed + new,
        ],
        claim=block_index(position, block_size) < held + missing_blocks(end, held, block_size),
    )


@obligation(
    "PRV-V1-KV-3",
    "A step takes no more blocks for a request than hold its new tokens and lookahead, and for one "
    "that decodes without drafts at most one.",
    bounds=f"{_ANY}, lookahead and model length",
    rules=["V1-KV-7"],
)
def a_step_takes_few_blocks(integer: Integer) -> Statement:
    """Its blocks hold what it has computed."""
    computed, new, lookahead = integer("computed"), integer("new"), integer("lookahead")
    max_model_len = integer("max_model_len")
    held, block_size = integer("held"), integer("block_size")
    end = slots_end(computed, new, lookahead, max_model_len)
    missing = missing_blocks(end, held, block_size)
    return Statement(
        given=[block_size >= 1, new >= 1, lookahead >= 0, computed <= held * block_size, held >= 0],
        claim=every(
            [
                missing <= cdiv(new + lookahead, block_size),
                implies(new + lookahead == 1, missing <= 1),
            ]
        ),
    )


# --- prefix hits ----------------------------------------------------------------------------------


@obligation(
    "PRV-V1-KV-4",
    "However much is cached, a hit leaves at least one token to compute; a full hit leaves one "
    "block of them at most.",
    bounds=_ANY,
    rules=["V1-KV-5"],
)
def a_hit_leaves_something_to_compute(integer: Integer) -> Statement:
    """And never covers fewer than no blocks."""
    tokens, block_size = integer("tokens"), integer("block_size")
    hit = hit_blocks_at_most(tokens, block_size)
    left = tokens - hit * block_size
    return Statement(
        given=[block_size >= 1, tokens >= 1],
        claim=every([hit >= 0, left >= 1, left <= block_size]),
    )


@obligation(
    "PRV-V1-KV-5",
    "A block that was hit is never written by the request that hit it.",
    bounds=_ANY,
    rules=["V1-KV-9"],
)
def hit_blocks_are_not_written(integer: Integer) -> Statement:
    """`hit` blocks at the front of its table; it computes from the first token behind them."""
    hit, position, block_size = integer("hit"), integer("position"), integer("block_size")
    return Statement(
        given=[block_size >= 1, hit >= 0, position >= hit * block_size],
        claim=block_index(position, block_size) >= hit,
    )


# --- whoever is let in fits in alone --------------------------------------------------------------


def _largest_end(integer: Integer) -> Number:
    names = ("prompt_len", "max_tokens", "most_drafts", "lookahead", "max_model_len")
    return largest_end(*(integer(name) for name in names))


@obligation(
    "PRV-V1-KV-6",
    "No step needs slots beyond what was asked about when the request was let in.",
    bounds="every prompt, output, number of drafts, lookahead and model length",
    rules=["V1-LIF-7"],
)
def largest_end_bounds_every_step(integer: Integer) -> Statement:
    """Its last token is never computed; `drafts` of this step stand behind its tokens."""
    prompt_len, max_tokens = integer("prompt_len"), integer("max_tokens")
    generated, drafts = integer("generated"), integer("drafts")
    computed, new, lookahead = integer("computed"), integer("new"), integer("lookahead")
    end = slots_end(computed, new, lookahead, integer("max_model_len"))
    return Statement(
        given=[
            generated < max_tokens,
            drafts <= integer("most_drafts"),
            computed + new <= prompt_len + generated + drafts,
        ],
        claim=end <= _largest_end(integer),
    )


@obligation(
    "PRV-V1-KV-7",
    "Whoever is let in finds its blocks in every step when it is alone, and so never preempts "
    "itself then.",
    bounds=f"{_ANY}, pool, output, number of drafts, lookahead and model length",
    rules=["V1-LIF-7"],
)
def whoever_is_let_in_fits_in_alone(integer: Integer) -> Statement:
    """`end` of any step. What it does not hold is free then; what it hits counts as held."""
    end, held, pool = integer("end"), integer("held"), integer("pool")
    block_size = integer("block_size")
    return Statement(
        given=[
            block_size >= 1,
            held >= 0,
            held <= pool,
            end <= _largest_end(integer),  # PRV-V1-KV-6
            cdiv(_largest_end(integer), block_size) <= pool,
        ],
        claim=missing_blocks(end, held, block_size) <= pool - held,
    )


@obligation(
    "PRV-V1-KV-8",
    "Nobody is asked for more than it may need: the step that computes its last token reaches what "
    "was asked about, but for drafts that model length, threshold or budget cut.",
    bounds="every prompt, output, number of drafts, lookahead and model length",
    rules=["V1-LIF-7"],
)
def largest_end_is_reached(integer: Integer) -> Statement:
    """Exactly where there are no drafts."""
    prompt_len, max_tokens = integer("prompt_len"), integer("max_tokens")
    drafts, most_drafts, lookahead = (
        integer("drafts"),
        integer("most_drafts"),
        integer("lookahead"),
    )
    computed = prompt_len + max_tokens - 2
    end = slots_end(computed, 1 + drafts, lookahead, integer("max_model_len"))
    return Statement(
        given=[drafts >= 0, drafts <= most_drafts],
        claim=every(
            [
                end <= _largest_end(integer),
                _largest_end(integer) - end <= most_drafts - drafts,
            ]
        ),
    )


# --- the pool -------------------------------------------------------------------------------------


@obligation(
    "PRV-V1-KV-9",
    "The pool takes as many blocks as fit in nine tenths of the free memory, and not one more.",
    bounds="every amount of memory, every size of a block",
    rules=[],
)
def pool_fits_the_profile(integer: Integer) -> Statement:
    """Rounded down to whole blocks."""
    free_bytes, block_bytes = integer("free_bytes"), integer("block_bytes")
    blocks = profiled_blocks(free_bytes, block_bytes)
    return Statement(
        given=[free_bytes >= 0, block_bytes >= 1],
        claim=every(
            [
                10 * blocks * block_bytes <= 9 * free_bytes,
                10 * (blocks + 1) * block_bytes > 9 * free_bytes,
            ]
        ),
    )
