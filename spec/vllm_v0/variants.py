"""Readings of the text: a choice for each place where text and released code differ.

Source: vllm-v0, the sections named at each field; vLLM 0.9.2 for what is released.
"""

from enum import StrEnum

from attrs import frozen


class Reading(StrEnum):
    """The account of the scheduler to follow where text and release differ.

    `documented`: the text, literally. `released`: vLLM 0.9.2 with what it dies of or hangs in.
    `repaired`: the release without these, each with the smallest change that does.
    """

    DOCUMENTED = "documented"
    RELEASED = "released"
    REPAIRED = "repaired"


class Strategy(StrEnum):
    """What a step of `_schedule_default` may hold; the text describes both.

    `exclusive`: prefills alone, and none while a group is swapped out ("handles different
    scheduling cases"). `combined`: prefills, then decodes, then swapped groups in one step, as far
    as budget and memory go (the example of A, B and C).
    """

    EXCLUSIVE = "exclusive"
    COMBINED = "combined"


@frozen(kw_only=True)
class Choices:
    """The choices of a reading.

    - `higher_number_first`: the larger priority is the more urgent ("Example Scenario" of
      `_schedule_priority_preemption`); else the smaller one.
    - `blocked_by_long`: a prompt that finds no blocks or budget ends the walk over the waiting
      queue; else it is passed over ("long sequences do not block smaller ones").
    - `samples_first_chunk`: the first chunk of a prompt samples though the prompt is unfinished
      ("Managing Prefill Sequences & Sampling").
    - `counts_siblings`: a waiting group counts for as many sequences as it will have.
    - `keeps_victims_apart`: a group swapped out for a more urgent one joins the swapped queue and
      its copies are reported; else it joins the waiting queue and they are not.
    - `marks_swapped`: with prefix caching, the blocks of a group that is freed while swapped out
      are marked as accessed on the GPU, which does not have them.
    - `watermark_when_alone`: a swapped group leaves the watermark free even when nothing runs.
    - `slots_at_worst`: each block that a running sequence may write to counts as a new one, its own
      last block, too, and that one even if nothing is written; else what is lacking counts, and
      what must be copied.
    - `frees_infeasible`: a swapped group that will never fit gives its CPU blocks back.
    - `needs_cpu_space`: the engine ends where a victim does not fit the CPU; else it is recomputed
      or, having several sequences, ignored.
    - `swaps_in_chunks`: a half-done prompt that was swapped out returns chunk by chunk.
    - `recomputes_by_word`: where recomputing is configured the engine ends if a victim
      has several sequences; else that is swapped out.
    - `limits_chunks`: where prompts are chunked, the longest prompt is held against a chunk; else
      against the whole prompt.
    - `overdraws`: sequences decode though the budget does not have a token for each, but those
      of which `rounds_decodes` wants a block.
    - `rounds_decodes`: where prompts are chunked and prefixes cached, a decode, too, needs a budget
      of a whole block.
    - `shares_any_budget`: a prompt's share of the budget may be less than a block, or than a token,
      so that none of those that share it gets any; else it is one of these at least.
    - `begins_with_leftovers`: a prompt begins with what the shares of others leave, though as many
      are under way as may be.
    - `counts_scheduled_only`: where prompts are chunked, running sequences that are not scheduled
      do not count for the limit.
    - `fills_gaps`: where prompts are chunked, what is left of the budget where a group of several
      sequences lacks some of it is given to swapped groups and prompts.
    - `sorts_late`: by priority, the waiting queue is brought into its order only in a step without
      prompts, after its front was looked at; else before anything else.
    - `finishing_first_under_way`: only prompts under way are put in the order of their ends, new
      ones behind them as they come.
    - `forgets_scheduled`: the delay takes requests that this step runs for gone.
    - `computed_when_allocated`: with prefix caching all blocks of a prompt count as computed after
      the step that admitted it; else those whose tokens were computed.
    - `bisects_prefix`: the end of the cached prefix is found by halving, as if each cached block
      followed a cached one; else block by block.
    - `gives_way_blindly`: a full block gives way to one of equal content though that may not be
      computed yet, and is copied before if it is shared; else only to one that is computed.
    - `swaps_uncomputed`: all blocks of a table are copied when it is swapped, also onto blocks of
      equal contents that are computed there; else those that hold computed tokens.
    - `counts_filled_only`: whether a swapped group fits is asked without its empty lookahead
      blocks, though they are swapped, too, and on the CPU with the blocks of its next tokens.
    - `forgets_forks`: with prefix caching, the engine ends where a sequence leaves that was forked
      and not scheduled since.
    - `forgets_refused`: with prefix caching, a swapped group that finds no budget is dropped from
      what lookups remember, and the engine ends where that happens twice.
    - `refunds_victims`: where a group gives way for another in the running queue, the budget counts
      it no longer; else that other one, whose sequences it does not count again by default.
    - `delays_by_rest`: only those that were not looked at yet count for the delay; else also those
      that were passed over in this step.
    - `keeps_cross`: a swapped group leaves on the GPU what its encoder computed.
    """

    higher_number_first: bool = False
    blocked_by_long: bool = True
    samples_first_chunk: bool = False
    counts_siblings: bool = True
    keeps_victims_apart: bool = True
    marks_swapped: bool = False
    watermark_when_alone: bool = False
    slots_at_worst: bool = False
    frees_infeasible: bool = True
    needs_cpu_space: bool = False
    swaps_in_chunks: bool = True
    recomputes_by_word: bool = False
    limits_chunks: bool = False
    overdraws: bool = False
    rounds_decodes: bool = False
    shares_any_budget: bool = False
    begins_with_leftovers: bool = False
    counts_scheduled_only: bool = False
    fills_gaps: bool = False
    sorts_late: bool = False
    finishing_first_under_way: bool = False
    forgets_scheduled: bool = False
    computed_when_allocated: bool = False
    bisects_prefix: bool = False
    gives_way_blindly: bool = False
    swaps_uncomputed: bool = False
    counts_filled_only: bool = False
    forgets_forks: bool = False
    forgets_refused: bool = False
    refunds_victims: bool = True
    delays_by_rest: bool = False
    keeps_cross: bool = False


CHOICES = {
    Reading.DOCUMENTED: Choices(
        higher_number_first=True, blocked_by_long=False, samples_first_chunk=True
    ),
    Reading.RELEASED: Choices(
        counts_siblings=False,
        keeps_victims_apart=False,
        marks_swapped=True,
        watermark_when_alone=True,
        slots_at_worst=True,
        frees_infeasible=False,
        needs_cpu_space=True,
        swaps_in_chunks=False,
        recomputes_by_word=True,
        limits_chunks=True,
        overdraws=True,
        rounds_decodes=True,
        shares_any_budget=True,
        begins_with_leftovers=True,
        counts_scheduled_only=True,
        fills_gaps=True,
        sorts_late=True,
        finishing_first_under_way=True,
        forgets_scheduled=True,
        computed_when_allocated=True,
        bisects_prefix=True,
        gives_way_blindly=True,
        swaps_uncomputed=True,
        counts_filled_only=True,
        forgets_forks=True,
        forgets_refused=True,
        refunds_victims=False,
        delays_by_rest=True,
        keeps_cross=True,
    ),
    Reading.REPAIRED: Choices(),
}
