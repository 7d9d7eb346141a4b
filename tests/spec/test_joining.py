"""Conditions of joining, compared row by row without the formulas that decide."""

from collections import Counter
from itertools import product
from random import Random

import pytest

from spec.spyre import admission, padding
from spec.spyre.admission import Member
from spec.spyre.rules import admission as rules
from spec.spyre.rules import joining
from spec.spyre.rules.admission import CONDITIONS
from spec.spyre.variants import ADMISSIONS, Joining

ROWS = list(product(range(1, 6), range(1, 5)))  # tokens and decode steps


def exhaustive() -> list[Joining]:
    """Batches of up to two rows and a newcomer, with small lengths, around every small limit."""
    draw = Random(0)
    batches = [(row,) for row in ROWS] + [*product(ROWS[::3], ROWS[::2])]
    return [
        Joining(
            decoding=[Member(*row) for row in batch],
            candidate=Member(*newcomer),
            limit=draw.randint(4, 36),
            max_model_len=draw.randint(4, 12),
            block_size=draw.randint(1, 4),
            last_tkv=draw.randint(0, 9),
        )
        for batch in batches
        for newcomer in ROWS
    ]


FITS = {rule: fits for rule, (_, fits) in CONDITIONS.items()}
HOLDS = {
    condition.rule: condition.holds
    for variant in ADMISSIONS.values()
    for condition in variant.conditions
}


@pytest.mark.parametrize("rule", FITS)
def test_the_rule_and_the_formula_that_decides_say_the_same(rule: str) -> None:
    cases = exhaustive()
    said = Counter((FITS[rule](case), HOLDS[rule](case)) for case in cases)

    assert said.keys() == {(True, True), (False, False)}


def test_the_worst_case_by_ends_is_that_of_all_steps() -> None:
    said = Counter[tuple[bool, bool]]()
    for case in exhaustive():
        lives = joining.row_lives(case)
        walked = max(joining.volumes_to_come(lives, case.block_size), default=0)
        for limit in (walked - 1, walked):
            by_ends = joining.worst_case_fits_by_ends(lives, limit, case.block_size)
            said[by_ends, walked <= limit] += 1

    assert said.keys() == {(True, True), (False, False)}


@pytest.mark.parametrize(
    "formula",
    ["joined_tkvs", "projected_volumes", "decode_lives", "rows_until", "peak_tkv", "volume"],
)
def test_no_rule_asks_a_formula_of_the_machine(
    formula: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> None:
        raise AssertionError(f"{formula} was asked")

    for module in (admission, padding):
        if hasattr(module, formula):
            monkeypatch.setattr(module, formula, fails)

    assert [[fits(case) for fits in FITS.values()] for case in exhaustive()[:20]]


@pytest.mark.parametrize("table", ["CONDITIONS", "REGISTRY"])
def test_a_condition_without_formula_or_rule_is_refused_with_a_sentence(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {rule: it for rule, it in getattr(rules, table).items() if rule != "SPY-VOL-4"}
    monkeypatch.setattr(rules, table, others)

    with pytest.raises(LookupError, match="exact: no rule judges its condition SPY-VOL-4"):
        rules._refuse_conditions_without_a_rule()
