"""What a rule of nano-vLLM need not look at again: judged by the change, as by the whole state."""

from typing import Any

import pytest

from checks.harness.case import Case
from checks.harness.serving import served
from spec.core.requests import Prompt, Request
from spec.core.rule import AnyRule, Kind
from spec.nano_vllm.config import repaired
from spec.nano_vllm.records import Sequence, State, Step, context_of
from spec.nano_vllm.rules import applicable
from tests.spec.state_faults import (
    Fault,
    fresh,
    held,
    lost_block,
    nth,
    one_more,
    one_with,
    pool,
    times_met,
)

CONFIG = repaired(
    block_size=2, max_model_len=32, max_num_seqs=3, max_num_batched_tokens=32, num_blocks=14
)
REQUESTS = [
    Request(id=str(n), prompt=Prompt.of_stream(f"stream {n % 2}", 3 + n), max_tokens=4, arrival=n)
    for n in range(6)
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


def test_the_states_of_a_run_keep_every_rule_judged_by_their_changes() -> None:
    assert len(STATE_RULES) >= 8
    for step in STEPS:
        for rule in STATE_RULES:
            assert rule.found_after(CTX, step.before, step.after) is None
            assert rule.found_in_state(CTX, step.after) is None


def _came_back(state: State, n: int) -> Any:
    name = nth(sorted(state.finished), n)
    return one_more(state, "waiting", Sequence(name, CTX.requests[name].prompt_len))


def _shared_with_another(state: State, n: int) -> Any:
    """A row has another's first block in place of its own, and the counts say so."""
    row, other = nth(state.running, n), nth(state.running, n + 1)
    mine, theirs = row.blocks[0], other.blocks[0]
    references = state.pool.references.set({theirs: state.pool.references[theirs] + 1})
    wrong = pool(state, references=references.without(mine))
    return one_with(wrong, "running", n, blocks=(theirs, *row.blocks[1:]))


FAULTS: dict[str, dict[str, Fault]] = {  # by the rule that each breaks
    "NANO-BLK-1": {
        "a lost block": lost_block,
        "a free block twice": lambda state, n: pool(
            state, free=(nth(state.pool.free, n), *state.pool.free)
        ),
        "one lost, another twice: the number is right": lambda state, _n: pool(
            state, free=(nth(state.pool.free, -1), *state.pool.free[1:])
        ),
        "a block that is none of the pool": lambda state, _n: pool(
            state, free=(*state.pool.free[1:], 14)
        ),
    },
    "NANO-BLK-2": {
        "another number of holders": lambda state, n: pool(
            state, references=state.pool.references.set({nth(state.pool.references, n): 7})
        ),
        "a row that lost a block": lambda state, n: one_with(
            state, "running", n, blocks=nth(state.running, n).blocks[:-1]
        ),
        "a row twice": lambda state, n: one_more(state, "running", nth(state.running, n)),
    },
    "NANO-BLK-4": {
        "tokens without a block": lambda state, n: one_with(state, "running", n, computed=31),
    },
    "NANO-PFX-1": {
        "a full block that is not hashed": lambda state, n: pool(
            state,
            keys=state.pool.keys.without(
                nth((one for one in held(state) if one in state.pool.keys), n)
            ),
        ),
    },
    "NANO-PFX-2": {
        "another key of a held block": lambda state, n: pool(
            state, keys=state.pool.keys.set({nth(held(state), n): b"other"})
        ),
    },
    "NANO-PFX-4": {"a block of another request": _shared_with_another},
    "NANO-LIF-1": {
        "waiting twice": lambda state, n: one_more(state, "waiting", nth(state.waiting, n)),
        "running and waiting": lambda state, n: one_more(
            state, "waiting", fresh(nth(state.running, n))
        ),
        "back from the finished": _came_back,
    },
    "NANO-LIF-4": {
        "blocks in the queue": lambda state, n: one_with(state, "waiting", n, blocks=(1,)),
        "running without a block": lambda state, n: one_with(state, "running", n, blocks=()),
    },
    "NANO-LIF-8": {
        "generated in the queue": lambda state, n: one_with(state, "waiting", n, generated=1),
        "a token not computed": lambda state, n: one_with(
            state, "running", n, generated=nth(state.running, n).generated + 1
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
