"""The worked examples of the text on vLLM V0, served by the reference."""

from collections.abc import Iterable
from typing import Any

import pytest

from checks.harness.runs.serving import Run, run_workload
from checks.harness.runs.settings import Settings
from checks.harness.system import REFERENCE
from engine.core.clock import CostModel
from spec.core.requests import Prompt, Request
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Group, Step
from tests.requests import request

Keys = dict[str, Any]


def attempted(keys: Keys, *requests: Request) -> tuple[Run, list[Step]]:
    """A run, and its steps."""
    config = VllmV0Config.from_mapping({"block_size": 4, "max_model_len": 64, **keys})
    settings, steps = Settings(config, CostModel.from_mapping({}, config)), list[Any]()
    run = run_workload(settings, requests, using=REFERENCE, observers=(steps.append,))
    return run, steps


def served(keys: Keys, *requests: Request) -> list[Step]:
    """The steps of a run in which every rule holds."""
    run, steps = attempted(keys, *requests)
    assert run.holds
    return steps


def column(steps: list[Step], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(step, name) for name in names) for step in steps]


def ids(queue: Iterable[Group]) -> list[str]:
    return [group.id for group in queue]


# --- priorities -----------------------------------------------------------------------------

URGENT = {"scheduling": "priority", "max_num_seqs": 2, "reading": "documented"}
A = request("A", 4, 2, arrival=1, priority=5)
B, C = (request(name, 4, 4, priority=urgency) for name, urgency in (("B", 3), ("C", 1)))


def test_a_high_priority_request_takes_the_place_of_the_lowest() -> None:
    """Table "Handling High-Priority Requests": C is preempted, A is scheduled in its place."""
    _, steps = attempted(URGENT, B, C, A)

    assert column(steps[:4], "preempted", "admitted") == [
        ((), ("B", "C")),
        (("C",), ()),
        ((), ("A",)),
        ((), ()),
    ]
    assert ids(steps[1].after.waiting) == ["A", "C"]


def test_a_small_request_passes_a_more_urgent_one_and_gives_way_in_every_second_step() -> None:
    """The same three where memory is the limit: C passes B, which the priorities forbid."""
    long = [request(name, 4, 24, priority=urgency) for name, urgency in (("B", 3), ("C", 1))]
    config = {"scheduling": "priority", "reading": "documented", "num_blocks": 8}

    run, steps = attempted(config, *long, request("A", 4, 24, arrival=2, priority=5))

    assert column(steps[14:21], "preempted", "admitted") == [
        (("B",), ()),
        *[((), ("C",)), (("C",), ())] * 3,
    ]
    waits = [ids(step.after.waiting) for step in steps[14:21]]
    assert waits == [["B", "C"], *[["B"], ["B", "C"]] * 3]
    assert {broken.rule.id for broken in run.broken} >= {"V0-PRI-8", "V0-PRI-5"}


def test_the_release_serves_the_lower_number_first() -> None:
    steps = served(URGENT | {"reading": "repaired"}, B, C, A)

    assert not any(step.preempted for step in steps)


# --- prompts that are too long, and chunks ------------------------------------------------------


def test_x_fits_y_is_ignored_and_z_is_scheduled_partially() -> None:
    """Table "Managing Prompt Prefill Requests": prompts of 500, 10,000 and 3,000 tokens."""
    config = {"chunked_prefill": True, "max_model_len": 4096, "max_num_batched_tokens": 2048}

    steps = served(config, request("X", 500, 2), request("Y", 10_000, 2), request("Z", 3_000, 2))

    assert steps[0].scheduled == {"X": 500, "Z": 1_548}
    assert steps[0].ignored == ("Y",)
    assert steps[1].scheduled == {"Z": 1_452, "X": 1}


def test_a_decode_runs_first_and_two_long_prompts_are_cut() -> None:
    """Table "Optimized Prefill & Decode Scheduling": Y decodes, X and Z wait."""
    config = {
        **{"chunked_prefill": True, "max_model_len": 16_384, "max_num_batched_tokens": 2_049},
        **{"max_num_partial_prefills": 2, "max_long_partial_prefills": 2, "block_size": 64},
    }

    later = (request("X", 3_000, 1, arrival=1), request("Z", 10_000, 1, arrival=1))
    steps = served(config, request("Y", 500, 9), *later)

    assert steps[1].scheduled == {"X": 1_024, "Z": 1_024, "Y": 1}
    assert ids(steps[1].after.running) == ["Y", "X", "Z"]


def test_prompts_that_end_in_this_step_go_first() -> None:
    """Table "Prioritizing Prefill Completion": [B, A, C] becomes [A, C, B]."""
    config = {
        **{"chunked_prefill": True, "max_num_batched_tokens": 15},
        **{"max_num_partial_prefills": 3, "max_long_partial_prefills": 3},
    }

    steps = served(config, request("B", 15, 2), request("A", 10, 2), request("C", 7, 2))

    assert ids(steps[0].after.running) == ["B", "A", "C"]
    assert steps[1].scheduled == {"B": 5, "A": 5, "C": 2}
    assert ids(steps[1].after.running) == ["A", "C", "B"]


