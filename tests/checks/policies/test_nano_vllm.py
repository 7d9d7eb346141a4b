"""Claims of the text on nano-vLLM that do not hold, each with its shortest run on record."""

from checks.evidence import EXPLORED, recorded
from checks.explore import MACHINE_ERROR

RECORD = recorded(EXPLORED)


def run_of(name: str, rule: str) -> tuple[list[str], str]:
    """The actions of the shortest run that breaks the rule, and what was found."""
    violation = RECORD[f"nano-vllm, {name}"]["violations"][rule]
    return violation["actions"], violation["found"]


def test_hit_checked_by_its_tokens_finds_a_block_behind_another_prefix() -> None:
    """0 is ppaa, 1 is qqaa, 2 is ppaax: block 1 held ppaa, then qqaa; 2 takes it for ppaa."""
    actions, found = run_of("same block elsewhere", "NANO-PFX-3")

    assert actions == ["arrive 0", "arrive 1", "arrive 2", "step", "step", "step"]
    assert found == "request 2 found block 1, written for other tokens"
    assert RECORD["nano-vllm, repaired, same block elsewhere"]["violations"] == {}


def test_victims_block_that_another_used_is_found_for_two_places_of_its_table() -> None:
    """Block 3 held the third pair of 1, then the second of 0; both are 2 2, and both are named."""
    actions, found = run_of("same tokens twice", "NANO-BLK-4")

    assert actions == ["arrive 0", "arrive 1", *["step"] * 5]
    assert found == "request 1: 7 tokens, blocks [0, 3, 3, 2]"


def test_prompt_that_is_cached_as_a_whole_computes_nothing_and_gets_a_token() -> None:
    actions, found = run_of("shared prefix", "NANO-PFX-8")

    assert actions == ["arrive 0", "arrive 2", "step"]
    assert found == "request 2 computed 0 tokens in a prefill step"


def test_cached_tokens_count_against_the_budget_as_released() -> None:
    actions, found = run_of("shared prefix", "NANO-PFX-7")

    assert actions == ["arrive 0", "arrive 1", "step"]
    assert found == "request 1 was refused, 6 and 1 new tokens"


def test_limit_on_the_step_leaves_running_sequences_without_a_token() -> None:
    actions, found = run_of("budget", "NANO-DEC-1")

    assert actions == ["arrive 0", "arrive 1", "arrive 2", "step", "step", "step"]
    assert found == "running ['0', '1', '2'], decoded ['0', '1']"


def test_victim_is_not_the_one_whose_prefill_costs_least() -> None:
    actions, found = run_of("preemption", "NANO-PRE-4")

    assert actions == ["arrive 0", "arrive 2", "arrive 1", "step", "step"]
    assert found == "victim 1 has 3, by sequence {'0': 4, '2': 2, '1': 3}"


def test_victim_has_generated_more_than_who_was_left_behind() -> None:
    """0 alone decodes and takes the block of 2, ends, 2 comes back; then 1 needs a block."""
    actions, found = run_of("left behind", "NANO-PRE-3")

    assert (
        actions
        == [*(f"arrive {one}" for one in "012"), *["step"] * 3, "step, 0 ends"] + ["step"] * 2
    )
    assert found == "victim 2 has 2, by sequence {'1': 1, '2': 2}"


def test_request_larger_than_the_pool_waits_for_ever() -> None:
    """It preempts itself in the last step before the loop, in which nobody can be scheduled."""
    actions, found = run_of("oversized", "NANO-LIF-6")

    assert actions == ["arrive 0", "step", "step", "step", "step"]
    assert found == "step 5 repeats for ever without the goal"


def test_block_taken_at_the_boundary_is_missing_where_a_prompt_ends_there() -> None:
    """Prompt de, blocks of two: with its first answer it has three tokens and one block."""
    actions, found = run_of("documented", MACHINE_ERROR)

    assert actions == ["arrive 1", "step"]
    assert found == "raised GuardError: decode is not allowed here: NANO-SLT-1"
