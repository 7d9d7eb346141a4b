"""Rules of sessions, whose client sends one turn after the other. Source: vLLM 0.28.0."""

from collections.abc import Iterator

from spec.core.words import changes
from spec.vllm_v1.records import Context, Sequence, Step
from spec.vllm_v1.rules.counting import (
    next_turns,
    places_taken,
    turns_behind,
    wrongly_held_back,
)
from spec.vllm_v1.rules.registry import by_id, code, of_step, witness

_SESSION = code("streaming sessions")


@of_step("V1-SES-1", _SESSION)
@witness(lambda _, step: len(step.after.awaited) > len(step.before.awaited))
def turns_take_over(ctx: Context, step: Step) -> Iterator[str]:
    """When a turn of a session ends, its blocks and tokens are kept for the next one, but for the
    last token, which is not computed.
    """
    # Where the next turn stands is V1-ORD-4's. One that was sent early has all of its prompt.
    ran, kept = by_id(step.planned.running), by_id(step.after.queued)
    for id_ in step.finished:
        turn = ctx.requests[id_].continued_by
        if turn is None:
            continue
        row = ran[id_]
        tokens = row.tokens + len(step.outputs.get(id_, ())) - 1
        length = ctx.requests[turn].prompt_len if turn in step.before.early else tokens
        due = Sequence(turn, prompt_len=length, computed=tokens, blocks=row.blocks)
        if kept.get(turn) != due:
            yield f"{turn} behind {id_}: {changes(due, kept.get(turn))}"


@of_step("V1-SES-2", _SESSION)
@witness(lambda _, step: step.before.awaited and step.admitted)
def awaited_turns_wait(ctx: Context, step: Step) -> Iterator[str]:
    """A turn that its client has not sent is not admitted, and no step sends it; one that follows a
    turn that ends in the step is awaited from then on.
    """
    new = frozenset(next_turns(ctx, step)) - step.before.early
    yield from wrongly_held_back(step, "awaited", new)


@of_step("V1-SES-3", _SESSION)
@witness(lambda ctx, step: step.refusal == "V1-SES-3")
def sessions_keep_their_places(ctx: Context, step: Step) -> Iterator[str]:
    """A session between two turns keeps its place: no request is admitted that would run beyond
    max_num_seqs together with such sessions.
    """
    awaited = len(step.planned.awaited)
    if awaited and step.admitted and places_taken(step.planned) > ctx.config.max_num_seqs:
        yield f"{len(step.planned.running)} run, {awaited} sessions wait for their clients"


@of_step("V1-SES-4", _SESSION)
@witness(lambda ctx, step: any(id_ in step.before.early for id_ in next_turns(ctx, step)))
def early_turns_wait(ctx: Context, step: Step) -> Iterator[str]:
    """A turn that its client sends before the one before has ended waits for that end, and leaves
    with its session.
    """
    ended = {*next_turns(ctx, step)} | turns_behind(ctx, step.leavers)
    due = step.before.early - ended
    if step.planned.early != step.before.early or step.after.early != due:
        yield f"sent early {sorted(step.after.early)}, expected {sorted(due)}"
