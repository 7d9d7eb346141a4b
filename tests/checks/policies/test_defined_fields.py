"""Each field of a state has rules that define its value."""

from typing import Any, get_args

import pytest
from attrs import fields, has

from checks.registry import claims_of
from spec.core.blocks import BlockPool
from spec.nano_vllm.records import Sequence as NanoVllmSequence
from spec.nano_vllm.records import State as NanoVllmState
from spec.vllm_v0.records import Group
from spec.vllm_v0.records import Sequence as VllmV0Sequence
from spec.vllm_v0.records import State as VllmV0State
from tests.checks.faults.nano_vllm import remembered as nano_vllm
from tests.checks.faults.planting import Fault
from tests.checks.faults.vllm_v0 import remembered as vllm_v0

# By policy and class: of each field the rules that say what it must be, after a step and between
# two, from what was before and what the step's record says.
DEFINED: dict[str, dict[type[Any], dict[str, str]]] = {
    "nano-vllm": {
        NanoVllmState: {
            "pool": "NANO-BLK-1, NANO-BLK-2, NANO-BLK-5, NANO-BLK-6, NANO-PFX-11, NANO-LIF-5",
            "waiting": "NANO-LIF-5, NANO-ADM-4, NANO-ADM-7, NANO-PRE-5",
            "running": "NANO-LIF-5, NANO-DEC-2",
            "finished": "NANO-LIF-2, NANO-LIF-3, NANO-LIF-5",
            "aborted": "NANO-LIF-2, NANO-LIF-5",
        },
        NanoVllmSequence: {
            "id": "NANO-LIF-1, NANO-LIF-2, NANO-LIF-5",
            "prefill_len": "NANO-LIF-8, NANO-LIF-10, NANO-LIF-5",
            "computed": "NANO-LIF-8, NANO-LIF-5",
            "generated": "NANO-LIF-9, NANO-PRE-5, NANO-LIF-5",
            "blocks": "NANO-LIF-4, NANO-LIF-10, NANO-LIF-5",
            "hit_blocks": "NANO-LIF-10, NANO-LIF-5",
        },
        BlockPool: {
            "size": "NANO-BLK-1, NANO-BLK-3, NANO-LIF-5",
            "free": "NANO-BLK-5, NANO-BLK-6, NANO-LIF-5",
            "references": "NANO-BLK-2",
            "keys": "NANO-PFX-11, NANO-LIF-5",
            "cached": "NANO-PFX-11, NANO-LIF-5",
        },
    },
    "vllm-v0": {
        VllmV0State: {
            "pool": "V0-BLK-1, V0-BLK-3, V0-BLK-10, V0-BLK-13, V0-PFX-8, V0-LIF-3",
            "cpu": "V0-BLK-2, V0-BLK-4, V0-BLK-10, V0-BLK-13, V0-PFX-8, V0-LIF-3",
            "waiting": "V0-LIF-3, V0-ORD-8, V0-ORD-11, V0-PRE-8, V0-PRI-1",
            "running": "V0-LIF-3, V0-ORD-11, V0-ORD-5, V0-ORD-6, V0-PRI-1",
            "swapped": "V0-LIF-3, V0-SWP-11, V0-ORD-11",
            "finished": "V0-LIF-2, V0-LIF-4, V0-LIF-3",
            "aborted": "V0-LIF-2, V0-LIF-3",
            "ignored": "V0-LIF-2, V0-ADM-3, V0-LIF-3",
            "computed": "V0-PFX-1, V0-PFX-3, V0-PFX-4, V0-LIF-3",
            "marks": "V0-PFX-1, V0-BLK-12, V0-LIF-3",
            "artificial": "V0-PRE-2, V0-LIF-3",
            "has_prefilled": "V0-ADM-8, V0-LIF-3",
            "failure": "V0-PRG-1",
        },
        Group: {
            "id": "V0-LIF-1, V0-LIF-2, V0-LIF-3",
            "prompt_len": "V0-LIF-9, V0-LIF-3",
            "sequences": "V0-SEQ-1, V0-LIF-3",
            "arrival": "V0-LIF-9, V0-LIF-3",
            "computed": "V0-CHK-1, V0-LKA-5, V0-PRE-7, V0-SWP-4, V0-SWP-5, V0-LIF-9, V0-LIF-3",
            "is_prefill": "V0-CHK-9, V0-LIF-3",
            "is_swapped": "V0-LIF-6",
            "cached": "V0-PFX-2, V0-PFX-9, V0-LIF-3",
            "is_forgotten": "V0-SWP-16, V0-LIF-3",
            "cross": "V0-BLK-11, V0-LIF-9, V0-LIF-3",
            "mark": "V0-PFX-1, V0-BLK-12, V0-LIF-3",
            "waited": "V0-ADM-8, V0-LIF-3",
        },
        VllmV0Sequence: {
            "id": "V0-SEQ-1, V0-LIF-3",
            "generated": "V0-LIF-4, V0-LIF-9, V0-PRE-7, V0-SWP-4, V0-LIF-3",
            "slots": "V0-LKA-6, V0-SEQ-2, V0-LIF-3",
            "blocks": "V0-BLK-10, V0-SEQ-2, V0-SEQ-7, V0-SWP-2, V0-LKA-5, V0-LIF-9, V0-LIF-3",
            "is_finished": "V0-LIF-4, V0-LIF-9, V0-LIF-3",
        },
        BlockPool: {
            "size": "V0-BLK-1, V0-BLK-2, V0-LIF-3",
            "free": "V0-BLK-10, V0-BLK-13, V0-LIF-3",
            "references": "V0-BLK-3, V0-BLK-4",
            "keys": "V0-PFX-1, V0-PFX-6, V0-PFX-8, V0-LIF-3",
            "cached": "V0-BLK-8, V0-LIF-3",
        },
    },
}

each_class = pytest.mark.parametrize(
    ("policy", "kind"),
    [(policy, kind) for policy, kinds in DEFINED.items() for kind in kinds],
    ids=lambda value: getattr(value, "__name__", value),
)


@each_class
def test_every_field_of_a_state_has_rules_that_say_what_it_must_be(
    policy: str, kind: type[Any]
) -> None:
    known = DEFINED[policy][kind]

    assert [*known] == [field.name for field in fields(kind)]
    named = {rule for rules in known.values() for rule in rules.split(", ")}
    assert named <= claims_of(policy).registry.rules.keys()


@pytest.mark.parametrize("policy", DEFINED)
def test_the_table_lists_every_class_of_a_state(policy: str) -> None:
    state = next(kind for kind in DEFINED[policy] if kind.__name__ == "State")
    known, queue = {state}, [state]
    while queue:
        for field in fields(queue.pop()):
            found = {kind for kind in _classes(field.type) if has(kind)} - known
            queue += found
            known |= found

    assert known == DEFINED[policy].keys()


def _classes(annotation: Any) -> set[type[Any]]:
    """The classes that a type is made of."""
    parts = [kind for part in get_args(annotation) for kind in _classes(part)]
    return {*parts, annotation} if isinstance(annotation, type) else {*parts}


@pytest.mark.parametrize(
    ("policy", "faults"),
    [("nano-vllm", nano_vllm.REMEMBERED), ("vllm-v0", vllm_v0.REMEMBERED)],
    ids=DEFINED,
)
def test_faults_of_what_is_remembered_and_of_orders_are_noticed_by_rules(
    policy: str, faults: list[Fault]
) -> None:
    named = {rule for fault in faults for rule in fault.rules}

    assert len(faults) >= 9
    assert named <= claims_of(policy).registry.rules.keys()  # by none at a guard of the machine
