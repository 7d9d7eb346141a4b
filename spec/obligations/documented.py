"""Obligations about the volume rules: what the text's rule claims, and what `exact` keeps.

Source: spyre, "Volumetric Constraint - Additional Details". A batch of one decoding request and
the candidate is enough to refute the text; for `exact` that batch is what is decided so far.
"""

from spec.admission import Member, documented_volume_holds, exact_volume_holds
from spec.arithmetic import Number, Truth, every, implies
from spec.config import Admission, Config
from spec.obligations.registry import Integer, Numbers, Statement, Verdict, obligation
from spec.padding import max_tkv, volume
from spec.requests import Prompt, Request

BLOCK = 2  # tokens; small enough to be followed by hand
REAL_BLOCK = 64  # tokens, of the product


def _within_limit(
    first: Member, second: Member, step: Number, limit: Number, block_size: int
) -> Truth:
    """The volume of the `step`-th decode step of the worst case, with both requests or with one.

    The second is the candidate: its first token comes from its last chunk.
    """
    first_lives = step <= first.remaining
    second_lives = step <= second.remaining - 1
    lengths = [first.length + step, second.length + step]
    return every(
        [
            implies(
                every([first_lives, second_lives]),
                volume(2, max_tkv(lengths, block_size)) <= limit,
            ),
            implies(first_lives, lengths[0] <= limit),
            implies(second_lives, lengths[1] <= limit),
        ]
    )


def _pair(integer: Integer) -> tuple[Member, Member, list[Truth]]:
    """A request that decodes, the candidate, and what is given of both: each is served alone."""
    first = Member(integer("decoding_tokens"), integer("decoding_remaining"))
    second = Member(integer("prompt_len"), integer("max_tokens"))
    limit = integer("limit")
    given = [
        first.length >= 1,
        first.remaining >= 1,
        second.length >= 1,
        second.remaining >= 1,
        first.length + first.remaining <= limit,
        second.length + second.remaining - 1 <= limit,
    ]
    return first, second, given


def _scenario(numbers: Numbers) -> tuple[Config, list[Request]]:
    """Request 0 has decoded once when request 1, behind it in the queue, completes its prefill."""
    config = Config(
        block_size=BLOCK,
        chunk_size=BLOCK * 8,
        max_model_len=BLOCK * 64,
        max_num_seqs=2,
        max_batch_tkv_limit=numbers["limit"],
        admission=Admission.DOCUMENTED,
        prefix_caching=False,
    )
    first = Request(
        id="0",
        prompt=Prompt.of_stream("own:0", numbers["decoding_tokens"] - 1),
        max_tokens=numbers["decoding_remaining"] + 2,
    )
    second = Request(
        id="1",
        prompt=Prompt.of_stream("own:1", numbers["prompt_len"]),
        max_tokens=numbers["max_tokens"],
    )
    return config, [first, second]


@obligation(
    "PRV-VOL-1",
    "The text's projection keeps the limit: whoever it admits next to one decoding request never "
    "takes part in a step over it.",
    bounds="every length up to 16 tokens; block 2",
    rules=["SPY-VOL-1"],
    expected=Verdict.REFUTED,
    scenario=_scenario,
)
def documented_keeps_the_limit(integer: Integer) -> Statement:
    """False as the text has it: the newcomer gets no slack for a block that the other crosses."""
    first, second, given = _pair(integer)
    limit, step = integer("limit"), integer("step")
    small = [first.length >= 2, first.length <= 16, second.length <= 16, limit <= 64]
    admitted = documented_volume_holds([first], second, limit, BLOCK)
    return Statement(
        given=[*given, *small, step >= 1, admitted],
        claim=_within_limit(first, second, step, limit, BLOCK),
    )


@obligation(
    "PRV-VOL-2",
    "`exact` keeps the limit: whoever it admits next to one decoding request never takes part in a "
    "step over it.",
    bounds="one decoding request and one candidate, every length and limit; block 64",
    rules=["SPY-VOL-1", "SPY-VOL-4"],
)
def exact_keeps_the_limit(integer: Integer) -> Statement:
    """In any step of the worst case, with both requests or with the one that lives longer."""
    first, second, given = _pair(integer)
    limit, step = integer("limit"), integer("step")
    admitted = exact_volume_holds([first], second, limit, REAL_BLOCK)
    return Statement(
        given=[*given, step >= 1, admitted],
        claim=_within_limit(first, second, step, limit, REAL_BLOCK),
    )
