"""Prompt and batch layout: proven for every length, and a wrong formula is noticed."""

from collections.abc import Callable
from types import ModuleType

import pytest

from checks.prove.prover import prove
from spec import padding as formulas
from spec.arithmetic import Number
from spec.obligations import OBLIGATIONS, Verdict, decode, padding

IDS = [one for one in OBLIGATIONS if one.startswith(("PRV-PAD", "PRV-CHK", "PRV-DEC", "PRV-TKV"))]


@pytest.mark.parametrize("name", IDS)
def test_layout_is_proven(name: str) -> None:
    assert prove(OBLIGATIONS[name]).verdict is Verdict.PROVEN


def one_more(formula: Callable[..., Number]) -> Callable[..., Number]:
    """The formula, off by one."""
    return lambda *arguments: formula(*arguments) + 1


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("PRV-PAD-1", padding, "left_padding"),
        ("PRV-PAD-1", padding, "right_padding"),
        ("PRV-PAD-2", padding, "right_padding"),
        ("PRV-PAD-3", padding, "left_padding"),
        ("PRV-PAD-4", padding, "padded_length"),
        ("PRV-CHK-1", padding, "chunk_start"),
        ("PRV-CHK-1", padding, "chunk_end"),
        ("PRV-CHK-2", padding, "chunk_end"),
        ("PRV-CHK-3", padding, "chunk_count"),
        ("PRV-CHK-4", padding, "active_chunk"),
        ("PRV-DEC-2", decode, "row_left_padding"),
        ("PRV-DEC-3", decode, "row_left_padding"),
        ("PRV-DEC-4", decode, "row_left_padding"),
        ("PRV-DEC-6", decode, "row_left_padding"),
        ("PRV-DEC-8A", decode, "max_tkv"),
    ],
)
def test_a_formula_that_is_off_by_one_is_refuted(
    name: str, module: ModuleType, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, one_more(getattr(formulas, function)))
    proof = prove(OBLIGATIONS[name])
    assert proof.verdict is Verdict.REFUTED
    assert proof.numbers


@pytest.mark.parametrize(
    "name", ["PRV-TKV-2", "PRV-TKV-3", "PRV-TKV-4", "PRV-TKV-6", "PRV-TKV-7", "PRV-TKV-8A"]
)
def test_padding_by_tokens_instead_of_blocks_is_refuted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if rows were filled up to the batch's width exactly, inside a block."""

    def by_tokens(length: Number, width_blocks: Number, block_size: Number) -> Number:
        return width_blocks * block_size - length

    monkeypatch.setattr(decode, "row_left_padding", by_tokens)
    assert prove(OBLIGATIONS[name]).verdict is Verdict.REFUTED
