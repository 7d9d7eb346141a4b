"""Rules of the scheduling budget: tokens, cached ones apart, and sequences.

Source: vllm-v0, "Scheduling Budget (`SchedulingBudget`)".
"""

from collections.abc import Iterator

from spec.core.words import by_name
from spec.vllm_v0.records import Context, State, Step
from spec.vllm_v0.rules.counting import batched, token_limit, will_have
from spec.vllm_v0.rules.registry import always, by_id, code, ids, of_step, text, victims, witness

_BUDGET = text("Scheduling Budget (`SchedulingBudget`)")
_RUNNING = text("`_schedule_running` - Scheduling Active Sequences")


@of_step("V0-BUD-1", _BUDGET)
@witness(lambda ctx, step: sum(batched(step).values()) == token_limit(ctx.config))
def within_token_budget(ctx: Context, step: Step) -> Iterator[str]:
    """The uncached tokens of a step are never more than its token budget."""
    # A decoding sequence computes one, a prompt those behind the cached ones.
    computed = batched(step)
    if sum(computed.values()) > token_limit(ctx.config):
        yield f"{computed} tokens, budget {token_limit(ctx.config)}"


@always("V0-BUD-2", text("Ensures no overcommitment"))
@witness(
    lambda ctx, step: (
        sum(len(group.unfinished) for group in step.after.running) == ctx.config.max_num_seqs
        and step.after.waiting
    )
)
def within_sequence_limit(ctx: Context, state: State) -> Iterator[str]:
    """Running sequences do not exceed the configured maximum."""
    # Each sequence of a group counts; those that have finished do not.
    running = {group.id: len(group.unfinished) for group in state.running}
    if sum(running.values()) > ctx.config.max_num_seqs:
        yield f"sequences run {by_name(running)}, limit {ctx.config.max_num_seqs}"


@of_step("V0-BUD-3", _BUDGET, witness=lambda _, step: len(step.scheduled) > 1)
def tokens_are_counted_once(_ctx: Context, step: Step) -> Iterator[str]:
    """The budget counts the tokens that a step computes, those of each request once."""
    # A request that gave way is not among them.
    counted = {id_: count for id_, count in step.budget.batched.items() if count}
    if counted != batched(step) and not step.after.failure:
        yield f"counted {by_name(counted)}, computed {by_name(batched(step))}"


@of_step("V0-BUD-4", _BUDGET, applies=lambda config: config.prefix_caching)
@witness(lambda _, step: any(step.budget.cached.values()))
def cached_tokens_are_counted_apart(_ctx: Context, step: Step) -> Iterator[str]:
    """Tokens retrieved from the cache are counted apart from those that are computed."""
    # What is scheduled is both together.
    counted = {id_: count for id_, count in step.budget.cached.items() if count}
    rest = {id_: step.scheduled[id_] - count for id_, count in batched(step).items()}
    expected = {id_: count for id_, count in rest.items() if count}
    if counted != expected and not step.after.failure:
        yield f"counted {by_name(counted)}, cached {by_name(expected)}"


@of_step("V0-BUD-5", text("Initializes the scheduling budget"))
@witness(lambda _, step: any(count > 1 for count in step.budget.seqs.values()))
def sequences_are_counted_once(ctx: Context, step: Step) -> Iterator[str]:
    """The budget counts the sequences that a request has or will have, once, and by default those
    of requests that run already, too.
    """
    # Where prompts are chunked, of the scheduled ones.
    rows = by_id(step.planned.running)
    expected = {id_: will_have(ctx, rows[id_]) for id_ in rows if id_ in step.scheduled}
    if not ctx.config.chunked_prefill:
        expected |= {group.id: will_have(ctx, group) for group in rows.values()}
    counted = {id_: count for id_, count in step.budget.seqs.items() if id_ in expected}
    if not step.after.failure and counted != expected:
        yield f"counted {by_name(counted)}, sequences {by_name(expected)}"


@of_step("V0-BUD-8", text("Initializes the scheduling budget"))
@witness(lambda _, step: step.scheduled)
def the_budget_is_the_configured_one(ctx: Context, step: Step) -> Iterator[str]:
    """A step's budget is the configured number of tokens, and of sequences; by default it has as
    many tokens as the model length, 2,048 at least.
    """
    # Whatever of it is used.
    budget, due = step.budget, (token_limit(ctx.config), ctx.config.max_num_seqs)
    if (budget.token_budget, budget.max_num_seqs) != due and not step.after.failure:
        yield f"budget of {budget.token_budget} tokens, {budget.max_num_seqs} sequences"


@of_step("V0-BUD-6", _RUNNING)
@witness(lambda _, step: any(count > 1 for count in step.scheduled.values()))
def one_token_for_each_sequence(_ctx: Context, step: Step) -> Iterator[str]:
    """A decoding request is assigned one token per step for each of its sequences."""
    # Tokens that it may speculate on are no part of them.
    for group in step.planned.running:
        count = step.scheduled.get(group.id)
        if count is not None and not group.is_prefill and count != len(group.unfinished):
            yield f"{group.id} decodes {count} tokens with {len(group.unfinished)} sequences"


@of_step("V0-BUD-7", code("ends of the running loop"))
@witness(lambda _, step: len(step.scheduled) > 1 and not step.prefills)
def budget_is_used(ctx: Context, step: Step) -> Iterator[str]:
    """Running requests are scheduled in the order of their queue until the first does not fit: no
    decoding request is the first to be left out where the budget has a token for each sequence.
    """
    # But for a step of prompts alone.
    if step.after.failure or (step.admitted and not ctx.config.chunked_prefill):
        return
    left = token_limit(ctx.config) - sum(batched(step).values())
    kept = (group for group in step.before.running if group.id not in victims(step))
    first = next((group for group in kept if group.id not in step.scheduled), None)
    if first is not None and not first.is_prefill and len(first.unfinished) <= left:
        yield f"{first.id} is given nothing of {left} tokens, {ids(step.before.running)} run"
