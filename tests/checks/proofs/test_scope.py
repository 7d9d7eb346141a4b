"""Every key of a configuration is in what is proven, or left out for a reason."""

import pytest
from attrs import fields, make_class

from checks.proofs.nano_vllm import scope as nano_vllm
from checks.proofs.scope import Scope
from checks.proofs.spyre import scope as spyre
from checks.proofs.vllm_v1 import scope as vllm_v1
from tests.checks.command import lockstep

SCOPES = {"spyre": spyre.SCOPE, "nano-vllm": nano_vllm.SCOPE, "vllm-v1": vllm_v1.SCOPE}


@pytest.mark.parametrize("policy", SCOPES)
def test_a_key_that_the_scope_does_not_list_makes_evidence_stale(policy: str) -> None:
    scope = SCOPES[policy]
    assert [key.name for key in fields(scope.config)] == list(scope.keys)
    assert scope.stale() is None
    wider = make_class("Wider", ["prefills_in_a_row"], bases=(scope.config,), kw_only=True)
    reason = "key prefills_in_a_row of the configuration is neither in the setting nor excluded"
    assert Scope(wider, scope.keys).stale() == reason


@pytest.mark.parametrize("name", ["PRV-IDL-4", "PRV-PAD-1"])
def test_a_forgotten_key_makes_all_that_is_proven_of_its_policy_stale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(spyre.SCOPE.keys, "interleave")
    ran = lockstep("prove", name, "PRV-NANO-SLT-1")
    assert ran.code == 3
    assert (
        f"stale: {name}: key interleave of the configuration is neither in the setting nor excluded"
    ) in ran.out.replace("\n", " ")
    assert ran.out.endswith("2 obligations: 1 proven of the formula, 0 unknown, 1 stale\n")
