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
    """The watch that runs a device beside a vLLM V0 scheduler, without the encoder's results."""
    config = ctx.config
    watch = paged_watch(
        ctx,
        vllm_v0_work,
        first_block=1,
        num_cpu_blocks=config.num_cpu_blocks,
        # A decode step has a token for every sequence, and tokens for its lookahead slots.
        max_num_batched_tokens=max(config.token_budget, config.max_num_seqs)
        * (1 + config.num_lookahead_slots),
        num_speculative_tokens=config.num_lookahead_slots,
        shares_unwritten=config.prefix_caching,
    )
    return evolve(watch, requests=ctx.sequences, read_outputs=attrgetter("sampled"))


def vllm_v0_work(ctx: Context, step: Step) -> PagedWork:
    """The device's work: swaps and copies of blocks, then the tokens of unfinished sequences."""
    groups = {group.id: group for group in step.planned.running}
    unfinished = {row.id for group in step.after.present for row in group.unfinished}
    rows = {
        row.id: _row(ctx, step, groups[name], row, row.id in unfinished)
        for name in step.scheduled
        for row in groups[name].unfinished
    }
    transfers = Transfers.of(step.swaps_out, step.swaps_in, step.copies)
    return PagedWork(rows, transfers=transfers, forked=step.forked)


def _row(ctx: Context, step: Step, group: Group, sequence: Sequence, continues: bool) -> Row:
    """A row: a prompt's chunk after its cached tokens, or the newest token; then lookahead tokens.

    With several decode steps for one decision, all lookahead tokens are due to a sequence that
    continues. Else they are speculated: rejected ones differ from the sequence's tokens.
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
    due = 1 + more if config.is_multi_step and continues else 1
    return Row(tokens, start, sequence.blocks, samples=samples + more, due=due * samples)
