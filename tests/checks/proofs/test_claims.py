"""A proof says of a rule no more than its obligation: under which keys, and of which numbers."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from attrs import evolve

from checks.cli.configuration import read_settings
from checks.evidence import EXPLORED, LARGE, claim_of, recorded, verdict_on
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import STEP, Obligation, Of, Verdict, written_statement
from checks.proofs.spyre.moves import covers, stale
from checks.registry import RULES
from spec.core.errors import ConfigError
from spec.spyre.variants import Admission

# Claims about every configuration, for rules that are refuted under some: why they are no opposite.
UNDER_EVERY_KEY = {
    "PRV-LEN-1": "its bounds have the model lengths; those that break the rule are the others",
    "PRV-MON-1B": "a step about rows that leave; what breaks the rule is an admission",
    "PRV-MON-1C": "a step about rows that leave; what breaks the rule is an admission",
    "PRV-MON-2A": "a step about rows that leave; what breaks the rule is an admission",
    "PRV-MON-2B": "a step about rows that leave; what breaks the rule is an admission",
    "PRV-MON-2C": "a step about rows that leave; what breaks the rule is an admission",
    "PRV-DEF-2": "a step about what a volume is; what breaks the rule is an admission",
    "PRV-NANO-SLT-1": "a step about what a slot is; what breaks the rule are two in one block",
    "PRV-NANO-SLT-2": "its bounds have one sequence; what breaks the rule are two in one block",
    "PRV-NANO-SLT-3": "its bounds have different blocks; what breaks the rule are two in one block",
    "PRV-NANO-SLT-5": "a step about the size of a table; what breaks the rule are two in one block",
    "PRV-V1-KV-1": "a step about a count of blocks; what breaks the rule exceeds the model length",
    "PRV-V1-KV-2": "its bounds end at the model length; what breaks the rule exceeds it",
    "PRV-V1-KV-3": "its bounds end at the model length; what breaks the rule exceeds it",
    "PRV-V1-SPC-1": "its bounds have a running request; what breaks the rule is a fresh one",
    "PRV-V1-SPC-2": "its bounds have a running request; what breaks the rule is a fresh one",
}


def obligation_policy(obligation: Obligation) -> str:
    """The policy in whose package the obligation is stated."""
    *_, package, _ = written_statement(obligation).__module__.split(".")
    return package.replace("_", "-")


def where_settings(obligation: Obligation) -> list[str]:
    """The keys and values of the configuration that the obligation is about."""
    return [setting for setting in obligation.where.split(", ") if setting]


def configuration(policy: str, settings: list[str]) -> Any:
    return read_settings(None, [f"policy={policy}", *settings]).config


def proven() -> Iterator[tuple[str, Obligation]]:
    """Each rule with each obligation that is proven for it."""
    for obligation in OBLIGATIONS.values():
        if obligation.expected is Verdict.PROVEN:
            for rule in obligation.rules:
                yield rule, obligation


def refuted_rules() -> set[str]:
    """Rules that are refuted in an instance, small or large, or by an obligation."""
    explored, large = recorded(EXPLORED), recorded(LARGE)
    verdicts = (verdict_on(rule, explored, {}, large) for rule in RULES.values())
    found = {
        verdict.rule.id for verdict in verdicts if verdict.refuted_in or verdict.refuted_in_large
    }
    refuted = (
        obligation for obligation in OBLIGATIONS.values() if obligation.expected is Verdict.REFUTED
    )
    return found | {rule for obligation in refuted for rule in obligation.rules}


# --- the configuration ----------------------------------------------------------------------------


def test_every_key_and_value_of_a_claim_is_one_of_its_policy() -> None:
    for obligation in OBLIGATIONS.values():
        settings = where_settings(obligation)
        config = configuration(obligation_policy(obligation), settings)
        keys = [setting.partition("=")[0] for setting in settings]
        assert len(keys) == len({*keys}), obligation.id
        found = [f"{key}={str(getattr(config, key)).lower()}" for key in keys]
        assert found == settings, obligation.id


@pytest.mark.parametrize("where", ["admision=exact", "admission=exactly", "pausing=off"])
def test_another_key_or_value_would_be_noticed(where: str) -> None:
    with pytest.raises(ConfigError):
        configuration("spyre", [where])


def test_runs_that_are_proven_about_are_compared() -> None:
    """The moves of the batch are compared under every key that a claim leaves open."""
    claims = [obligation for obligation in OBLIGATIONS.values() if obligation.basis is stale]
    assert len(claims) > 20
    for obligation in claims:
        settings = where_settings(obligation)
        assert "reading=text" in settings, obligation.id
        config = configuration("spyre", settings)
        for keys in _open_keys(settings):
            assert covers(evolve(config, **keys)), f"{obligation.id} with {keys}"


def _open_keys(settings: list[str]) -> Iterator[dict[str, object]]:
    """Each choice of what decides whether a run is compared, where the settings leave it open."""
    values = {"admission": [*Admission], "interleave": [True, False], "pausing": [True, False]}
    said = {setting.partition("=")[0] for setting in settings}
    names = [name for name in values if name not in said]
    for chosen in product(*(values[name] for name in names)):
        yield dict(zip(names, chosen, strict=True))


def test_only_claims_that_rest_on_a_comparison_are_of_every_run() -> None:
    """A basis that looks at nothing but keys of a configuration ties no move to a reference."""
    for obligation in OBLIGATIONS.values():
        if obligation.of is Of.MACHINE:
            owner = getattr(obligation.basis, "__self__", None)
            assert obligation.basis is stale or hasattr(owner, "moves")


# --- what is said of a rule -----------------------------------------------------------------------


def test_what_is_proven_of_a_refuted_rule_names_its_configuration() -> None:
    refuted = refuted_rules()
    assert len(refuted) > 50
    silent = {
        obligation.id for rule, obligation in proven() if rule in refuted and not obligation.where
    }
    assert silent == {*UNDER_EVERY_KEY}


def test_no_rule_is_proven_by_steps_alone() -> None:
    by_rule: dict[str, list[bool]] = {}
    for rule, obligation in proven():
        by_rule.setdefault(rule, []).append(obligation.bounds.startswith(STEP))
    assert [rule for rule, steps in by_rule.items() if all(steps)] == []


def test_steps_are_said_to_be_steps_in_print() -> None:
    """A lemma about two numbers does not read like the rule that it helps to prove."""
    claim = claim_of("PRV-EXA-3")
    assert claim["bounds"] == "a step of the argument: every batch size, every tkv"
    assert "SPY-VOL-1" in claim["rules"]


# Rules about which something is proven nearby, which was once said to be proven of them.
NOT_OF_IT = {
    "PRV-ALN": {"LIF-5", "LIF-6", "SPY-PRI-9"},  # which takes SPY-PRI-9 as given
    "PRV-RES": {"LIF-5", "LIF-6", "BLK-8"},
    "PRV-LEN-2": {"SPY-LEN-1"},  # the reverse of the rule
    "PRV-ANS": {"SPY-VOL-3"},  # that the projection is enough, not that it is made
    "PRV-NANO-SLT": {"NANO-BLK-4", "V1-KV-7", "V1-KV-9"},
}


def test_what_is_merely_related_serves_no_rule() -> None:
    for beginning, rules in NOT_OF_IT.items():
        serving = [
            obligation for obligation in OBLIGATIONS.values() if obligation.id.startswith(beginning)
        ]
        assert serving
        assert not {rule for obligation in serving for rule in obligation.rules} & rules, beginning
