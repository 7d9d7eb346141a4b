"""A rule that the compiled machine judges in numbers says what its predicate in `spec` says."""

from collections import Counter

import pytest
from attrs import evolve

from checks.explore.compiled.agreement import label_words, outgoing_edges
from checks.explore.compiled.search import broken_rules
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of_rules
from checks.policies.spyre.compiled.model import SpyreCompiled
from checks.policies.spyre.compiled.names import RULES
from checks.policies.spyre.compiled.setting import compiled_setting
from checks.policies.spyre.compiled.support import unsupported
from checks.policies.spyre.model import spyre_model
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step, context_of
from spec.spyre.rules import applicable
from spec.spyre.variants import Admission, Queue

WORDS = 5
BY_NAME = {
    instance.name: instance
    for instance in machine_of("spyre").instances
    if unsupported(instance) is None
}
# Together: caching, preemption, pausing, aborts, early ends, both queues, all admissions.
FAST = ("documented, length", "shipped, not interleaved", "eviction", "preemption", "pausing")
# The last two where text and release differ: blocks stay set aside for a request that has left.
BROKEN_AS_IT_IS = {"SPY-VOL-1", "SPY-LEN-1", "SPY-PAU-6", "LIF-5", "SPY-PRI-4"}
# Under limits that are too strict, in an order and with promises that the machine does not have.
BROKEN_WHEN_STRICT = {
    *("SPY-VOL-1", "SPY-LEN-1", "SPY-ADM-1", "SPY-ADM-3", "SPY-PRI-3", "SPY-PRI-5"),
    *("SPY-RES-1", "SPY-RES-3", "SPY-PAU-6"),
}


def strict(config: SpyreConfig) -> SpyreConfig:
    """A stricter configuration, which the steps of the machine violate."""
    return evolve(
        config,
        max_batch_tkv_limit=config.max_batch_tkv_limit // 2,
        max_model_len=config.max_model_len // 2,
        max_num_seqs=1,
        num_blocks=config.pool_blocks,
        interleave=True,
        admission=Admission.SHIPPED,
        queue=Queue.FCFS,
        reservation=True,
        pausing=False,
    )


def compared(instance: Instance[SpyreConfig], claims: SpyreConfig) -> Counter[str]:
    """The number of edges on which each rule is broken, equal for predicate and numeric rule."""
    model, ctx = spyre_model(instance), context_of(claims, instance.requests)
    setting = compiled_setting(evolve(instance, config=claims), ctx)
    in_numbers = (rule for rule in applicable(claims) if rule.id in RULES)
    safety = properties_of_rules(in_numbers, ctx, Step).safety
    compiled = SpyreCompiled(instance, model.ctx, WORDS, setting)
    pending, counts = [compiled.first()], Counter[str]()
    seen = {pending[0].tobytes()}
    for words in pending:
        state = compiled.decoded(words)
        expected = {
            label_words(edge.action): broken_rules(safety, state, edge).keys()
            for edge in model.successors(state)
        }
        found = {
            edge.action: {rule for bit, rule in enumerate(RULES) if edge.broken >> bit & 1}
            for edge in outgoing_edges(compiled, words)
        }
        assert found == expected, state
        for rules in found.values():
            counts.update(rules)
        for edge in outgoing_edges(compiled, words):
            if edge.target.tobytes() not in seen:
                seen.add(edge.target.tobytes())
                pending.append(edge.target)
    return counts


@pytest.mark.parametrize("name", FAST)
def test_rules_are_broken_where_their_predicates_say_so(name: str) -> None:
    instance = BY_NAME[name]

    assert compared(instance, instance.config).keys() <= BROKEN_AS_IT_IS


def test_rules_are_broken_alike_when_they_ask_for_too_much() -> None:
    found: Counter[str] = sum(
        (compared(BY_NAME[name], strict(BY_NAME[name].config)) for name in FAST), Counter()
    )

    assert found.keys() >= BROKEN_WHEN_STRICT


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in FAST])
def test_rules_are_broken_where_their_predicates_say_so_everywhere(name: str) -> None:
    instance = BY_NAME[name]

    assert compared(instance, instance.config).keys() <= BROKEN_AS_IT_IS
    compared(instance, strict(instance.config))
