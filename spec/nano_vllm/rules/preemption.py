"""Rules of preemption: its reason, the victim, and the victim's place in the queue.

Source: nano-vllm, chapter 8.
"""

from collections.abc import Callable, Iterator

from spec.core.records import PREFILL
from spec.core.words import by_name
from spec.nano_vllm.records import Context, Sequence, Step
from spec.nano_vllm.rules.counting import needs_block
from spec.nano_vllm.rules.registry import of_step, text, witness
from spec.nano_vllm.rules.replay import queue_of, replayed


def _victims(step: Step) -> list[str]:
    return [event.id for event in step.happened("preempt")]


@of_step("NANO-PRE-1", text("Memory Full: The Crisis"), witness=lambda _, step: _victims(step))
def only_when_nothing_is_free(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence is preempted only if no block is free and one that decodes needs a block."""
    # Judged before each victim, so that none goes without need; the victim may be in need itself.
    if not _victims(step):
        return
    decoding = step.before.running[: ctx.config.max_num_seqs]
    needy = {row.id for row in decoding if needs_block(ctx.config, row)}
    for event, books in replayed(ctx, step):
        if event.transition == "preempt" and (books.free or not needy):
            yield f"request {event.id} was preempted, {books.free} blocks were free"
        if event.transition in ("preempt", "allocate"):
            needy.discard(event.id)


@of_step("NANO-PRE-2", text("Who Gets Preempted?"), witness=lambda _, step: len(_victims(step)) > 1)
def last_admitted_goes_first(_ctx: Context, step: Step) -> Iterator[str]:
    """The victim is the sequence that was admitted most recently: the back of running."""
    # The sequence that needs the block goes itself only if none is behind it.
    victims = _victims(step)
    backwards = [row.id for row in reversed(queue_of(step))][: len(victims)]
    if victims != backwards:
        yield f"preempted {victims}, back of running {backwards}"


@of_step("NANO-PRE-3", text("Who Gets Preempted?"), witness=lambda _, step: _victims(step))
def victim_has_generated_least(_ctx: Context, step: Step) -> Iterator[str]:
    """The victim has generated the fewest tokens."""
    # The text's first reason for its choice; a re-admitted sequence keeps its tokens.
    yield from _smaller_than_victims(step, lambda row: row.generated)


@of_step("NANO-PRE-4", text("Who Gets Preempted?"), witness=lambda _, step: _victims(step))
def victim_is_the_cheapest(ctx: Context, step: Step) -> Iterator[str]:
    """Computing the victim again costs the least."""
    # The text's second reason: the tokens of its next prefill, hits aside.
    yield from _smaller_than_victims(
        step, lambda row: ctx.requests[row.id].prompt_len + row.generated
    )


def _smaller_than_victims(step: Step, amount: Callable[[Sequence], int]) -> Iterator[str]:
    running = queue_of(step) if _victims(step) else ()
    remaining = {row.id: amount(row) for row in running}
    for victim in _victims(step):
        if remaining.get(victim, 0) > min(remaining.values(), default=0):
            yield f"victim {victim} has {remaining[victim]}, by sequence {by_name(remaining)}"
        remaining.pop(victim, None)


@of_step("NANO-PRE-5", text("Three Lines That Do Everything"))
@witness(lambda _, step: _victims(step) and step.before.waiting)
def victims_wait_in_front(ctx: Context, step: Step) -> Iterator[str]:
    """A victim waits in front of all others, keeps its tokens and has nothing computed."""
    # Of several, the first admitted is in front: the order of admission is restored.
    if step.kind == PREFILL:
        return
    queue = queue_of(step)
    waiting = step.before.waiting[len(queue) - len(step.before.running) :]
    generated = {row.id: row.generated for row in queue}
    again = [
        Sequence(id_, prefill_len=ctx.requests[id_].prompt_len + count, generated=count)
        for id_ in reversed(_victims(step))
        for count in [generated.get(id_, 0)]
    ]
    if [*step.after.waiting] != [*again, *waiting]:
        yield f"waiting {[row.id for row in step.after.waiting]}"
