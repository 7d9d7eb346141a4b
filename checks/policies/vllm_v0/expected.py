"""Expected violations: rules of vLLM V0 that do not hold under some configurations."""

from collections.abc import Callable
from typing import TypeAlias

from checks.harness.difference import ExpectedViolation
from spec.vllm_v0.config import Scheduling, VllmV0Config
from spec.vllm_v0.variants import CHOICES, Reading, Strategy

Where: TypeAlias = Callable[[VllmV0Config], bool]


def _under(reading: Reading, where: Where = lambda _config: True) -> Where:
    """Configurations with this reading of the text (key `reading`) for which `where` is true."""
    return lambda config: config.reading is reading and where(config)


def _released(where: Where = lambda _config: True) -> Where:
    return _under(Reading.RELEASED, where)


def _documented(where: Where = lambda _config: True) -> Where:
    return _under(Reading.DOCUMENTED, where)


def _chunked(config: VllmV0Config) -> bool:
    return config.chunked_prefill


def _chunked_and_cached(config: VllmV0Config) -> bool:
    return config.chunked_prefill and config.prefix_caching


def _swaps(config: VllmV0Config) -> bool:
    return config.num_cpu_blocks > 0


def _by_priority(config: VllmV0Config) -> bool:
    return config.scheduling is Scheduling.PRIORITY and not config.chunked_prefill


def _forks(config: VllmV0Config) -> bool:
    return config.num_lookahead_slots == 0


_NEVER_SERVED = ("V0-PRG-2", "V0-PRG-3", "V0-PRG-6", "V0-PRE-11", "V0-SWP-10", "endless")

