"""Fields of steps besides states: events, labels and tokens of every policy."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from checks.harness.campaigns.campaign import Plan
from checks.harness.policy import Own
from checks.harness.script import Script
from checks.harness.system import REFERENCE, Step
from checks.registry import POLICIES, claims_of
from spec.core.records import Event

CASES = 25

each_policy = pytest.mark.parametrize("policy", POLICIES)


@cache
def scripts(policy: str) -> list[Script]:
    """Random cases, always the same, each served to its end by the reference."""
    plan = Plan(Own(policy, REFERENCE))
    made = [Script(plan.case(episode)) for episode in range(CASES)]
    for step in made:
        list(step)
    return made


def events(policy: str, transition: str) -> Iterator[tuple[Event, Any, Any]]:
    """Events of a kind, each with its context and step."""
    for script in scripts(policy):
        for step in script.steps:
            for event in step.happened(transition):
                yield event, script.ctx, step


@each_policy
def test_each_event_names_its_transition_its_request_and_a_rule(policy: str) -> None:
    rules = claims_of(policy).registry.rules
    for script in scripts(policy):
        for event in (event for step in script.steps for event in step.events):
            assert event.transition.isidentifier(), event
            assert event.id in {"", *_sampling(script)}, event
            assert event.rule in {"", *rules}, event  # the environment has none


@each_policy
def test_steps_are_numbered(policy: str) -> None:
    for script in scripts(policy):
        assert [step.index for step in script.steps] == [*range(len(script.steps))]


@each_policy
def test_each_token_that_is_sampled_is_the_next_of_its_request(policy: str) -> None:
    for script in scripts(policy):
        counts: Counter[str] = Counter()
        for request_id, token in (pair for step in script.steps for pair in _sampled(step)):
            assert token == _sampling(script)[request_id].output_token(counts[request_id])
            counts[request_id] += 1


def _sampling(script: Script) -> Any:
    """The names of everything that samples: requests, or their sequences."""
    return getattr(script.ctx, "sequences", script.ctx.requests)


def _sampled(step: Step) -> Iterator[tuple[str, int]]:
    said: Any = getattr(step, "sampled", step.outputs)
    yield from ((request_id, token) for request_id, tokens in said.items() for token in tokens)


# --- numbers --------------------------------------------------------------------------------------


def test_a_prefill_of_nano_vllm_says_from_where_to_where() -> None:
    for event, ctx, step in events("nano-vllm", "prefill"):
        (row,) = (row for row in step.batch if row.id == event.id)
        begun = {other.id: other.computed for other in step.before.waiting if other.blocks}
        start = begun.get(row.id, row.hit_blocks * ctx.config.block_size)
        assert (event.before, event.after) == (start, row.computed)


@pytest.mark.parametrize("transition", ["catch_up", "admit"])
def test_what_is_given_tokens_in_vllm_v1_says_from_where_and_how_many(transition: str) -> None:
    for event, _, step in events("vllm-v1", transition):
        if event.id not in step.preempted:
            (row,) = (row for row in step.planned.running if row.id == event.id)
            assert (event.before, event.after) == (row.computed, step.scheduled[event.id])


def test_a_rollback_of_vllm_v1_says_how_many_drafts_there_were_and_how_many_are_kept() -> None:
    for event, _, step in events("vllm-v1", "rollback"):
        drafts = (step.results_of or step).drafts
        assert (event.before, event.after) == (drafts[event.id], step.accepted[event.id])


def test_a_load_of_vllm_v1_says_how_much_comes_and_how_much_there_will_be() -> None:
    for event, _, step in events("vllm-v1", "load"):
        (row,) = (row for row in step.planned.skipped if row.id == event.id)
        assert event.after == row.computed
        assert 0 < event.before <= event.after


def test_a_lost_load_of_vllm_v1_says_how_much_is_lost_and_what_is_left() -> None:
    for event, _, step in events("vllm-v1", "lose_load"):
        assert event.before == (step.results_of or step).external[event.id]
    for event, _, step in events("vllm-v1", "undo"):
        (was,) = (row for row in step.planned.running if row.id == event.id)
        assert event.before == was.computed + step.scheduled.get(event.id, 0)
        assert event.after < event.before
