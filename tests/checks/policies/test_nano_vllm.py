"""Claims of the text on nano-vLLM that do not hold, each with its shortest run on record."""

import pytest

from checks.evidence import EXPLORED, recorded
from checks.explore.examine import MACHINE_ERROR

RECORD = recorded(EXPLORED)

# The instance, the rule that breaks, the actions of the shortest run, and what was found.
REFUTED = {
    # 0 is ppaa, 1 is qqaa, 2 is ppaax: block 1 held ppaa, then qqaa; 2 takes it for ppaa.
    "a hit checked by its tokens finds a block behind another prefix": (
        *("same block elsewhere", "NANO-PFX-3"),
        "arrive 0; arrive 1; arrive 2; step; step; step",
        "request 2 found block 1, written for other tokens",
    ),
    # Block 3 held the third pair of 1, then the second of 0; both are 2 2, and both are named.
    "a victim's block that another used is found for two places of its table": (
        *("same tokens twice", "NANO-BLK-4"),
        "arrive 0; arrive 1; step; step; step; step; step",
        "request 1: 7 tokens, blocks [0, 3, 3, 2]",
    ),
    "a prompt that is cached as a whole computes nothing and gets a token": (
        *("shared prefix", "NANO-PFX-8"),
        "arrive 0; arrive 2; step",
        "request 2 computed 0 tokens in a prefill step",
    ),
    "cached tokens count against the budget as released": (
        *("shared prefix", "NANO-PFX-7"),
        "arrive 0; arrive 1; step",
        "request 1 was refused, 6 and 1 new tokens",
    ),
    "the limit on the step leaves running sequences without a token": (
        *("budget", "NANO-DEC-1"),
        "arrive 0; arrive 1; arrive 2; step; step; step",
        "running ['0', '1', '2'], decoded ['0', '1']",
    ),
    "the victim is not the one whose prefill costs least": (
        *("preemption", "NANO-PRE-4"),
        "arrive 0; arrive 2; arrive 1; step; step",
        "victim 1 has 3, by sequence (0: 4, 2: 2, 1: 3)",
    ),
    # 0 alone decodes and takes the block of 2, ends, 2 comes back; then 1 needs a block.
    "the victim has generated more than the one that was left behind": (
        *("left behind", "NANO-PRE-3"),
        "arrive 0; arrive 1; arrive 2; step; step; step; step, 0 ends; step; step",
        "victim 2 has 2, by sequence (1: 1, 2: 2)",
    ),
    # It preempts itself in the last step before the loop, in which none can be scheduled.
    "a request larger than the pool waits for ever": (
        *("oversized", "NANO-LIF-6"),
        "arrive 0; step; step; step; step",
        "request 0: step 5 repeats for ever without the goal",
    ),
    # Prompt de, blocks of two: with its first answer it has three tokens and one block.
    "a block taken at the boundary is missing where a prompt ends there": (
        *("documented", MACHINE_ERROR),
        "arrive 1; step",
        "raised GuardError: decode is not allowed here: NANO-SLT-1",
    ),
}


@pytest.mark.parametrize(("name", "rule", "actions", "found"), REFUTED.values(), ids=REFUTED)
def test_claim_is_refuted_by_the_recorded_run(
    name: str, rule: str, actions: str, found: str
) -> None:
    violation = RECORD[f"nano-vllm, {name}"]["violations"][rule]

    assert ("; ".join(violation["actions"]), violation["found"]) == (actions, found)


def test_hit_that_carries_its_hash_finds_no_block_behind_another_prefix() -> None:
    assert RECORD["nano-vllm, repaired, same block elsewhere"]["violations"] == {}
