"""Which waiting request is next where rows of like lengths are to meet, and how long others wait.

Every formula takes integers or solver terms. Source: lockstep, queue = aligned.
"""

from spec.core.arithmetic import Number, Truth, select


def whole_length(prompt_len: Number, max_tokens: Number) -> Number:
    """Tokens of a request in all, if it generates all it may: the fewest go first.

    The volume of a batch is that of its longest row times its rows. With requests in this order
    each meets in the batch those that are nearest to it in length.
    """
    return prompt_len + max_tokens


def head_is_due(overtakes: Number, max_overtakes: Number) -> Truth:
    """True if the head of the queue is next, whatever its length.

    `overtakes`: admissions since a head of the queue was admitted.
    """
    return overtakes >= max_overtakes


def overtakes_after(overtakes: Number, of_head: Truth) -> Number:
    """Admissions since a head of the queue was admitted, after one more, of the head or not."""
    return select(of_head, 0, overtakes + 1)


def admissions_left(ahead: Number, overtakes: Number, max_overtakes: Number) -> Number:
    """Most admissions of others before a request that `ahead` requests precede in the queue."""
    return ahead * (max_overtakes + 1) + max_overtakes - overtakes
