"""False claims about nano-vLLM and vLLM V1: the smallest numbers, and the runs that show them."""

from collections.abc import Iterator

import pytest

from checks.prove.prover import prove
from reference.guards import GuardError
from reference.nano_vllm.machine import NanoVllmMachine
from reference.vllm_v1 import transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.transitions import Plan, admit
from spec.obligations import OBLIGATIONS, Verdict
from spec.obligations.registry import Numbers
from spec.obligations.vllm_v1_drafts import padded_and_rolled_back
from spec.policies.nano_vllm import NanoVllmConfig
from spec.policies.vllm_v1_records import Context, Sequence, State
from spec.records import Step
from spec.requests import Request
from spec.rules.nano_vllm import applicable
from tests.reference.vllm_v1.scenes import arrived, machine, request

NUMBERS: dict[str, dict[str, int]] = {
    "PRV-NANO-DEC-2": {"block_size": 2, "computed": 2},
    "PRV-NANO-DEC-3": {"block_size": 2, "computed": 1},
    "PRV-NANO-DEC-7": {"block_size": 2, "num_blocks": 1, "computed": 2, "total": 4},
    "PRV-NANO-PFX-2": {"batched": 2, "budget": 4, "length": 3, "cached": 2},
    "PRV-NANO-PFX-4": {"block_size": 2, "length": 2},
    "PRV-NANO-GRA-3": {"max_num_seqs": 9, "batch": 9},
    "PRV-V1-SPC-5": {"computed": 0, "drafts": 2, "threshold": 1},
}


def test_exactly_these_claims_are_refuted() -> None:
    refuted = {
        name
        for name, told in OBLIGATIONS.items()
        if name.startswith(("PRV-NANO", "PRV-V1")) and told.expected is Verdict.REFUTED
    }
    assert refuted == NUMBERS.keys()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_false_claim_is_refuted_with_the_smallest_numbers(name: str) -> None:
    proof = prove(OBLIGATIONS[name])
    assert (proof.verdict, proof.numbers) == (Verdict.REFUTED, NUMBERS[name])


# --- runs of the reference ------------------------------------------------------------------------


def scenario_of(name: str, numbers: Numbers) -> tuple[NanoVllmMachine, list[Request]]:
    scenario = OBLIGATIONS[name].scenario
    assert scenario is not None
    config, requests = scenario(numbers)
    assert isinstance(config, NanoVllmConfig)
    return NanoVllmMachine.of(config, requests), requests


def steps_of(served: NanoVllmMachine, requests: list[Request], most: int = 20) -> Iterator[Step]:
    """Steps until everybody has left, no more than `most`."""
    state = served.initial()
    for index in range(most):
        for one in requests:
            if one.arrival == index:
                state = served.arrive(state, one.id)
        step = served.step(state, index=index)
        yield step
        state = step.after
        if state.is_idle and all(one.id in state.finished for one in requests):
            return


def first_broken(name: str) -> tuple[int, str, str]:
    """The step in which a rule of the obligation is broken first, the rule, and what was found."""
    served, requests = scenario_of(name, NUMBERS[name])
    rules = [rule for rule in applicable(served.ctx.config) if rule.id in OBLIGATIONS[name].rules]
    for step in steps_of(served, requests):
        for rule in rules:
            found = rule.found_of_step(served.ctx, step)
            if found is not None:
                return step.index, rule.id, found
    raise AssertionError("no rule is broken")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("PRV-NANO-DEC-3", (1, "NANO-DEC-3", "request 0: blocks [0], then [0, 1]")),
        ("PRV-NANO-DEC-7", (1, "NANO-LIF-7", "nobody scheduled, waiting [], running ['0']")),
        ("PRV-NANO-PFX-2", (1, "NANO-PFX-7", "request 2 was refused, 2 and 1 new tokens")),
        ("PRV-NANO-PFX-4", (1, "NANO-PFX-8", "request 1 computed 0 tokens in a prefill step")),
        ("PRV-NANO-GRA-3", (1, "NANO-DEC-4", "9 sequences, captured size None")),
    ],
)
def test_the_numbers_of_a_refutation_break_the_rule_in_a_run(
    name: str, broken: tuple[int, str, str]
) -> None:
    assert first_broken(name) == broken


def test_a_block_at_the_boundary_comes_too_late_for_a_prompt_of_whole_blocks() -> None:
    """PRV-NANO-DEC-2: the machine stops, the newest token has no slot."""
    steps = steps_of(*scenario_of("PRV-NANO-DEC-2", NUMBERS["PRV-NANO-DEC-2"]))
    assert next(steps).scheduled == {"0": 2}
    with pytest.raises(GuardError, match="decode is not allowed here: NANO-SLT-1"):
        next(steps)


# --- a rollback of the release --------------------------------------------------------------------


def padded_as_in_0_28_0(
    ctx: Context, plan: Plan, sequence: Sequence, demand: Demand, padding: int = 0
) -> Plan:
    """Every draft of a fresh request's padding is rolled back, cut or not."""
    is_fresh = sequence.tokens == 1 and bool(plan.scheduled)
    drafts = ctx.config.num_speculative_tokens if is_fresh else padding
    return admit(ctx, plan, sequence, demand, drafts)


def scene_of_a_cut(numbers: Numbers) -> tuple[VllmV1Machine, State]:
    """A prompt of one token arrives next to a decoding request; the threshold cuts its padding."""
    scene = machine(
        request("decoding", 1),
        request("fresh", numbers["computed"] + 1),
        num_speculative_tokens=numbers["drafts"],
        long_prefill_token_threshold=numbers["threshold"],
    )
    first = scene.step(arrived(scene, "decoding"))
    return scene, arrived(scene, "fresh", state=first.after)


def test_the_machine_takes_off_what_was_scheduled_and_the_release_more() -> None:
    """PRV-V1-SPC-5: 1 - 2 tokens computed by the release's rule, 1 by the machine's."""
    numbers = NUMBERS["PRV-V1-SPC-5"]
    scene, state = scene_of_a_cut(numbers)
    step = scene.step(state)
    assert step.scheduled == {"decoding": 1, "fresh": 1}
    assert step.after.running[-1].computed == 1
    assert padded_and_rolled_back(lambda one: numbers[one]) == -1


def test_with_the_release_s_rule_the_machine_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would sample for a request that has not caught up."""
    monkeypatch.setattr(transitions, "admit", padded_as_in_0_28_0)
    scene, state = scene_of_a_cut(NUMBERS["PRV-V1-SPC-5"])
    with pytest.raises(GuardError, match="sample is not allowed here: V1-PRG-2"):
        scene.step(state)
