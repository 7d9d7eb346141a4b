"""Known crashes of vLLM V0 releases: the machine predicts the step in which the engine dies."""

from collections.abc import Iterable, Set

from checks.harness.difference import Divergence, KnownDifference, first_step
from checks.policies.vllm_v0.adapter import FIRST_BLOCK
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Step


def _end(id_: str, reason: str, causes: str, says: str, because: str) -> KnownDifference:
    """The engine dies in a step for which the machine predicts it.

    `reason`: the machine's text; `causes`: the release's exceptions, each with its function.
    """

    def occurs(divergence: Divergence) -> bool:
        failure, expected = divergence.failure, divergence.expected[divergence.index]
        is_raised = failure is not None and failure.cause in causes.split("; ")
        return is_raised and expected.after.failure == reason

    def ends(_config: VllmV0Config, _action: object, step: Step) -> bool:
        return step.after.failure == reason

    due = first_step(ends)
    return KnownDifference(id_, "vllm-v0", ("vLLM 0.9.2",), says, because, occurs, due)


def _is_evicted_for_old_contents(divergence: Divergence) -> bool:
    """True if only blocks of outdated evictor entries, which the release reports, are elsewhere.

    The release raises if it evicts by such an entry, in the step after the report.
    """
    index, failure = divergence.index, divergence.failure
    shown = divergence.records[: index + (failure is None)][-1:]
    outdated = {
        field: {FIRST_BLOCK + block for block in record.get(name, {}).get("outdated", ())}
        for record in shown
        for field, name in _POOLS.items()
    }
    if failure is not None:
        is_raised = failure.cause == "AssertionError _maybe_allocate_evicted_block_id"
        return is_raised and any(outdated.values())
    orders = [f"{state}.{pool}.free" for state in ("planned", "after") for pool in _POOLS]
    return divergence.differs_only(*orders) and all(
        _without(difference.expected, moved) == _without(difference.found, moved)
        for difference in divergence.differing
        for moved in [outdated[difference.field.split(".")[1]]]
    )


def _without(blocks: Iterable[int], moved: Set[int]) -> list[int]:
    return [block for block in blocks if block not in moved]


_POOLS = {"pool": "blocks", "cpu": "cpu_blocks"}  # as steps and as records name them

KNOWN_DIFFERENCES = (
    _end(
        "VLZ-1",
        "a waiting group has no waiting sequence",
        "AssertionError _schedule_prefills",
        "a request that is swapped out for a more urgent one ends the engine",
        "it is put among the waiting ones, where each is expected to have a prompt to compute",
    ),
    _end(
        "VLZ-2",
        "a block of the CPU is marked as used on the GPU",
        "KeyError mark_blocks_as_accessed",
        "with prefix caching, the abort of a swapped request ends the engine",
        "when its blocks are given back they are marked as used, as if they were on the GPU",
    ),
    _end(
        "VLZ-3",
        "fewer tokens are cached than computed",
        "AssertionError _get_num_new_uncached_and_cached_tokens",
        "with prefix caching, a prompt that was swapped out half done ends the engine",
        "what it has computed is on the CPU, where no lookup finds it",
    ),
    _end(
        "VLZ-4",
        "the CPU has no space for a victim",
        "RuntimeError _swap_out",
        "the engine ends where a victim does not fit the CPU",
        "that it could be recomputed, or aborted alone, is not thought of",
    ),
    _end(
        "VLZ-5",
        "more is scheduled than the budget allows",
        "AssertionError _schedule_default; AssertionError _schedule_chunked_prefill;"
        " AssertionError add_num_batched_tokens",
        "a request for several sequences ends the engine once these are more than may run, or where"
        " prompts are chunked have more tokens than the budget",
        "it counts for one until its prompt is computed, and then no decode of it asks the budget",
    ),
    _end(
        "VLZ-6",
        "a group of several sequences cannot be recomputed",
        "AssertionError _preempt_by_recompute",
        "where victims are to be recomputed, one of several sequences ends the engine",
        "recomputing is made for one sequence, and nothing else is tried",
    ),
    _end(
        "VLZ-7",
        "a forked sequence leaves before it was scheduled",
        "AssertionError remove_seq",
        "with prefix caching, a forked sequence that ends with its first token ends the engine",
        "the cache learns of a sequence when it is scheduled, and not when it is forked",
    ),
    _end(
        "VLZ-8",
        "no free blocks",
        "NoFreeBlocksError _allocate_block_id",
        "a group with empty lookahead blocks ends the engine where these do not fit the CPU",
        "whether it fits is asked without them, and then they are swapped, too",
    ),
    _end(
        "VLZ-9",
        "what lookups remember of a swapped group is dropped twice",
        "AssertionError remove_seq",
        "with prefix caching, a swapped request that finds no budget in two steps ends the engine",
        "each time what the cache remembers of it is dropped, and the second time nothing is there",
    ),
    KnownDifference(
        "VLZ-10",
        "vllm-v0",
        ("vLLM 0.9.2",),
        "with prefix caching and swapping, a block is evicted before its turn, for what it held"
        " before, which ends the engine",
        "entries of the evictor stay behind when a block is used again, and on the CPU, where no"
        " use is noted, they count for its next contents",
        _is_evicted_for_old_contents,
        lambda _config, _actions, _steps: None,
    ),
)
