"""Promised blocks: proven, and every obligation notices a wrong formula."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.prove.prover import prove
from spec.arithmetic import Number
from spec.obligations import OBLIGATIONS, Verdict, blocks

IDS = [name for name in OBLIGATIONS if name.startswith("PRV-RES-")]


@pytest.mark.parametrize("name", IDS)
def test_promises_are_proven(name: str) -> None:
    assert prove(OBLIGATIONS[name]).verdict is Verdict.PROVEN


@pytest.mark.parametrize(
    ("name", "function", "fault"),
    [
        ("PRV-RES-1", "may_reserve", lambda worst, shared, free, reserved: worst - shared <= free),
        (
            "PRV-RES-1",
            "may_reserve",
            lambda worst, shared, free, kept: worst - shared - 1 <= free - kept,
        ),
        ("PRV-RES-1", "promised_blocks", lambda worst, held: worst),
        ("PRV-RES-2", "still_promised", lambda promised, handed_out: promised),
        ("PRV-RES-4", "worst_case_blocks", lambda length, more, size: (length + more - 2) / size),
        ("PRV-RES-5", "worst_case_blocks", lambda length, more, size: (length + more) / size + 2),
    ],
)
def test_a_wrong_formula_is_refuted(
    name: str,
    function: str,
    fault: Callable[..., Number],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, function, fault)
    proof = prove(OBLIGATIONS[name])
    assert proof.verdict is Verdict.REFUTED
    assert proof.numbers


@given(st.data())
@pytest.mark.parametrize("name", IDS)
def test_no_chosen_numbers_break_what_is_proven(name: str, data: st.DataObject) -> None:
    chosen: dict[str, int] = {}

    def integer(variable: str) -> int:
        return chosen.setdefault(variable, data.draw(st.integers(0, 300), label=variable))

    assert not OBLIGATIONS[name].statement(integer).is_counterexample
