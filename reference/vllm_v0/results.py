"""The results of a step: tokens, forks, finished groups, last uses and waiting times."""

from collections.abc import Iterable
from sys import maxsize

from attrs import evolve

from reference.core.run import Run
from reference.vllm_v0 import transitions
from reference.vllm_v0.decisions import Decisions
from spec.vllm_v0.records import Context, Group, Sequence, State

_NOW = maxsize  # later than all marks; what is marked so gets its rank at once


def work_in(
    results: Run[Context, State], run: Decisions, order: list[str], sampling: tuple[str, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """All scheduled tokens are computed; groups fork, sample and finish.

    Returns tokens by sequence, and each fork with its parent.
    """
    # all scheduled tokens are computed: of a prompt those, of a decoding sequence its newest
    tokens = {id_: run.scheduled[id_] if id_ in run.chunked else 1 for id_ in order}
    results.take(transitions.compute, tokens)
    # a group that samples its first token becomes all its sequences
    for group in results.state.running:
        if group.id in sampling and group.generated == 0:
            results.take(transitions.fork, group.id)
    forked = {event.after: event.id for event in results.events if event.transition == "fork"}
    # tokens are sampled
    rows = {group.id: group for group in results.state.running}
    sampled = {
        seq.id: _tokens(run, rows[id_], seq, id_ in run.chunked)
        for id_ in sampling
        for seq in rows[id_].unfinished
    }
    sequences = {seq.id: seq for id_ in sampling for seq in rows[id_].unfinished}
    counts = {sequence_id: len(new) for sequence_id, new in sampled.items()}
    ended = {id_ for id_, count in counts.items() if _is_over(run, sequences[id_], count)}
    results.take(transitions.sample, counts, ended)
    # those that have all their tokens give their blocks back: where one step can sample several,
    # with their groups, else before them and in the order of the batch
    for request_id in () if run.config.num_lookahead_slots else sampling:
        results.take(transitions.free_finished, request_id)
    for group in results.state.running:
        if not group.unfinished:
            results.take(transitions.finish, group.id)
    return sampled, forked


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


def by_request(
    ctx: Context, order: list[str], sampled: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Tokens of each request, those of its sequences one after the other."""
    outputs: dict[str, tuple[int, ...]] = {}
    for sequence_id, tokens in sampled.items():
        request_id = ctx.owners[sequence_id]
        outputs[request_id] = (*outputs.get(request_id, ()), *tokens)
    return {id_: outputs[id_] for id_ in order if id_ in outputs}


def accessed(ctx: Context, state: State, scheduled: Iterable[str]) -> State:
    """The blocks of scheduled groups are used now ("Marks blocks as accessed")."""
    if not ctx.config.prefix_caching:
        return state
    names = set(scheduled)
    running = tuple(
        evolve(group, mark=_NOW) if group.id in names else group for group in state.running
    )
    return evolve(state, running=running)


def aged(ctx: Context, state: State, is_prefill: bool) -> State:
    """Waiting groups have waited a step longer, as far as the delay can tell."""
    config = ctx.config
    if config.delay_factor == 0:
        return state
    step = config.prefill_time if is_prefill else config.decode_time
    most = config.delay_factor * config.prefill_time + 1

    def older(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(group, waited=min(group.waited + step, most)) for group in queue)

    return evolve(
        state,
        has_prefilled=state.has_prefilled or is_prefill,
        waiting=older(state.waiting),
        running=older(state.running),
        swapped=older(state.swapped),
    )
