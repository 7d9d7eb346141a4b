"""What the proofs about nano-vLLM and vLLM V1 take as given is so in every reachable state."""

from collections.abc import Callable

import pytest

from checks.evidence import EXPLORED, recorded
from checks.explore import Always, explore
from checks.policies.nano_vllm import instances as nano_vllm_instances
from checks.policies.nano_vllm.policy import POLICY
from checks.policies.vllm_v1 import instances as vllm_v1_instances
from checks.policies.vllm_v1.model import vllm_v1_model
from checks.proofs.registry import Numbers
from spec.nano_vllm.records import Context as NanoVllmContext
from spec.nano_vllm.records import Sequence, State
from spec.vllm_v1.records import Context, Load
from spec.vllm_v1.records import Sequence as V1Sequence
from spec.vllm_v1.records import State as V1State
from tests.checks.proofs.numbers import told

V1 = {instance.name: instance for instance in vllm_v1_instances.DEFAULT}
NANO = {instance.name: instance for instance in nano_vllm_instances.DEFAULT}


def fails(name: str, numbers: Numbers) -> str | None:
    """What is wrong with these numbers: something given is not so, or the claim."""
    statement = told(name, numbers)
    if all(statement.given) and statement.claim:
        return None
    return f"{name}: {dict(numbers)}"


def first_of(found: list[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


# --- vLLM V1 --------------------------------------------------------------------------------------


def of_turn(ctx: Context, one: V1Sequence) -> Numbers:
    """A request when it is looked at, the whole budget left."""
    return {
        "tokens": one.tokens,
        "computed": one.computed,
        "drafts": one.drafts,
        "threshold": ctx.config.long_prefill_token_threshold,
        "left": ctx.config.token_budget,
        "max_model_len": ctx.config.max_model_len,
    }


def everybody_s_turn(ctx: Context) -> Callable[[V1State], str | None]:
    """Nobody is looked at while it loads."""

    def holds(state: V1State) -> str | None:
        ready = [one for one in state.present if one.load is Load.NONE]
        names = ("PRV-V1-BUD-2", "PRV-V1-BUD-3", "PRV-V1-BUD-4")
        return first_of([fails(name, of_turn(ctx, one)) for one in ready for name in names])

    return holds


FAST = {"uncut, 0.11.2", "eviction, 0.11.2", "lookahead", "speculation"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.thorough) for name in V1],
)
def test_whoever_is_present_in_vllm_v1_is_as_the_proofs_about_its_turn_say(name: str) -> None:
    model = vllm_v1_model(V1[name])
    result = explore(model, [Always("given", everybody_s_turn(model.ctx))])
    assert [one.found for one in result.violations] == []
    assert result.states == recorded(EXPLORED)[f"vllm-v1, {name}"]["states"]


# --- nano-vLLM ------------------------------------------------------------------------------------


def of_decode(ctx: NanoVllmContext, row: Sequence) -> Numbers:
    """A running sequence when it looks for a slot for its newest token."""
    request = ctx.requests[row.id]
    return {
        "computed": row.computed,
        "block_size": ctx.config.block_size,
        "num_blocks": ctx.config.pool_blocks,
        "total": request.prompt_len + request.max_tokens,
    }


def everybody_s_decode(ctx: NanoVllmContext) -> Callable[[State], str | None]:
    def holds(state: State) -> str | None:
        return first_of([fails("PRV-NANO-DEC-6", of_decode(ctx, row)) for row in state.running])

    return holds


def found_in(name: str) -> list[str]:
    """What is not as given in an instance of nano-vLLM."""
    model = POLICY.model(NANO[name])
    result = explore(model, [Always("given", everybody_s_decode(model.ctx))])
    return [one.found for one in result.violations]


@pytest.mark.parametrize("name", ["budget", "left behind", "repaired, budget"])
def test_whoever_runs_in_nano_vllm_is_as_the_proofs_about_its_decode_say(name: str) -> None:
    assert found_in(name) == []


def test_of_a_request_that_should_have_been_refused_it_is_not_so() -> None:
    """Its fourth token needs no third block, its fifth does; the pool has two."""
    numbers = {"computed": 3, "block_size": 2, "num_blocks": 2, "total": 7}
    assert found_in("oversized") == [f"PRV-NANO-DEC-6: {numbers}"]
