"""What a release did in random cases, on record, notices a reference that does otherwise."""

from typing import Any

import pytest

from checks.mutants.conforming import Conforming, digest_of, recorded_cases
from checks.mutants.killing import Evidence, outcomes
from checks.mutants.rooms import ROOT
from checks.mutants.sites import mutants_of
from checks.mutants.trials import tried_now
from spec.core.sharing import FrozenMap

CASES = [one for one in recorded_cases("vllm-v0") if one.episode < 20]


def test_reference_takes_the_steps_that_the_release_took() -> None:
    found = [one.verdict() for one in CASES]

    assert len([*recorded_cases("vllm-v0")]) == 250
    assert found.count(None) <= 4  # where the release is known to do otherwise, or raises


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("reference/vllm_v0/results.py", "one.waited + step -> one.waited - step"),
        ("reference/vllm_v0/memory.py", "block not in pool.references -> block in pool.references"),
    ],
)
def test_what_no_rule_notices_differs_from_what_the_release_did(path: str, change: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    (mutant,) = (one for one in mutants_of(source, path) if one.change == change)

    (found,) = outcomes(Evidence.of(tried_now(CASES)), [mutant])

    assert (found.by, found.means) == ("vLLM 0.9.2 does otherwise", "conform")


def test_policy_of_which_nothing_is_on_record_has_no_cases() -> None:
    assert [*recorded_cases("nano-vllm")] == []


def test_stale_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    other = digest_of([])
    entry = {"release": "vLLM 0.9.2", "driver": "vllm-v0", "config": {}, "abilities": []}
    monkeypatch.setattr(
        "checks.mutants.conforming._on_record", lambda _: entry | {"steps": [other]}
    )

    with pytest.raises(AssertionError, match="write the record anew"):
        Conforming("vllm-v0", 0).verdict()


def test_equal_steps_have_equal_digests_in_whatever_order_they_were_made() -> None:
    def step(*blocks: int) -> dict[str, Any]:
        return {"held": frozenset(map(str, blocks)), "marks": FrozenMap((one, 1) for one in blocks)}

    assert digest_of([step(1, 2, 3)]) == digest_of([step(3, 2, 1)]) != digest_of([step(1, 2)])