# --- the default strategy -------------------------------------------------------------------

SWAPPING = {"preemption_mode": "swap", "num_blocks": 5, "num_cpu_blocks": 8}
THREE = (request("B", 8, 8), request("C", 8, 6), request("A", 1, 1, arrival=5))


def test_in_one_step_a_is_prefilled_b_decodes_and_c_is_restored() -> None:
    """Table "General Scheduling Strategy", as its example has it."""
    steps = served(SWAPPING | {"strategy": "combined"}, *THREE)

    swapped = [step.swapped_out or step.swapped_in for step in steps]
    assert [victims for victims in swapped if victims] == [("C",), ("C",)]
    assert {"A", "B"} <= steps[5].scheduled.keys()


def test_by_the_cases_above_the_example_a_waits_for_c() -> None:
    steps = served(SWAPPING, *THREE)

    admitted = next(step.index for step in steps if "A" in step.admitted)
    back = next(step.index for step in steps if step.swapped_in)
    assert back < admitted


# --- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "preempted"), [(50, ()), (95, ("A",))])
def test_ten_slots_can_be_appended_to_50_of_100_and_not_to_95(
    slots: int, preempted: tuple[str, ...]
) -> None:
    """Table "Checking if More Slots Can Be Added": one token and nine lookahead slots."""
    config = {"block_size": 1, "num_blocks": 100, "max_model_len": 128, "num_lookahead_slots": 9}

    _, steps = attempted(config, request("A", slots, 2))

    assert steps[1].preempted == preempted


def test_an_eight_step_decode_has_seven_lookahead_slots() -> None:
    """ "How Does Lookahead Work?": one token as usual and seven more."""
    config = {"num_scheduler_steps": 8, "num_lookahead_slots": 7, "block_size": 1}

    steps = served(config, request("A", 5, 9))

    assert column(steps, "lookahead_slots") == [(0,), (7,)]
    assert [len(step.outputs["A"]) for step in steps] == [1, 8]
    tables = [step.planned.running[0].sequences[0].blocks for step in steps]
    assert [len(table) for table in tables] == [5, 13]


# --- cached tokens, chunks ------------------------------------------------------------------------


def test_cached_tokens_of_a_new_a_partly_and_a_fully_cached_prompt() -> None:
    """Table "Calculating New Cached & Uncached Tokens"."""
    prompts = {
        "new": [("shared", 8)],
        "partly": [("shared", 4), ("own", 4)],
        "fully": [("shared", 8)],
    }
    requests = [
        Request(id=name, prompt=Prompt.of_parts(parts), max_tokens=2, arrival=int(name != "new"))
        for name, parts in prompts.items()
    ]

    first, second = served({"prefix_caching": True}, *requests)[:2]

    assert first.scheduled == {"new": 8}
    counted, cached = second.budget.batched, second.budget.cached
    assert (counted["partly"], cached["partly"]) == (4, 4)
    assert (counted["fully"], cached["fully"]) == (1, 7)


@pytest.mark.parametrize(
    ("budget", "caching", "chunk"), [(100, False, 100), (50, False, 50), (99, True, 64)]
)
def test_a_hundred_tokens_as_far_as_the_budget_goes(budget: int, caching: bool, chunk: int) -> None:
    """Table "Chunking New Tokens Based on Budget"."""
    config = {"block_size": 64, "max_model_len": 128, "chunked_prefill": True}

    keys = config | {"max_num_batched_tokens": budget, "prefix_caching": caching}
    steps = served(keys, request("A", 100, 2))

    assert steps[0].scheduled == {"A": chunk}


# --- what else the tables say ---------------------------------------------------------------------


def test_output_is_processed_asynchronously_unless_a_group_has_several_sequences() -> None:
    """Table "Allowing Asynchronous Postprocessing": n of 1 and n of 5."""
    later = request("Z", 4, 2, arrival=2, n=5)
    steps = served({"async_output": True}, request("Y", 4, 2), later)

    assert [step.is_async for step in steps if step.scheduled] == [True, True, False, False]


def test_five_sequences_are_swapped_out_and_one_is_recomputed() -> None:
    """Table "Preempting Sequences", "Decision Logic"."""
    config = {"num_blocks": 8, "num_cpu_blocks": 20, "max_num_seqs": 6}

    single = served(config, request("first", 12, 12), request("last", 12, 6))
    several = served(config, request("first", 12, 12), request("last", 9, 6, n=5))

    assert [step.preempted for step in single if step.preempted] == [("last",)]
    assert any(step.swapped_out == ("last",) for step in several)
