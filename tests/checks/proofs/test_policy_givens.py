"""The assumptions of the proofs about nano-vLLM and vLLM V1 hold in every reachable state."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checks.evidence import EXPLORED, recorded
from checks.explore.model import Always
from checks.explore.policy import machine_of
from checks.explore.search import explore
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Numbers
from checks.proofs.vllm_v1.moves import LINK
from spec.nano_vllm.records import Context as NanoVllmContext
from spec.nano_vllm.records import State as NanoVllmState
from spec.vllm_v1.records import Context, Load, State

Claims = Callable[[Any, Any], Iterator[tuple[str, Numbers]]]


def violations(policy: str, name: str, claims: Claims) -> list[str]:
    """The violated assumptions and claims in a fully explored instance."""
    (instance,) = (instance for instance in machine_of(policy).instances if instance.name == name)
    model = machine_of(policy).model(instance)

    def holds(state: Any) -> str | None:
        for obligation, numbers in claims(model.ctx, state):
            statement = OBLIGATIONS[obligation].statement(numbers.__getitem__)
            if not all(statement.given) or not statement.claim:
                return f"{obligation}: {dict(numbers)}"
        return None

    result = explore(model, [Always("given", holds)])
    if not result.violations:
        assert result.states == recorded(EXPLORED)[f"{policy}, {name}"]["states"]
    return [violation.found for violation in result.violations]


def turns(ctx: Context, state: State) -> Iterator[tuple[str, Numbers]]:
    """Each request when it is looked at, the whole budget left; not while it loads."""
    for request in state.present:
        numbers = {
            "tokens": request.tokens,
            "computed": request.computed,
            "drafts": request.drafts,
            "threshold": ctx.config.long_prefill_token_threshold,
            "left": ctx.config.token_budget,
            "max_model_len": ctx.config.max_model_len,
        }
        if request.load is Load.NONE:
            for name in ("PRV-V1-BUD-2", "PRV-V1-BUD-3", "PRV-V1-BUD-4"):
                yield name, numbers


FAST = {"uncut, 0.11.2", "eviction, 0.11.2", "lookahead", "speculation"}
WITHOUT_PROOFS = ("sessions", "pooling")  # no proof is about their last tokens


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(instance.name, marks=() if instance.name in FAST else pytest.mark.thorough)
        for instance in machine_of("vllm-v1").instances
        if LINK.covers(instance.config) and not instance.name.startswith(WITHOUT_PROOFS)
    ],
)
def test_a_request_of_vllm_v1_is_as_the_proofs_about_its_turn_say(name: str) -> None:
    assert violations("vllm-v1", name, turns) == []


def decodes(ctx: NanoVllmContext, state: NanoVllmState) -> Iterator[tuple[str, Numbers]]:
    """Each running sequence when it looks for a slot for its newest token."""
    for row in state.running:
        request = ctx.requests[row.id]
        yield (
            "PRV-NANO-DEC-6",
            {
                "computed": row.computed,
                "block_size": ctx.config.block_size,
                "num_blocks": ctx.config.pool_blocks,
                "total": request.prompt_len + request.max_tokens,
            },
        )


@pytest.mark.parametrize("name", ["budget", "left behind", "repaired, budget"])
def test_a_sequence_of_nano_vllm_is_as_the_proofs_about_its_decode_say(name: str) -> None:
    assert violations("nano-vllm", name, decodes) == []


def test_of_a_request_that_should_have_been_refused_it_is_not_so() -> None:
    """Its fourth token needs no third block, its fifth does; the pool has two."""
    numbers = {"computed": 3, "block_size": 2, "num_blocks": 2, "total": 7}
    assert violations("nano-vllm", "oversized", decodes) == [f"PRV-NANO-DEC-6: {numbers}"]
