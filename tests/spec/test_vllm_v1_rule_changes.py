"""What a rule of vLLM V1 need not look at again: judged by the change, as by the whole state."""

from typing import Any

import pytest
from attrs import evolve

from checks.harness.case import Case
from checks.harness.serving import served
from spec.core.requests import Prompt, Request
from spec.core.rule import AnyRule, Kind
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Load, Sequence, State, Step, context_of
from spec.vllm_v1.rules import REGISTRY, applicable
from tests.spec.state_faults import (
    Fault,
    held,
    lost_block,
    nth,
    one_more,
    one_with,
    pool,
    times_met,
)

# So few blocks that requests are preempted, and drafts of which some are rejected.
CONFIG = VllmV1Config(
    block_size=2,
    max_model_len=32,
    max_num_seqs=4,
    max_num_batched_tokens=8,
    num_blocks=16,
    num_speculative_tokens=2,
    accepted_drafts=1,
)
REQUESTS = [
    Request(
        id=str(n), prompt=Prompt.of_stream(f"stream {n % 2}", 3 + n), max_tokens=7, arrival=n // 2
    )
    for n in range(8)
]
CTX = context_of(CONFIG, REQUESTS)


def _engine_steps(case: Case) -> list[Step]:
    """With so short runs of blocks, and so late new bases, that the states share parts of both."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.core.blocks._RUN", 3)
        patched.setattr("spec.core.sharing._CHANGES", 100)
        return list(served(case, using="engine"))


REFERENCE_STEPS: list[Step] = list(served(Case(CONFIG, tuple(REQUESTS))))
ENGINE_STEPS = _engine_steps(Case(CONFIG, tuple(REQUESTS)))
STEPS = [*REFERENCE_STEPS, *ENGINE_STEPS]
STATE_RULES: list[AnyRule] = [rule for rule in applicable(CONFIG) if rule.kind is Kind.ALWAYS]


def test_the_engine_takes_the_steps_of_the_reference_with_shared_parts() -> None:
    assert [step.after for step in ENGINE_STEPS] == [step.after for step in REFERENCE_STEPS]
    assert any(step.preempted for step in ENGINE_STEPS)
    assert any(step.happened("prefix_hit") for step in ENGINE_STEPS)


def test_the_states_of_a_run_keep_every_rule_judged_by_their_changes() -> None:
    assert len(STATE_RULES) >= 11
    for step in STEPS:
        for rule in STATE_RULES:
            assert rule.found_after(CTX, step.before, step.after) is None
            assert rule.found_in_state(CTX, step.after) is None


def _came_back(state: State, n: int) -> Any:
    name = nth(sorted(state.finished), n)
    return one_more(state, "waiting", Sequence(name, CTX.requests[name].prompt_len))


def _uncomputed(state: State, n: int) -> Any:
    """The last to hold a block that can be found has computed nothing of it any more."""
    rows = [one for one in state.running if {*one.blocks} & state.pool.keys.keys()]
    row = nth(rows, n)
    return one_with(state, "running", state.running.index(row), computed=0)


FAULTS: dict[str, dict[str, Fault]] = {  # by the rule that each breaks
    "V1-KV-1": {
        "a lost block": lost_block,
        "a free block twice": lambda state, n: pool(
            state, free=(nth(state.pool.free, n), *state.pool.free)
        ),
        "one lost, another twice: the number is right": lambda state, _n: pool(
            state, free=(nth(state.pool.free, -1), *state.pool.free[1:])
        ),
        "a block that is none of the pool": lambda state, _n: pool(
            state, free=(*state.pool.free[1:], 17)
        ),
    },
    "V1-KV-2": {
        "another number of holders": lambda state, n: pool(
            state, references=state.pool.references.set({nth(state.pool.references, n): 7})
        ),
        "a row that lost a block": lambda state, n: one_with(
            state, "running", n, blocks=nth(state.running, n).blocks[:-1]
        ),
        "a row twice": lambda state, n: one_more(state, "running", nth(state.running, n)),
        "blocks that are still written to": lambda state, n: one_more(
            state, "draining", nth(state.running, n)
        ),
    },
    "V1-KV-3": {
        "content not in the cache": lambda state, n: pool(
            state, cached=state.pool.cached.without(nth(state.pool.cached, n))
        ),
        "another key": lambda state, n: pool(
            state, keys=state.pool.keys.set({nth(state.pool.keys, n): b"other"})
        ),
    },
    "V1-KV-6": {
        "blocks in the queue": lambda state, n: one_with(state, "waiting", n, blocks=(1,)),
        "blocks of one that was passed over": lambda state, _n: one_more(
            state, "skipped", Sequence("0", 3, blocks=(1,))
        ),
    },
    "V1-KV-7": {
        "tokens without a block": lambda state, n: one_with(state, "running", n, computed=31),
        "a block too many": lambda state, n: one_with(
            state, "running", n, blocks=(*nth(state.running, n).blocks, 1, 2, 3)
        ),
    },
    "V1-KV-10": {
        "found and not computed": _uncomputed,
        "a held block that can be found, not full": lambda state, n: pool(
            state,
            keys=state.pool.keys.set(
                {nth((one.blocks[-1] for one in state.running if one.computed % 2), n): b"other"}
            ),
        ),
    },
    "V1-KV-11": {
        "another key of a held block": lambda state, n: pool(
            state,
            keys=state.pool.keys.set(
                {nth((one for one in held(state) if one in state.pool.keys), n): b"other"}
            ),
        ),
        "blocks at other places": lambda state, n: one_with(
            state, "running", n, blocks=nth(state.running, n).blocks[::-1]
        ),
        "fewer tokens than its cached blocks": lambda state, n: one_with(
            state, "running", n, prompt_len=1, generated=0, computed=0
        ),
    },
    "V1-LIF-1": {
        "waiting twice": lambda state, n: one_more(state, "waiting", nth(state.waiting, n)),
        "running and waiting": lambda state, n: one_more(
            state,
            "waiting",
            Sequence(nth(state.running, n).id, nth(state.running, n).prompt_len),
        ),
        "back from the finished": _came_back,
    },
    "V1-PRG-1": {
        "nothing left to compute": lambda state, n: one_with(
            state, "running", n, computed=nth(state.running, n).tokens
        ),
    },
    "V1-SEQ-1": {
        "all of them twice": lambda state, _n: evolve(state, running=3 * state.running),
    },
    "V1-SPC-3": {
        "computed beyond its tokens": lambda state, n: one_with(
            state, "running", n, computed=nth(state.running, n).tokens + 1
        ),
    },
}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param(fault, rule, id=name)
        for rule, faults in FAULTS.items()
        for name, fault in faults.items()
    ],
)
def test_a_wrong_state_breaks_the_same_rules_judged_by_the_change_and_as_a_whole(
    fault: Fault, rule: str
) -> None:
    assert times_met(STATE_RULES, CTX, STEPS, fault, rule) > 5


def test_a_request_larger_than_the_pool_is_noticed_when_it_arrives() -> None:
    ctx = context_of(evolve(CONFIG, num_blocks=8), REQUESTS)
    rule, state = REGISTRY["V1-LIF-7"], STEPS[0].before
    arrived = one_more(state, "waiting", Sequence("7", 10))

    assert rule.found_after(ctx, state, arrived) == "7 needs 9 of 8 blocks"
    assert rule.found_after(ctx, arrived, evolve(arrived, lost=frozenset("7"))) is None


LOADING = evolve(CONFIG, connector=Connector.ASYNC, num_speculative_tokens=0, accepted_drafts=None)


def test_where_loads_are_asynchronous_waiting_requests_are_looked_at_again() -> None:
    ctx, key = context_of(LOADING, REQUESTS), CTX.keys.of("1", 2)
    loaded = Sequence("1", 4, computed=3, blocks=(1, 2), load=Load.LOADED)
    before = State(pool(STEPS[0].before, references=STEPS[0].before.pool.references).pool)
    before = evolve(before, waiting=(loaded,))
    wrong = pool(before, keys=before.pool.keys.set({1: key[1]}))

    found = REGISTRY["V1-KV-11"].found_after(ctx, before, wrong)

    assert found == "1: block 1 at place 0 is cached with other tokens"
