"""The obligations of nano-vLLM and vLLM V1 have teeth: a wrong formula refutes each."""

from collections.abc import Mapping
from typing import Any

import pytest

from checks.proofs.nano_vllm import admission as nano_vllm_admission
from checks.proofs.nano_vllm import blocks as nano_vllm
from checks.proofs.vllm_v1 import blocks as vllm_v1_blocks
from checks.proofs.vllm_v1 import budget as vllm_v1
from checks.proofs.vllm_v1 import drafts as vllm_v1_drafts
from spec.core import blocks
from spec.core.arithmetic import Number, floor_div, minimum
from spec.nano_vllm import formulas as nano
from spec.vllm_v1 import config as v1
from tests.checks.proofs.faults import (
    Fault,
    Formula,
    always,
    is_caught,
    one_less,
    one_more,
    proven,
)

UNLIMITED = 10**9  # tokens


def running_without_budget(
    tokens: Number,
    drafts: Number,
    computed: Number,
    threshold: Number,
    _budget: Number,
    most: Number,
) -> Number:
    return v1.running_tokens(tokens, drafts, computed, threshold, UNLIMITED, most)


def waiting_without_budget(
    tokens: Number, computed: Number, threshold: Number, _budget: Number
) -> Number:
    return v1.waiting_tokens(tokens, computed, threshold, UNLIMITED)


def with_two_positions_to_spare(
    tokens: Number,
    drafts: Number,
    computed: Number,
    threshold: Number,
    budget: Number,
    most: Number,
) -> Number:
    return v1.running_tokens(tokens, drafts, computed, threshold, budget, most - 1)


def a_token_at_a_time(*_: Number) -> Number:
    return 1


def without_offset(block: Number, _position: Number, block_size: Number) -> Number:
    return block * block_size


def offset_alone(block: Number, position: Number, block_size: Number) -> Number:
    """As if blocks held one token."""
    return block + position % block_size


def of_the_next_block(block: Number, position: Number, block_size: Number) -> Number:
    return blocks.slot(block + 1, position, block_size)


def at_boundary(length: Number, block_size: Number, *_: Any) -> Any:
    return length % block_size == 0


def after_boundary(length: Number, block_size: Number) -> Any:
    return length % block_size == 1


def a_block_for_every_token(free: Number, *_: Any) -> Any:
    return free >= 1


def one_to_spare(free: Number, blocks: Number, *_: Any) -> Any:
    return free > blocks


def without_the_largest(sizes: Formula) -> Formula:
    return lambda *arguments: sizes(*arguments)[:-1]