EXPECTED_VIOLATIONS = (
    # --- what the release dies of or hangs in ----------------------------------------------------
    ExpectedViolation(
        ("V0-PRG-1",),
        "the engine ends where it meets what it was not made for, as the known differences have it",
        _released(),
    ),
    ExpectedViolation(
        (*_NEVER_SERVED, "V0-SWP-6"),
        "a swapped group waits for the watermark, with every block free; one that was swapped out"
        " half done waits until all that is left of its prompt fits a step",
        _released(_swaps),
    ),
    ExpectedViolation(
        (*_NEVER_SERVED, "V0-PRE-1", "V0-PRE-2", "V0-PRE-9"),
        "the last block of a group counts as written to, whether it needs a slot or not, so that"
        " one in every block is preempted, and admitted, for ever",
        _released(),
    ),
    ExpectedViolation(
        (*_NEVER_SERVED, "V0-BUD-7", "V0-PRG-4", "V0-ORD-4"),
        "what is left of the budget, or a prompt's share of it, is rounded down to whole blocks:"
        " prompts and decodes are given nothing of less than one",
        _released(_chunked),
    ),
    ExpectedViolation(
        ("V0-BLK-3", "V0-BLK-4", "V0-BLK-5"),
        "a swapped group that will never fit leaves, and its blocks stay held",
        _released(_swaps),
    ),
    ExpectedViolation(
        ("V0-SWP-2", "V0-LIF-5", "V0-PRI-3"),
        "what an encoder computed stays on the GPU while its group is swapped out, or gone",
        _released(lambda config: _swaps(config) and not config.prefix_caching),
    ),
    ExpectedViolation(
        ("V0-ADM-5",),
        "a group that lacks slots takes its adapter out of the batch, also where others have it",
        _released(lambda config: config.max_loras > 0),
    ),
    ExpectedViolation(
        ("V0-BLK-4", "V0-LIF-6", "V0-SWP-2", "V0-PRI-6"),
        "a group that is swapped out for a more urgent one is put among the waiting, and what is to"
        " be copied of it is forgotten",
        _released(lambda config: _by_priority(config) and _swaps(config)),
    ),
    ExpectedViolation(
        ("V0-SWP-1", "V0-SWP-3"),
        "a group that gives way to a more urgent one does not count as preempted: another comes"
        " back in the same step, onto its blocks",
        _released(lambda config: _by_priority(config) and _swaps(config)),
    ),
    ExpectedViolation(
        (
            *("V0-PFX-3", "V0-PFX-7", "device: read unwritten", "device: read position"),
            *("device: read content", "device: write gap", "device: rewrite", "device: token"),
        ),
        "all blocks of a prompt count as computed once its first chunk was",
        _released(_chunked_and_cached),
    ),
    ExpectedViolation(
        ("V0-SEQ-7", "device: transfer target"),
        "a block that decoding fills gives way to one of equal content, also where that is not"
        " computed yet",
        _released(lambda config: config.prefix_caching),
    ),
    ExpectedViolation(
        ("V0-SWP-1", "device: transfer target"),
        "a block that is swapped in full gives way to one of equal content in the same step, and"
        " what comes back next is swapped onto it",
        _released(lambda config: config.prefix_caching and _swaps(config)),
    ),
    ExpectedViolation(
        ("V0-BUD-2", "V0-BUD-5", "device: batch limit"),
        "a request for several sequences counts for one until its prompt is computed",
        _released(_forks),
    ),
    ExpectedViolation(
        ("V0-BUD-5",),
        "where a group gives way, the budget counts that group no longer which it gave way to",
        _released(lambda config: not config.chunked_prefill),
    ),
    # --- what the release does otherwise than the text -------------------------------------------
    ExpectedViolation(
        ("V0-ADM-6",),
        "requests that were passed over do not count for the delay, and running ones only until"
        " they are scheduled",
        _released(lambda config: config.delay_factor > 0),
    ),
    ExpectedViolation(
        ("V0-CHK-4",),
        "the number of prompts under way divides the budget, and limits nothing",
        _released(lambda config: config.max_num_partial_prefills > 1),
    ),
    ExpectedViolation(
        ("V0-ORD-6",),
        "prompts under way are put in order, new ones stand behind them as they were admitted",
        _released(_chunked),
    ),
    ExpectedViolation(
        ("V0-PRI-4", "V0-PRI-8"),
        "the front of a queue that is not sorted yet is looked at, and only in a step without new"
        " prompts",
        _released(_by_priority),
    ),
    # --- where the text contradicts itself -------------------------------------------------------
    ExpectedViolation(
        ("V0-CHK-6",),
        "the text has a first chunk sample, though its prompt is unfinished",
        _documented(_chunked),
    ),
    ExpectedViolation(
        ("V0-SEQ-6",),
        "the text has a first chunk sample, and a group forks with it though its prompt is not"
        " computed yet",
        _documented(lambda config: _chunked(config) and _forks(config)),
    ),
    ExpectedViolation(
        ("V0-PRE-10",),
        "a group whose sequences are more than the budget has tokens left for stays where it is",
        _documented(lambda config: _chunked(config) and _forks(config)),
    ),
    ExpectedViolation(
        ("V0-PRG-4",),
        "the text has prompts go first, alone or as far as there is space",
        _documented(lambda config: not config.chunked_prefill),
    ),
    ExpectedViolation(
        ("V0-SWP-9",),
        "the text has prompts cut to what fits, also one that was swapped out half done",
        _documented(lambda config: _chunked(config) and _swaps(config)),
    ),
    ExpectedViolation(
        ("V0-PRI-5",),
        "in the text others give way only in a step without new prompts, and none where prompts are"
        " chunked: until then the less urgent ones go on",
        _documented(lambda config: config.scheduling is Scheduling.PRIORITY),
    ),
    ExpectedViolation(
        ("V0-PRI-5", "V0-PRI-8"),
        "the text has long prompts not block smaller ones: these pass one that does not fit, also"
        " where it is more urgent",
        _documented(_by_priority),
    ),
    ExpectedViolation(
        ("V0-PRE-4",),
        "a step with a prompt does not put the running queue in order: where decodes go with it,"
        " the last one gives way",
        lambda config: (
            _by_priority(config)
            and config.strategy is Strategy.COMBINED
            and CHOICES[config.reading].sorts_late
        ),
    ),
    ExpectedViolation(
        ("V0-ADM-4",),
        "what a victim has sampled belongs to its prompt, which may have become too long for that",
    ),
)
