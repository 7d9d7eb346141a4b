"""Cited facts are instances of their obligations, and are void when those are not proven."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import z3

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove, prove_all, settled
from checks.proofs.registry import (
    Case,
    Fact,
    Integer,
    Obligation,
    Proof,
    Statement,
    Verdict,
    cite,
    obligation,
)
from checks.proofs.spyre.rows import cite_rows
from checks.proofs.spyre.worst_case import WorstCase
from spec.core.arithmetic import Number, maximum


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register an obligation of this name and statement, for as long as the test runs."""

    def planted(id_: str, written: Callable[..., Statement], **fields: Any) -> None:
        monkeypatch.setitem(OBLIGATIONS, id_, None)
        del OBLIGATIONS[id_]
        obligation(id_, sentence="Planted.", bounds="all", rules=(), **fields)(written)

    return planted


def verdicts(*names: str) -> dict[str, tuple[Verdict, str]]:
    return {outcome.obligation: (outcome.verdict, outcome.reason) for outcome in prove_all(names)}


# --- a fact is an instance ------------------------------------------------------------------------


def test_a_fact_is_what_the_obligation_claims_where_what_it_is_given_holds() -> None:
    row, size = z3.Ints("x size")
    fact = cite("PRV-PEAK-1C", longest=row, longer=row + 2, block_size=size)
    own = OBLIGATIONS["PRV-PEAK-1C"].statement(
        {"longest": row, "longer": row + 2, "block_size": size}.__getitem__
    )
    assert fact.truth.eq(z3.Or(z3.Not(z3.And(own.given)), own.claim))


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        (cite("PRV-DEC-5", row=1), "PRV-DEC-5 needs a value for block_size"),
        (cite("PRV-DEC-5", row=1, block_size=2, size=2), "PRV-DEC-5 is not about row, "),
        (cite("PRV-LEN-3"), "PRV-LEN-3 is not expected to be proven"),
        # Four rows were discharged at the product's block, and not at any.
        (cite_rows("PRV-PEAK-4", [1, 2, 3, 4], fewer_steps=1, steps=2, block_size=16), "PRV-PEAK-"),
        (cite_rows("PRV-MON-2", [1, 2, 3], step=0, block_size=2, fewest=2), "PRV-MON-2B is not"),
        # Of three requests it is not said what was proven of two.
        (
            cite(
                "PRV-EXA-4A",
                case=WorstCase.drawn(lambda _name: 1, 3),
                block_size=2,
                alive=(0,),
                member=0,
            ),
            "PRV-EXA-4A is not about a case of that many numbers",
        ),
    ],
)
def test_what_is_no_instance_is_refused(fact: Fact, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        _ = fact.truth


@pytest.mark.thorough
def test_every_fact_of_every_obligation_is_an_instance() -> None:
    """And none is a formula that was written by hand: there is nowhere to put one."""
    cited = 0
    for listed in OBLIGATIONS.values():
        if listed.every is not None:
            continue  # decided by looking at numbers
        statement = listed.statement(z3.Int)
        for fact in (*statement.known, *(it for case in statement.cases for it in case.known)):
            assert isinstance(fact, Fact)
            assert OBLIGATIONS[fact.obligation].expected is Verdict.PROVEN
            cited += 1
    assert cited > 500


# --- and stands and falls with its obligation -----------------------------------------------------


def doubles(x: Number, factor: int) -> Statement:
    return Statement(factor * x >= 2 * x, given=[x >= 0])


def dependent_statement(x: Number, on: str) -> Statement:
    return Statement(2 * x >= x, given=[x >= 0], known=[cite(on, x=x)])


def test_what_cites_something_false_is_not_proven(plant: Callable[..., None]) -> None:
    plant("PRV-TEST-1", doubles, factor=1)
    plant("PRV-TEST-2", dependent_statement, on="PRV-TEST-1")
    plant("PRV-TEST-3", dependent_statement, on="PRV-TEST-2")
    assert verdicts("PRV-TEST-3") == {
        "PRV-TEST-3": (Verdict.UNKNOWN, "rests on PRV-TEST-1, which is refuted"),
        "PRV-TEST-2": (Verdict.UNKNOWN, "rests on PRV-TEST-1, which is refuted"),
        "PRV-TEST-1": (Verdict.REFUTED, ""),
    }


def test_what_is_cited_is_proven_too(plant: Callable[..., None]) -> None:
    plant("PRV-TEST-1", doubles, factor=3)
    plant("PRV-TEST-2", dependent_statement, on="PRV-TEST-1")
    assert verdicts("PRV-TEST-2") == dict.fromkeys(
        ("PRV-TEST-2", "PRV-TEST-1"), (Verdict.PROVEN, "")
    )


def test_obligations_that_cite_each_other_prove_nothing(plant: Callable[..., None]) -> None:
    for name, on in (("PRV-TEST-1", "PRV-TEST-2"), ("PRV-TEST-2", "PRV-TEST-1")):
        plant(name, dependent_statement, on=on)
    plant("PRV-TEST-3", dependent_statement, on="PRV-TEST-1")
    found = verdicts("PRV-TEST-3")
    assert {verdict for verdict, _ in found.values()} == {Verdict.UNKNOWN}
    assert found["PRV-TEST-3"][1] == (
        "rests on itself: PRV-TEST-1 cites PRV-TEST-2 cites PRV-TEST-1"
    )


def test_stale_and_vacuous_obligations_cannot_be_cited() -> None:
    def proof(name: str, verdict: Verdict, cites: Iterable[str] = ()) -> Proof:
        return Proof(name, verdict, 0.0, cites=tuple(cites))

    proofs = [
        proof("a", Verdict.STALE),
        proof("b", Verdict.PROVEN, "a"),
        proof("c", Verdict.VACUOUS),
        proof("d", Verdict.PROVEN, "c"),
        proof("e", Verdict.PROVEN),
    ]
    found = settled("abcde", proofs)
    assert [outcome.verdict.value for outcome in found] == [
        *("stale", "unknown", "vacuous", "unknown", "proven")
    ]


# --- vacuous, and what cannot be stated -----------------------------------------------------------


def lone_proof(statement: Callable[[Integer], Statement]) -> Proof:
    return prove(Obligation("PRV-TEST", "Planted.", "all", (), statement))


def test_what_no_numbers_satisfy_is_vacuous() -> None:
    proof = lone_proof(
        lambda integer: Statement(
            integer("x") > 9, given=[integer("x") * 2 == 2 * integer("y") + 1]
        )
    )
    assert (proof.verdict, proof.reason) == (Verdict.VACUOUS, "no numbers satisfy what is given")


def test_a_formula_that_cannot_be_written_for_all_numbers_is_unknown() -> None:
    def statement(integer: Integer) -> Statement:
        return Statement(maximum(*range(integer("x"))) >= 0)

    proof = lone_proof(statement)
    assert (proof.verdict, proof.is_unstated) == (Verdict.UNKNOWN, True)
    assert proof.reason.startswith("cannot be stated: 'ArithRef' object cannot be interpreted")


# --- cases ----------------------------------------------------------------------------------------


def of_cases(*bounds: int, shown: bool = False) -> Callable[[Integer], Statement]:
    def statement(integer: Integer) -> Statement:
        x = integer("x")
        claims = [x * x >= bound for bound in bounds] if shown else [None] * len(bounds)
        cases = [Case(x <= bound, claim=claim) for bound, claim in zip(bounds, claims, strict=True)]
        return Statement(x * x >= 0, given=[x <= 5], cases=cases)

    return statement


def test_cases_that_leave_some_numbers_out_prove_nothing() -> None:
    assert lone_proof(of_cases(3, 5)).verdict is Verdict.PROVEN
    assert lone_proof(of_cases(3, 4)).verdict is Verdict.REFUTED


def test_of_what_is_shown_in_the_cases_the_claim_must_follow() -> None:
    assert lone_proof(of_cases(0, 5, shown=True)).verdict is Verdict.REFUTED  # 1 * 1 < 5

    def statement(integer: Integer) -> Statement:
        x = integer("x")
        return Statement(x >= 1, given=[x >= 1], cases=[Case(x >= 1, claim=x >= 0)])

    assert lone_proof(statement).verdict is Verdict.REFUTED