FAULTS: Mapping[str, Fault] = {
    "PRV-V1-BUD-1A": Fault(vllm_v1, "running_tokens", running_without_budget),
    "PRV-V1-BUD-1B": Fault(vllm_v1, "waiting_tokens", waiting_without_budget),
    "PRV-V1-BUD-1C": Fault(vllm_v1, "taken_back", lambda left, tokens: left),
    "PRV-V1-BUD-2": Fault(vllm_v1, "running_tokens", with_two_positions_to_spare),
    "PRV-V1-BUD-3": Fault(vllm_v1, "running_tokens", one_more(v1.running_tokens)),
    "PRV-V1-BUD-4": Fault(vllm_v1, "waiting_tokens", one_more(v1.waiting_tokens)),
    "PRV-V1-BUD-5": Fault(vllm_v1, "running_tokens", a_token_at_a_time),
    "PRV-V1-BUD-6": Fault(vllm_v1, "default_batched_tokens", lambda max_model_len: 2_048),
    "PRV-V1-CHK-1": Fault(vllm_v1, "capped_tokens", minimum),  # 0 would cap everything
    "PRV-V1-CHK-2": Fault(vllm_v1, "waiting_tokens", one_less(v1.waiting_tokens)),
    "PRV-V1-KV-1": Fault(vllm_v1_blocks, "missing_blocks", one_more(v1.missing_blocks)),
    "PRV-V1-KV-2": Fault(vllm_v1_blocks, "slots_end", lambda computed, *_: computed),
    "PRV-V1-KV-3": Fault(vllm_v1_blocks, "missing_blocks", one_more(v1.missing_blocks)),
    "PRV-V1-KV-4": Fault(vllm_v1_blocks, "hit_blocks_at_most", floor_div),
    "PRV-V1-KV-5": Fault(vllm_v1_blocks, "block_index", one_less(blocks.block_index)),
    "PRV-V1-KV-6": Fault(vllm_v1_blocks, "largest_end", one_less(v1.largest_end)),
    "PRV-V1-KV-7": Fault(vllm_v1_blocks, "missing_blocks", one_more(v1.missing_blocks)),
    "PRV-V1-KV-8": Fault(vllm_v1_blocks, "largest_end", one_more(v1.largest_end)),
    "PRV-V1-KV-9": Fault(vllm_v1_blocks, "profiled_blocks", one_more(v1.profiled_blocks)),
    "PRV-V1-SPC-1": Fault(
        vllm_v1_drafts, "rolled_back", lambda computed, drafts, accepted: computed - drafts
    ),
    "PRV-V1-SPC-2": Fault(vllm_v1_drafts, "verified", lambda one, new_tokens: new_tokens),
    "PRV-V1-SPC-3": Fault(vllm_v1, "running_tokens", one_more(v1.running_tokens)),
    "PRV-V1-SPC-4": Fault(vllm_v1_drafts, "rolled_back", one_less(v1.rolled_back)),
    "PRV-NANO-SLT-1": Fault(nano_vllm, "slot", without_offset),
    "PRV-NANO-SLT-2": Fault(nano_vllm, "slot", without_offset),
    "PRV-NANO-SLT-3": Fault(nano_vllm, "slot", offset_alone),
    "PRV-NANO-SLT-4": Fault(nano_vllm, "slot", of_the_next_block),
    "PRV-NANO-SLT-5": Fault(nano_vllm, "block_count", floor_div),
    "PRV-NANO-DEC-1": Fault(nano_vllm, "starts_block", at_boundary),
    "PRV-NANO-DEC-4": Fault(nano_vllm, "can_append", always),
    "PRV-NANO-DEC-5": Fault(nano_vllm, "fills_block", after_boundary),
    "PRV-NANO-DEC-6": Fault(nano_vllm, "can_append", a_block_for_every_token),
    "PRV-NANO-ADM-1": Fault(
        nano_vllm_admission, "counted_tokens", lambda length, cached, gate: cached
    ),
    "PRV-NANO-ADM-2": Fault(nano_vllm_admission, "can_allocate", always),
    "PRV-NANO-ADM-3": Fault(nano_vllm_admission, "can_allocate", one_to_spare),
    "PRV-NANO-PFX-1": Fault(
        nano_vllm_admission, "counted_tokens", lambda length, cached, gate: length
    ),
    "PRV-NANO-PFX-3": Fault(
        nano_vllm_admission, "lookup_blocks", lambda length, size, reading: floor_div(length, size)
    ),
    "PRV-NANO-GRA-1": Fault(
        nano_vllm_admission, "captured_sizes", without_the_largest(nano.captured_sizes)
    ),
    "PRV-NANO-GRA-2": Fault(
        nano_vllm_admission, "captured_sizes", without_the_largest(nano.captured_sizes)
    ),
}


@pytest.mark.parametrize("name", [*proven(starting="PRV-NANO"), *proven(starting="PRV-V1")])
def test_a_wrong_formula_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(name, FAULTS[name], monkeypatch)


def test_every_fault_belongs_to_an_obligation() -> None:
    assert sorted(FAULTS) == sorted([*proven(starting="PRV-NANO"), *proven(starting="PRV-V1")])
