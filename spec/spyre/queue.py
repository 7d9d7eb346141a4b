"""Which waiting request is next where rows of like widths are to meet, and how long others wait.

Every formula takes integers or solver terms. Source: lockstep, queue = aligned.
"""

from spec.core.arithmetic import Number, Truth, every, floor_div, maximum, minimum, select


def row_width(prompt_len: Number, max_tokens: Number, alike: Number) -> Number:
    """Width of a request's row in tokens if it generates `max_tokens`; the narrowest goes first.

    The volume of a batch is the width of its widest row times its rows. In this order each meets in
    the batch those that are nearest to it. `alike`: rows up to there count as equally wide.
    """
    return maximum(prompt_len + max_tokens, alike)


def alike_width(limit: Number, max_num_seqs: Number, chunk_size: Number) -> Number:
    """Width up to which rows cost others no place, in tokens: a slot's share of the volume limit.

    And a chunk: a slightly wider row costs few places, and rows come to their widths one after
    another. Where as many prompts are of one such length, to set them apart costs more: each of
    their chunks waits for a decode step of a batch that cannot be full.
    """
    return floor_div(limit, max_num_seqs) + chunk_size


def waits_for_rows(width: Number, alike: Number, decoding: Number, waiting: Number) -> Truth:
    """True if a waiting request lets the rows that decode go on before its prefill begins.

    Each of its chunks keeps every row from its next token, and lets those that wait come nearer: a
    wide request begins once rows that decode are at most one more than requests that wait.
    """
    return every([width > alike, decoding > waiting + 1])


def chosen_from(cohort: Number, waiting: Number, max_overtakes: Number) -> Number:
    """How many requests at the head of the queue the next one is chosen from.

    `cohort`: those that are left of the last choice. Once there is none, as many as may be, of the
    requests `waiting`: the last of them can be overtaken by none and the first by all others.
    """
    return select(cohort > 0, cohort, minimum(waiting, max_overtakes + 1))


def overtakes_left(ahead: Number, cohort: Number, max_overtakes: Number) -> Number:
    """Most admissions of requests behind it before a request that `ahead` others precede."""
    return select(ahead < cohort, cohort - 1 - ahead, max_overtakes)


def admissions_left(ahead: Number, cohort: Number, max_overtakes: Number) -> Number:
    """Most admissions of others before a request that `ahead` others precede in the queue."""
    return ahead + overtakes_left(ahead, cohort, max_overtakes)
