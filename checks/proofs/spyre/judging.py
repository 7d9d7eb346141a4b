"""Obligations that engine and rules decide admissions like the proven formulas.

The reference decides admissions by the proven formulas. The rules that judge it compute the same in
another way, and the engine decides on arrays. The solver can use neither, so that they are compared
on every small batch: two decoding requests and a candidate.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations_with_replacement, product

import numpy as np

from checks.proofs.registry import Numbers, Positive, Statement
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import WorstCase
from engine.spyre.scheduler import admission as engine
from spec.core.arithmetic import Number, implies
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    exact_volume_holds,
    model_length_holds,
    shipped_volume_holds,
    worst_case_volumes,
)
from spec.spyre.rules import joining
from spec.spyre.variants import Joining

LONGEST, MOST = 4, 3  # tokens of a request, and those that it may still generate
BLOCKS = (1, 2, 3, 4)  # tokens
LIMITS = (4, 9, 16, 25)  # tokens
LAST_TKVS = (0, 3, 6)  # tokens
_BATCHES = (
    f"two decoding requests and a candidate, each of up to {LONGEST} tokens with up to {MOST} to "
    f"come; blocks up to {BLOCKS[-1]}"
)


# --- every small batch ----------------------------------------------------------------------------


def batches() -> Iterator[tuple[Numbers, WorstCase]]:
    """Every batch of such requests, with each block size."""
    shapes = list(product(range(1, LONGEST + 1), range(1, MOST + 1)))
    for decoding, own in product(combinations_with_replacement(shapes, 2), shapes):
        case = WorstCase([Member(*shape) for shape in decoding], Member(*own))
        numbers = {"prompt_len": own[0], "max_tokens": own[1]}
        for index, (tokens, remaining) in enumerate(decoding):
            numbers |= {f"tokens_{index}": tokens, f"remaining_{index}": remaining}
        for block_size in BLOCKS:
            yield {**numbers, "block_size": block_size}, case


def around_the_tightest_limit() -> Iterator[Numbers]:
    """Every batch with the least limit that admits it, and with one token less."""
    for numbers, case in batches():
        volumes = worst_case_volumes(case.decoding, case.candidate, numbers["block_size"])
        for limit in (max(volumes) - 1, max(volumes)):
            if limit >= 1:
                yield {**numbers, "limit": limit}


def under_any_of_the_limits() -> Iterator[Numbers]:
    """Every batch with each of `LIMITS`, some of which admit it."""
    for (numbers, _), limit in product(batches(), LIMITS):
        yield {**numbers, "limit": limit}


def after_any_of_the_steps() -> Iterator[Numbers]:
    """Every batch with some of `LIMITS` and each of `LAST_TKVS` as tkv of the last step."""
    for (numbers, _), limit, last_tkv in product(batches(), LIMITS[::2], LAST_TKVS):
        yield {**numbers, "limit": limit, "last_tkv": last_tkv}


# --- equal decisions ------------------------------------------------------------------------------

_of_a_batch = partial(obligation, requests=3)
_AT_THE_LIMIT = f"{_BATCHES}, at the tightest limit and one token below"
_of_the_exact_rule = partial(
    _of_a_batch,
    where="admission=exact",
    bounds=_AT_THE_LIMIT,
    rules=["SPY-VOL-4"],
    every=around_the_tightest_limit,
)
_of_the_engine = partial(_of_the_exact_rule, bounds=f"the engine's own formula, {_AT_THE_LIMIT}")


def _joining(case: WorstCase, limit: int, block_size: int, last_tkv: int = 0) -> Joining:
    return Joining(
        decoding=case.decoding,
        candidate=case.candidate,
        limit=limit,
        max_model_len=limit,
        block_size=block_size,
        last_tkv=last_tkv,
    )


def _is_exactly_admitted(case: WorstCase, limit: int, block_size: int) -> bool:
    return bool(exact_volume_holds(case.decoding, case.candidate, limit, block_size))


def _columns(case: WorstCase) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the decoding requests, and the tokens that they may still generate."""
    members = np.array([(member.length, member.remaining) for member in case.decoding], np.int64)
    return members[:, 0], members[:, 1]


@_of_the_engine("PRV-JDG-1")
def the_engine_decides_exactly(case: WorstCase, limit: Positive, block_size: Positive) -> Statement:
    """The engine admits exactly whom the proven rule `exact` admits."""
    own = case.candidate.length, case.candidate.remaining
    found = engine.exact_volume_holds(*_columns(case), own, limit, block_size)
    return Statement(found == _is_exactly_admitted(case, limit, block_size), case.given)


@_of_the_engine("PRV-JDG-2")
def the_engine_refuses_no_more_at_a_glance(
    case: WorstCase, limit: Positive, block_size: Positive
) -> Statement:
    """Whom the engine refuses at a glance, the proven rule `exact` refuses."""
    own = np.array([(case.candidate.length, case.candidate.remaining)], np.int64)
    (refused,) = engine.surely_exceed(*_columns(case), own, limit).tolist()
    admitted = _is_exactly_admitted(case, limit, block_size)
    return Statement(implies(refused, not admitted), case.given)


@_of_the_exact_rule("PRV-JDG-3")
def the_judge_of_the_worst_case_walks_it(
    case: WorstCase, limit: Positive, block_size: Positive
) -> Statement:
    """The rule that judges `exact` says what the proven formula says, whether it walks the worst
    case or looks at its ends.
    """
    walked = all(volume <= limit for volume in joining.volumes_to_come(case.lives, block_size))
    by_ends = joining.worst_case_fits_by_ends(case.lives, limit, block_size)
    admitted = _is_exactly_admitted(case, limit, block_size)
    return Statement([walked == admitted, by_ends == admitted], case.given)


@_of_a_batch(
    "PRV-JDG-4",
    where="admission=documented",
    bounds=f"{_BATCHES}, limits {', '.join(map(str, LIMITS))}",
    rules=["SPY-VOL-2", "SPY-LEN-2"],
    every=under_any_of_the_limits,
)
def the_judges_of_the_text_say_what_the_formulas_say(
    case: WorstCase, limit: Positive, block_size: Positive
) -> Statement:
    """The rules that judge `documented`, of volume and of length, say what the formulas say."""
    asked, numbers = _joining(case, limit, block_size), (limit, block_size)
    volume = documented_volume_holds(case.decoding, case.candidate, *numbers)
    length = model_length_holds(case.decoding, case.candidate, *numbers)
    return Statement(
        [
            joining.documented_projection_fits(asked) == volume,
            joining.model_length_fits(asked) == length,
        ],
        case.given,
    )


@_of_a_batch(
    "PRV-JDG-5",
    where="admission=shipped",
    bounds=f"{_BATCHES}, limits {', '.join(map(str, LIMITS[::2]))}, a last tkv of "
    f"{', '.join(map(str, LAST_TKVS))}",
    rules=["SPY-VOL-3"],
    every=after_any_of_the_steps,
)
def the_judge_of_shipped_says_what_the_formula_says(
    case: WorstCase, limit: Positive, block_size: Positive, last_tkv: Number
) -> Statement:
    """The rule that judges `shipped` says what the formula says."""
    fits = joining.shipped_projection_fits(_joining(case, limit, block_size, last_tkv))
    holds = shipped_volume_holds(case.decoding, case.candidate, limit, block_size, last_tkv)
    return Statement(fits == holds, case.given)
