"""Rules of the token budget, the threshold and the sequence limit.

Source: vllm-v1, "Token Budget Management", "Chunked Prefill" and "What Counts Toward
num_batched_tokens?".
"""

from collections.abc import Iterator

from spec.core.words import by_name
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.rules.counting import (
    cut_at,
    held_up,
    positions_due,
    share,
    token_limit,
    up_to_a_state,
)
from spec.vllm_v1.rules.registry import always, by_id, code, hits, of_step, text, witness
from spec.vllm_v1.rules.spans import stops_at_span

_BUDGET = text("Token Budget Management")
_COUNTS = text("What Counts Toward num_batched_tokens?")


@of_step("V1-BUD-1", _BUDGET, witness=lambda _, step: step.budget_left == 0)
def within_budget(ctx: Context, step: Step) -> Iterator[str]:
    """The tokens of a step are never more than the budget."""
    # A scheduled request has at least one token.
    total, budget = sum(step.scheduled.values()), token_limit(ctx.config)
    if total > budget or min(step.scheduled.values(), default=1) < 1:
        yield f"{total} tokens {by_name(step.scheduled)}, budget {budget}"


@of_step("V1-BUD-2", _COUNTS)
@witness(lambda _, step: any(id_ in hits(step) for id_ in step.admitted))
def only_new_tokens_count(ctx: Context, step: Step) -> Iterator[str]:
    """Only tokens that are computed count: cached ones do not, and a victim's are given back."""
    # What is left of the budget and what is scheduled add up to the budget.
    total, budget = sum(step.scheduled.values()), token_limit(ctx.config)
    if total + step.budget_left != budget:
        yield f"scheduled tokens {total}, left {step.budget_left}, budget {budget}"


@of_step("V1-BUD-3", text("The Fundamental Insight"))
@witness(lambda _, step: any(step.scheduled.get(row.id, 0) > 1 for row in step.before.running))
def running_requests_catch_up(ctx: Context, step: Step) -> Iterator[str]:
    """A running request is given what it is behind, drafts and awaited tokens included, as far as
    threshold, budget, model length and the encoder allow; nothing if it awaits its last token.
    """
    # Each from what those before it left; less only where a victim's tokens came back later, or in
    # 0.33.0 where no victim's blocks would be free at once.
    budget = token_limit(ctx.config)
    came_back = step.preempted and ctx.config.scheduling is Scheduling.PRIORITY
    waits = held_up(ctx, step)
    for row in step.before.running:
        if row.id in step.preempted:
            continue
        given, due = step.scheduled.get(row.id, 0), len(positions_due(ctx, step, row, budget))
        may_be_less = came_back or row.id in waits or stops_at_span(ctx, row, row.computed + given)
        if given > due or (given < due and not may_be_less):
            yield f"{row.id} is given {given} of {due} tokens, {budget} left"
        budget -= given


@of_step("V1-BUD-4", code("ends of the running loop"))
@witness(lambda _, step: step.budget_left > 0 and len(step.planned.running) > 1)
def no_running_request_is_left_out(ctx: Context, step: Step) -> Iterator[str]:
    """Budget left over means that every request still running was given a token."""
    # Up to 0.28.0 a request that preempts itself ends the loop: those behind it get nothing. One
    # that awaits its last token needs none, nor one whose awaited drafts fill the model length. One
    # may wait for an encoding (V1-ENC-8), and in 0.33.0 where no victim's blocks would be free at
    # once.
    rows = (row for row in step.planned.running if row.id not in step.scheduled)
    rows = (row for row in rows if not stops_at_span(ctx, row, row.computed))
    left_out = [row.id for row in rows if positions_due(ctx, step, row, step.budget_left)]
    left_out = [id_ for id_ in left_out if id_ not in held_up(ctx, step)]
    if step.budget_left > 0 and left_out:
        yield f"{left_out} were given nothing, {step.budget_left} tokens left"


@of_step("V1-BUD-5", _COUNTS, witness=lambda _, step: step.admitted)
def admitted_requests_get_their_share(ctx: Context, step: Step) -> Iterator[str]:
    """A request that is admitted is given its tokens less the cached ones, as far as threshold,
    budget and the encoder allow.
    """
    # In the order of admission, from what the running requests left.
    running = by_id(step.before.running)
    budget = token_limit(ctx.config)
    budget -= sum(count for id_, count in step.scheduled.items() if id_ in running)
    rows = by_id(step.planned.running)
    for one_id in step.admitted:
        row, given = rows[one_id], step.scheduled.get(one_id, 0)
        behind = row.tokens + step.drafts.get(one_id, 0) - row.computed
        positions = range(row.computed, row.computed + share(ctx, step, behind, budget))
        due = len(up_to_a_state(ctx, row, positions))
        if given > due or (given < due and not stops_at_span(ctx, row, row.computed + given)):
            yield f"{one_id} is given {given} tokens, its share is {due}"
        budget -= given


@of_step(
    "V1-CHK-1",
    text("Chunked Prefill - Balancing Prefill vs Decode"),
    applies=lambda config: config.long_prefill_token_threshold > 0,
)
@witness(lambda ctx, step: ctx.config.long_prefill_token_threshold in step.scheduled.values())
def threshold_caps(ctx: Context, step: Step) -> Iterator[str]:
    """No request is given more tokens in a step than the threshold; in 0.33.0 one that is alone may
    be.
    """
    # Drafts count too.
    most = cut_at(ctx, step)
    beyond = {id_: count for id_, count in step.scheduled.items() if count > (most or count)}
    if beyond:
        yield f"{beyond} tokens, threshold {most}"


def _uncut(config: VllmV1Config) -> bool:
    return not config.chunked_prefill


@of_step("V1-CHK-2", text("Chunked Prefill Example"), applies=_uncut)
@witness(lambda _, step: step.refusal == "V1-CHK-2")
def prompts_are_not_cut(ctx: Context, step: Step) -> Iterator[str]:
    """Without chunked prefill a prompt is never cut to what is left of the budget."""
    # The threshold still cuts, and the encoder.
    rows = by_id(step.planned.running)
    for one_id in step.admitted:
        row, given = rows[one_id], step.scheduled.get(one_id, 0)
        behind = row.tokens + step.drafts.get(one_id, 0) - row.computed
        whole = share(ctx, step, behind, behind)
        if given != whole and not stops_at_span(ctx, row, row.computed + given):
            yield f"{one_id} is given {step.scheduled.get(one_id)} of {whole} tokens"


@always("V1-SEQ-1", text("Example: Character.AI Workload"))
@witness(lambda _, step: step.refusal == "V1-SEQ-1")
def within_sequence_limit(ctx: Context, state: State) -> Iterator[str]:
    """At most max_num_seqs requests run."""
    # Between two steps.
    if len(state.running) > ctx.config.max_num_seqs:
        yield f"{len(state.running)} run, limit {ctx.config.max_num_seqs}"
