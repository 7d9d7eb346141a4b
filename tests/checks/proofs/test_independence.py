"""No headline statement uses the formula that it judges."""

import pytest

from checks.cli.referee import REFEREE, referees_page
from checks.proofs.independence import (
    DEFINED,
    HEADLINES,
    called_formulas,
    undefined_formulas,
)
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.spyre import definitions
from spec.spyre.admission import decode_lives


@pytest.mark.parametrize("name", HEADLINES)
def test_a_headline_speaks_of_what_it_judges_and_of_what_is_defined(name: str) -> None:
    assert HEADLINES[name] <= called_formulas(OBLIGATIONS[name])
    assert undefined_formulas(name) == set()


def test_what_is_called_defined_is_defined_by_an_obligation_that_speaks_of_it() -> None:
    for formula, name in DEFINED.items():
        assert formula in called_formulas(OBLIGATIONS[name])


def test_a_statement_that_takes_the_lives_from_the_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(definitions, "row_lives", decode_lives)

    assert undefined_formulas("PRV-ANY-3B") == {"decode_lives"}


def test_the_referees_page_has_every_headline_and_every_move() -> None:
    assert REFEREE.read_text(encoding="utf-8") == referees_page()
