"""The given facts of every statement are true, and some numbers satisfy them."""

from itertools import islice

import pytest

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Verdict
from checks.proofs.sampling import drawn

TRIES = 60_000
WANTED = 25  # numbers that satisfy what is given


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith("PRV-ANY") else pytest.mark.thorough)
        for name in OBLIGATIONS
    ],
)
def test_an_obligation_speaks_of_some_numbers_and_its_facts_hold_for_them(name: str) -> None:
    met = list(islice(drawn(OBLIGATIONS[name], TRIES), WANTED))
    assert len(met) == WANTED
    for numbers, statement in met:
        assert all(statement.facts), numbers
        if OBLIGATIONS[name].expected is Verdict.PROVEN:
            assert statement.claim, numbers
