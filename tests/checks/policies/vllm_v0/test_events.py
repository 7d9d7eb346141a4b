"""The events of a step of the reference agree with its fields, and each has a rule."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.case import Case
from checks.harness.comparison import compare
from checks.harness.own_steps import EVENTS
from checks.harness.policy import Own
from checks.harness.system import REFERENCE
from checks.policies.vllm_v0.adapter import ADAPTER
from reference.vllm_v0 import transitions
from spec.core.records import Event
from spec.vllm_v0.config import Scheduling, VllmV0Config
from tests.requests import request

EPISODES = 30


def causes() -> Iterator[str]:
    plan = Plan(Own("vllm-v0", REFERENCE))
    system = own_system(plan.system)
    for episode in range(EPISODES):
        found = compare(system, plan.case(episode), plan.terms_of(episode)).finding
        if found is not None:
            yield found.cause


@pytest.mark.parametrize(
    ("transition", "wrong"),
    [
        ("admit", lambda name, id_, rule, *_, **values: Event(id_, name, rule, **values)),
        ("chunk", lambda name, id_, rule, *_, **values: Event(name, rule, id_, **values)),
        ("decode", lambda name, id_, rule, *_, after: Event(name, id_, rule, after=after + 1)),
        ("append", lambda name, id_, rule, *changed: Event(name, id_, changed[0], rule)),
        ("preempt", lambda name, id_, rule, before, after: Event(name, id_, rule, after, before)),
        ("finish", lambda name, id_, _rule: Event(name, id_, "")),
    ],
)
def test_event_that_the_fields_contradict_is_found(
    transition: str, wrong: Callable[..., Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(name: str, *others: Any, **values: Any) -> Event:
        make = wrong if name == transition else Event
        return make(name, *others, **values)

    monkeypatch.setattr(transitions, "Event", event)

    assert EVENTS in causes()


def test_missing_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = transitions.sample
    monkeypatch.setattr(transitions, "sample", lambda *given: (sample(*given)[0], ()))

    assert EVENTS in causes()


def test_events_of_the_reference_agree_with_its_fields() -> None:
    assert ADAPTER.infers_all_events
    assert not [*causes()]


def test_copy_for_a_group_that_is_preempted_in_the_same_step_is_inferred() -> None:
    requests = (
        request("0", 1, 2, priority=1, n=2),
        request("1", 1, 2, arrival=1, n=2),
    )
    config = VllmV0Config(
        block_size=2,
        num_cpu_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=4,
        max_model_len=4,
        scheduling=Scheduling.PRIORITY,
        prefix_caching=True,
    )
    plan = Plan(Own("vllm-v0", REFERENCE))

    seen = compare(own_system(plan.system), Case(config, requests), plan.terms)

    assert (seen.counts["copy"], seen.finding) == (1, None)
