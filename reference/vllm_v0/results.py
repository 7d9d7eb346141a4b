"""What comes of a step: tokens, forks and ends, and what the scheduler remembers of it."""

from collections.abc import Iterable

from attrs import evolve

from reference.core.run import Run
from reference.vllm_v0 import transitions
from reference.vllm_v0.decisions import Decisions
from spec.core.sharing import FrozenMap
from spec.vllm_v0.records import Context, Group, Sequence, State


def work_in(
    results: Run[Context, State], run: Decisions, order: list[str], sampling: tuple[str, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """All scheduled tokens are computed; groups fork, sample and finish.

    Returns tokens by sequence, and each fork with its parent.
    """
    ctx, ended = run.ctx, list[str]()
    sampled: dict[str, tuple[int, ...]] = {}
    forked: dict[str, str] = {}
    for one in order:
        was_prefill = one in run.chunked
        tokens = run.scheduled[one] if was_prefill else 1  # of each sequence
        results.take(transitions.compute, one, tokens, one in sampling)
        if one not in sampling:
            continue
        group = _row(results, one)
        if group.generated == 0 and ctx.requests[one].n > 1:
            results.take(transitions.fork, one)
            group = _row(results, one)
            forked |= {child.id: one for child in group.sequences[1:]}
        given = {seq.id: _tokens(run, group, seq, was_prefill) for seq in group.unfinished}
        over = [seq.id for seq in group.unfinished if _is_over(run, seq, len(given[seq.id]))]
        lengths = {name: len(tokens_of) for name, tokens_of in given.items()}
        results.take(transitions.sample, one, lengths, over)
        sampled |= given
        ended += over
    for one in order:
        over = [seq.id for seq in _row(results, one).sequences if seq.id in ended]
        if over:
            results.take(transitions.finish, one, over)
    return sampled, forked


def _row(results: Run[Context, State], request_id: str) -> Group:
    return next(one for one in results.state.running if one.id == request_id)


def _tokens(run: Decisions, group: Group, seq: Sequence, was_prefill: bool) -> tuple[int, ...]:
    """What a sequence samples: one token, and those that its lookahead slots have room for.

    Several steps follow one decision, or so many speculated tokens are right as the environment
    says; none behind the sequence's end ("Use or Discard the Lookahead Slots").
    """
    config = run.config
    has_slots = not was_prefill or (config.is_multi_step and config.chunked_prefill)
    slots = config.num_lookahead_slots if has_slots else 0
    more = slots if config.is_multi_step else run.env.accepted(group, slots)
    request = run.ctx.sequences[seq.id]
    count = 1
    while count <= more and not _is_over(run, seq, count):
        count += 1
    return tuple(request.output_token(seq.generated + index) for index in range(count))


def _is_over(run: Decisions, seq: Sequence, count: int) -> bool:
    """True if the sequence has all its tokens with the next `count`."""
    after = evolve(seq, generated=seq.generated + count)
    return after.generated >= run.ctx.sequences[seq.id].max_tokens or run.env.ends(after)


def by_request(order: list[str], sampled: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Tokens of each request, those of its sequences one after the other."""
    outputs: dict[str, tuple[int, ...]] = {}
    for one, tokens in sampled.items():
        request_id = one.split("/")[0]
        outputs[request_id] = (*outputs.get(request_id, ()), *tokens)
    return {one: outputs[one] for one in order if one in outputs}


def accessed(ctx: Context, state: State, scheduled: Iterable[str]) -> State:
    """The blocks of scheduled groups are used now ("Marks blocks as accessed")."""
    if not ctx.config.prefix_caching:
        return state
    names = set(scheduled)
    now = 1 + max((0, *state.marks.values(), *(one.mark for one in state.present)))
    running = tuple(evolve(one, mark=now) if one.id in names else one for one in state.running)
    return evolve(state, running=running)


def compressed(ctx: Context, state: State) -> State:
    """The same order of last uses in the smallest numbers, so that states repeat."""
    if not ctx.config.prefix_caching:
        return state
    known = sorted({0, *state.marks.values(), *(one.mark for one in state.present)})
    ranks = {mark: index for index, mark in enumerate(known)}

    def ranked(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(one, mark=ranks[one.mark]) for one in queue)

    return evolve(
        state,
        marks=FrozenMap({block: ranks[mark] for block, mark in state.marks.items()}),
        waiting=ranked(state.waiting),
        running=ranked(state.running),
        swapped=ranked(state.swapped),
    )


def aged(ctx: Context, state: State, is_prefill: bool) -> State:
    """Waiting groups have waited a step longer, as far as the delay can tell."""
    config = ctx.config
    if config.delay_factor == 0:
        return state
    step = config.prefill_time if is_prefill else config.decode_time
    most = config.delay_factor * config.prefill_time + 1

    def older(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(one, waited=min(one.waited + step, most)) for one in queue)

    return evolve(
        state,
        has_prefilled=state.has_prefilled or is_prefill,
        waiting=older(state.waiting),
        running=older(state.running),
        swapped=older(state.swapped),
    )
