"""Steps of vLLM V0 as work of the paged device.

Source: vllm-v0, "Swapping Functions", "Forking Sequences" and "How Does Lookahead Work?".
"""

from operator import attrgetter

from attrs import evolve

from checks.harness.paging.rows import PagedWork, request_tokens
from checks.harness.paging.watch import PagedWatch, paged_watch
from engine.paged.inputs import Transfers
from engine.paged.rows import Row
from spec.core.requests import VOCABULARY
from spec.vllm_v0.records import Context, Group, Sequence, Step


def vllm_v0_watch(ctx: Context) -> PagedWatch[Step]:
    """The device next to a vLLM V0 scheduler; what an encoder computes is not on it."""
    config = ctx.config
    watch = paged_watch(
        ctx,
        vllm_v0_work,
        first_block=1,
        num_cpu_blocks=config.num_cpu_blocks,
        # A decode has a token for every sequence, and those that lookahead slots are for.
        max_num_batched_tokens=max(config.token_budget, config.max_num_seqs)
        * (1 + config.num_lookahead_slots),
        num_speculative_tokens=config.num_lookahead_slots,
        shares_unwritten=config.prefix_caching,
    )
    return evolve(watch, requests=ctx.sequences, read_outputs=attrgetter("sampled"))


def vllm_v0_work(ctx: Context, step: Step) -> PagedWork:
    """Blocks are swapped and copied, then each unfinished sequence computes its tokens."""
    groups = {one.id: one for one in step.planned.running}
    goes_on = {one.id for group in step.after.present for one in group.unfinished}
    rows = {
        one.id: _row(ctx, step, groups[name], one, one.id in goes_on)
        for name in step.scheduled
        for one in groups[name].unfinished
    }
    transfers = Transfers.of(step.swaps_out, step.swaps_in, step.copies)
    return PagedWork(rows, transfers=transfers, forked=step.forked)


def _row(ctx: Context, step: Step, group: Group, sequence: Sequence, goes_on: bool) -> Row:
    """A chunk of a prompt behind what is cached, or the newest token; then lookahead tokens.

    These are computed in the decode steps that follow one decision, and all are due to a sequence
    that goes on; or they are speculated, and those that were not sampled are other ones.
    """
    config, request = ctx.config, ctx.sequences[sequence.id]
    is_prefill, samples = group.id in step.prefills, group.id in step.sampling
    start = group.computed + step.budget.cached.get(group.id, 0)
    end = group.computed + (step.scheduled[group.id] if is_prefill else 1)
    looks_ahead = not is_prefill or (config.is_multi_step and config.chunked_prefill)
    more = min(step.lookahead_slots, config.max_model_len - end) if looks_ahead and samples else 0
    tokens = request_tokens(request, start, end + more)
    if not config.is_multi_step:
        accepted = len(step.sampled.get(sequence.id, ())) - 1
        rejected = end - start + max(accepted, 0)
        tokens[rejected:] = (tokens[rejected:] + 1) % VOCABULARY
    due = 1 + more if config.is_multi_step and goes_on else 1
    return Row(tokens, start, sequence.blocks, samples=samples + more, due=due * samples)
