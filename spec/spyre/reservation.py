"""Block reservation: the blocks that an admitted request may ever need are set aside for it.

Source: sendnn-inference 2.6.3; the text assumes that there are enough blocks. All numbers are
blocks unless the name says otherwise; every formula takes integers or solver terms.

Cached blocks that a new request finds are of two sorts: *shared* ones are held by another request
already, *revived* ones are free and become held again.
"""

from spec.core.arithmetic import Number, Truth, floor_div, round_up
from spec.core.blocks import block_count


def worst_case_blocks(prefill_len: Number, remaining: Number, block_size: Number) -> Number:
    """Blocks for all tokens that a request may ever have; lengths in tokens.

    The last token's key and value are never written, so this is at most one block too many.
    """
    return block_count(prefill_len + remaining, block_size)


def released_pool_blocks(max_num_seqs: Number, max_model_len: Number, block_size: Number) -> Number:
    """Blocks that requests can hold where 2.6.3 is given no number; `max_model_len` in tokens.

    The whole blocks of every slot and the padding block, rounded up to a multiple of the slots; the
    padding block is not counted. Where the model length is no multiple of the block, that may be
    less than all slots at full length.
    """
    full_rows = max_num_seqs * floor_div(max_model_len, block_size)
    return round_up(full_rows + 1, max_num_seqs) - 1


def may_reserve(worst_case: Number, shared: Number, free: Number, reserved: Number) -> Truth:
    """True if a request can be promised its worst case: shared blocks need no free one.

    `free`: blocks that no request holds, cached ones included; `reserved`: those already promised.
    """
    return worst_case - shared <= free - reserved


def promised_blocks(worst_case: Number, held: Number) -> Number:
    """What is promised to an admitted request, beyond the cached blocks that it holds."""
    return worst_case - held


def still_promised(promised: Number, handed_out: Number) -> Number:
    """Blocks still promised when `handed_out` of them have been handed out."""
    return promised - handed_out
