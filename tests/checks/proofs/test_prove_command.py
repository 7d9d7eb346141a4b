"""`lockstep prove`: three outcomes, numbers in words, a run that shows a refutation."""

import json

import pytest

from checks.evidence import PROVEN, recorded, verdict_on
from checks.policies import RULES
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Integer, Numbers, Obligation, Statement, Verdict
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission
from tests.checks.command import lockstep


def planted(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    """An obligation PRV-TEST-1 besides the real ones."""
    given = {"sentence": "Planted.", "bounds": "all", "rules": ("SPY-VOL-1",), **fields}
    monkeypatch.setitem(OBLIGATIONS, "PRV-TEST-1", Obligation(id="PRV-TEST-1", **given))  # type: ignore[arg-type]


def test_what_is_proven_is_listed_with_its_bounds_and_exits_0() -> None:
    ran = lockstep("prove", "PRV-PAD-1", "--json", "-")
    (report,) = json.loads(ran.out)["obligations"]
    assert ran.code == 0
    assert (report["verdict"], report["numbers"]) == ("proven", {})
    assert report["bounds"] == "every prompt length; block 64, chunks 64 to 4,096"
    assert report["size"] > 100
    assert ran.err.endswith("1 obligations: 1 proven, 0 refuted, 0 unknown\n")


def test_a_refutation_prints_its_numbers_and_a_run_that_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def statement(integer: Integer) -> Statement:
        first = integer("first_max_tokens")
        return Statement(given=[first >= 4, first <= 4], claim=first < 4)

    def scenario(numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
        lengths = (numbers["first_max_tokens"], 2)
        sizes = {"block_size": 2, "chunk_size": 4, "max_model_len": 16, "max_batch_tkv_limit": 6}
        config = SpyreConfig.from_mapping({**sizes, "admission": Admission.DOCUMENTED})
        return config, [
            Request(id=str(index), prompt=Prompt.of_stream(f"own:{index}", 1), max_tokens=most)
            for index, most in enumerate(lengths)
        ]

    planted(monkeypatch, statement=statement, scenario=scenario, expected=Verdict.REFUTED)
    ran = lockstep("prove", "PRV-TEST-1")
    assert ran.code == 1
    assert "PRV-TEST-1 is refuted by first_max_tokens = 4\n" in ran.out
    assert "  replay: lockstep replay counterexamples/prv-test-1.jsonl\n" in ran.out
    replayed = lockstep("replay", "counterexamples/prv-test-1.jsonl")
    assert (replayed.code, replayed.out.splitlines()[-1]) == (1, "the violation is confirmed")


def test_what_the_solver_gives_up_on_is_unknown_and_exits_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def statement(integer: Integer) -> Statement:
        x, y, z = (integer(name) for name in "xyz")
        cubes = x * x * x + y * y * y + z * z * z
        return Statement(given=[], claim=cubes != 114)

    planted(monkeypatch, statement=statement)
    ran = lockstep("prove", "PRV-TEST-1", "--time", 0.2)
    assert ran.code == 3
    assert "1 obligations: 0 proven, 0 refuted, 1 unknown\n" in ran.out


def test_the_record_has_every_obligation_with_the_verdict_of_a_correct_specification() -> None:
    kept = recorded(PROVEN)
    assert list(kept) == list(OBLIGATIONS)
    for name, told in OBLIGATIONS.items():
        assert kept[name] == {
            "says": told.sentence,
            "bounds": told.bounds,
            "rules": list(told.rules),
            "verdict": told.expected.value,
        }


def test_every_obligation_of_the_default_tier_comes_out_as_recorded() -> None:
    proofs = json.loads(lockstep("prove", "--json", "-").out)["obligations"]
    kept = recorded(PROVEN)
    assert {one["obligation"]: one["verdict"] for one in proofs} == {
        name: kept[name]["verdict"] for name, told in OBLIGATIONS.items() if not told.thorough
    }


def test_a_rule_shows_that_what_was_proven_of_it_is_stale() -> None:
    rule = RULES["SPY-PRI-3"]
    kept = {"PRV-MAC-2": recorded(PROVEN)["PRV-MAC-2"] | {"verdict": "stale", "bounds": "all"}}
    verdict = verdict_on(rule, {}, kept)
    assert (verdict.proven, verdict.proofs) == ({}, "stale: PRV-MAC-2, all")
