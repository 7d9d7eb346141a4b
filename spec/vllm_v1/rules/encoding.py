"""Rules of images and audio in prompts: what is encoded when, what is kept, what may go.

Source: vLLM 0.28.0, `EncoderCacheManager` and `_try_schedule_encoder_inputs`.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from spec.core.judging import ids
from spec.core.requests import Content, Span
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Sequence, State, Step
from spec.vllm_v1.rules.counting import (
    positions_due,
    received,
    share,
    token_limit,
    up_to_a_state,
)
from spec.vllm_v1.rules.registry import always, by_id, code, of_step, witness
from spec.vllm_v1.rules.spans import (
    encoded,
    encoder_budget,
    encoder_capacity,
    given_up,
    positions_of,
    positions_read,
    spans_of,
    stops_at_span,
    total,
    waits_for_encoding,
)

_SCHEDULED = code("_try_schedule_encoder_inputs")
_CACHE = code("EncoderCacheManager")


@of_step("V1-ENC-1", _SCHEDULED, witness=lambda _, step: step.encoded)
def tokens_read_encodings(ctx: Context, step: Step) -> Iterator[str]:
    """A token of an image or audio is computed, and up to 0.28.0 read ahead by a drafter, only in a
    step in which its encoding is in the cache, and its request refers to it.
    """
    encoder = step.planned.encoder
    for row in step.planned.running:
        positions = positions_of(row, step)
        if ctx.config.behaviour.encodes_for_drafter:
            positions = positions_read(ctx, row, step)
        for span in spans_of(ctx, row.id):
            is_read = range(max(positions.start, span.offset), min(positions.stop, span.end))
            if is_read and row.id not in encoder.holders(span.content):
                yield f"{row.id} reads {span.content}, which is not there, or not for it"


@of_step("V1-ENC-2", _CACHE, witness=lambda _, step: len(step.encoded) > 1)
def only_encodings_enter(ctx: Context, step: Step) -> Iterator[str]:
    """What is new in the encoder cache is encoded in the step, and what is encoded was not there,
    or has gone to make room.
    """
    before, planned = step.before.encoder, step.planned.encoder
    made, victims = encoded(ctx, step), {*step.preempted}
    new = {*planned.contents} - {*before.contents} - {*made}
    if new:
        yield f"{_names(new)} are cached, and no step has encoded them"
    needed = {content for content, holders in before.held if not victims.issuperset(holders)}
    twice = {content for content in made if content in needed or made.count(content) > 1}
    if twice or not {*made} <= {*planned.contents}:
        yield f"{_names(made)} are encoded, and there were {_names(twice)}"
    if {*step.after.encoder.contents} != {*planned.contents}:
        yield "what is computed changes what is cached"


@of_step("V1-ENC-3", _SCHEDULED)
@witness(lambda ctx, step: total(encoded(ctx, step)) == encoder_budget(ctx.config))
def within_encoder_budget(ctx: Context, step: Step) -> Iterator[str]:
    """The tokens that a step encodes are never more than the encoder's budget."""
    tokens, budget = total(encoded(ctx, step)), encoder_budget(ctx.config)
    if tokens > budget:
        yield f"{tokens} tokens are encoded, budget {budget}"


@always("V1-ENC-4", _CACHE)
@witness(lambda ctx, step: total(step.after.encoder.contents) == encoder_capacity(ctx.config))
def within_encoder_capacity(ctx: Context, state: State) -> Iterator[str]:
    """The encoder cache never holds more tokens than its capacity, and no content twice."""
    contents, capacity = state.encoder.contents, encoder_capacity(ctx.config)
    if total(contents) > capacity or len({*contents}) < len(contents):
        yield f"cached {_names(contents)}, capacity {capacity}"


@always("V1-ENC-5", _CACHE)
@witness(lambda ctx, step: any(_begun(ctx, row) for row in step.after.running))
def what_is_read_stays(ctx: Context, state: State) -> Iterator[str]:
    """A running request that has computed a part of an image's or audio's tokens refers to its
    encoding, so that this stays.
    """
    for row in state.running:
        for span in _begun(ctx, row):
            if row.id not in state.encoder.holders(span.content):
                yield f"{row.id} has read a part of {span.content}, and does not refer to it"


def _begun(ctx: Context, row: Sequence) -> list[Span]:
    """The spans of which the request has computed a part."""
    return [span for span in spans_of(ctx, row.id) if span.offset < row.computed < span.end]


@always("V1-ENC-6", _CACHE)
@witness(lambda _, step: any(len(ids_) > 1 for _, ids_ in step.after.encoder.held))
def only_running_requests_refer(ctx: Context, state: State) -> Iterator[str]:
    """Only running requests refer to encodings, each to contents of its prompt that it has taken
    for a span: one that waits or has left refers to nothing.
    """
    encoder, running = state.encoder, ids(state.running)
    if (encoder.held, encoder.taken) != (tuple(sorted(encoder.held)), tuple(sorted(encoder.taken))):
        yield f"held {encoder.held}, taken {encoder.taken}, in another order than their names'"
    for id_, taken in state.encoder.taken:
        if id_ not in running or not {*taken} <= {*range(len(spans_of(ctx, id_)))}:
            yield f"{id_} has taken {list(taken)}"
    for content, holders in state.encoder.held:
        for id_ in holders:
            taken = state.encoder.taken_by(id_)
            if content not in {spans_of(ctx, id_)[index].content for index in taken}:
                yield f"{id_} refers to {content}, taken {list(taken)}"
    if {*state.encoder.evictable} & {content for content, _ in state.encoder.held}:
        yield f"{_names(state.encoder.evictable)} may go, and are referred to"


@of_step("V1-ENC-7", _CACHE, witness=lambda _, step: step.evicted)
def the_oldest_go(ctx: Context, step: Step) -> Iterator[str]:
    """An encoding goes only to make room, and of those that none refers to the one that may go for
    the longest time goes first.
    """
    # A victim, or a waiting request that is refused, may have taken some and given them back.
    before, planned = step.before.encoder, step.planned.encoder
    waiting = {span.content for row in step.planned.queued for span in spans_of(ctx, row.id)}
    if ({*before.contents} | {*step.evicted}) - {*planned.contents} != {*step.evicted}:
        yield f"{_names(step.evicted)} have gone; {_names(planned.contents)} are cached"
    kept = [content for content in planned.evictable if content not in waiting]
    stays = [content for content in before.evictable if content in kept]
    if kept[: len(stays)] != stays:
        yield f"{_names(planned.evictable)} may go, before {_names(before.evictable)}"
    if not step.evicted:
        return
    wanted = total(encoded(ctx, step)) + total(waiting - {*before.contents})
    if total(before.contents) + wanted <= encoder_capacity(ctx.config):
        yield f"{_names(step.evicted)} have gone, {wanted} tokens are wanted"
    places = {content: place for place, content in enumerate(before.evictable)}
    last = max(places.get(content, 0) for content in step.evicted)
    for content in before.evictable[:last]:
        if content in planned.evictable and content not in waiting:
            yield f"{content} stays, {_names(step.evicted)} have gone"


@of_step("V1-ENC-8", _SCHEDULED)
@witness(lambda _, step: step.refusal == "V1-ENC-8")
def cut_only_without_an_encoding(ctx: Context, step: Step) -> Iterator[str]:
    """A request that runs or is admitted gets fewer tokens, up to an image or audio, only if this
    is not encoded and exceeds what is left of the encoder's budget or of the room beside what
    requests refer to, or must not be split and would be.
    """
    # By priority a victim may have had budget and room when it was another's turn. What waits is
    # V1-PRG-3's.
    if step.preempted and ctx.config.scheduling is Scheduling.PRIORITY:
        return
    for row, stop, due in (*_cut_while_running(ctx, step), *_cut_at_admission(ctx, step)):
        if stops_at_span(ctx, row, stop) and not waits_for_encoding(ctx, step, row, stop, due):
            yield f"{row.id} stops at {stop} of {due} tokens, in front of a span"


def _cut_while_running(ctx: Context, step: Step) -> Iterator[tuple[Sequence, int, int]]:
    """Running requests that get less than they are behind: where they stop, and would."""
    budget = token_limit(ctx.config)
    for row in step.before.running:
        if row.id not in step.preempted:
            given = step.scheduled.get(row.id, 0)
            due = positions_due(ctx, step, row, budget) if spans_of(ctx, row.id) else ()
            if given < len(due):
                yield row, row.computed + given, row.computed + len(due)
            budget -= given


def _cut_at_admission(ctx: Context, step: Step) -> Iterator[tuple[Sequence, int, int]]:
    """Admitted requests that get less than their share: where they stop, and would."""
    rows, running = by_id(step.planned.running), ids(step.before.running)
    budget = token_limit(ctx.config)
    budget -= sum(count for id_, count in step.scheduled.items() if id_ in running)
    for id_ in step.admitted:
        row, given = rows.get(id_), step.scheduled.get(id_, 0)
        if row is not None and spans_of(ctx, id_):
            behind = row.tokens + step.drafts.get(id_, 0) - row.computed
            whole = range(row.computed, row.computed + share(ctx, step, behind, budget))
            due = up_to_a_state(ctx, row, whole)
            if given < len(due):
                yield row, row.computed + given, due.stop
        budget -= given


def _keeps_whole(config: VllmV1Config) -> bool:
    return config.disable_chunked_mm_input


@of_step("V1-ENC-9", code("disable_chunked_mm_input"), applies=_keeps_whole)
@witness(lambda ctx, step: any(map(partial(_reads_whole, ctx, step), step.planned.running)))
def spans_are_computed_whole(ctx: Context, step: Step) -> Iterator[str]:
    """Where images and audio are not to be split, a step computes all tokens of one or none; of one
    that a cached prefix has begun, the rest.
    """
    for row in step.planned.running:
        end = row.computed + step.scheduled.get(row.id, 0)
        for span in spans_of(ctx, row.id):
            if row.computed <= span.offset < end < span.end:
                yield f"{row.id} computes {end - span.offset} tokens of {span.content}"


def _reads_whole(ctx: Context, step: Step, row: Sequence) -> bool:
    end = row.computed + step.scheduled.get(row.id, 0)
    return any(row.computed <= span.offset and span.end <= end for span in spans_of(ctx, row.id))


@of_step("V1-ENC-10", _SCHEDULED)
@witness(lambda _, step: step.planned.encoder.taken != step.before.encoder.taken)
def references_begin_with_a_token(ctx: Context, step: Step) -> Iterator[str]:
    """A request refers to an encoding from the step that computes a token of it, or whose drafter
    reads one ahead, from 0.33.0 on if it is there; up to 0.28.0 not for a second span of what this
    very step encodes for it.
    """
    # What a victim refers to is taken back, all else stays.
    before, planned = step.before.encoder, step.planned.encoder
    asked = {row.id: _asked_for(ctx, step, row) for row in step.planned.running}
    due = {id_: {*taken} for id_, taken in before.taken if id_ not in step.preempted}
    for id_, numbers in asked.items():
        if numbers:
            due[id_] = due.get(id_, set()) | numbers
    if {id_: {*taken} for id_, taken in planned.taken} != due:
        yield f"taken {dict(planned.taken)}, expected {due}"
    needed: dict[Content, set[str]] = {}
    for content, holders in before.held:
        needed[content] = {*holders}.difference(step.preempted)
    for id_, numbers in asked.items():
        for number in numbers:
            needed.setdefault(spans_of(ctx, id_)[number].content, set()).add(id_)
    held = {content: {*holders} for content, holders in planned.held}
    if held != {content: holders for content, holders in needed.items() if holders}:
        yield f"held {dict(planned.held)}, expected {needed}"


def _asked_for(ctx: Context, step: Step, row: Sequence) -> set[int]:
    """The spans of which the step reads a token of the request, and that it refers to for it."""
    spans, own = spans_of(ctx, row.id), dict(step.encoded).get(row.id, ())
    positions, taken = positions_read(ctx, row, step), step.planned.encoder.taken_by(row.id)
    read = {
        number
        for number, span in enumerate(spans)
        if positions and positions.start < span.end and span.offset < positions.stop
    }
    if not ctx.config.behaviour.encodes_for_drafter:
        ahead = {number for number in read if spans[number].offset >= positions_of(row, step).stop}
        read -= ahead.difference(taken)
    if ctx.config.behaviour.keeps_repeated:
        return read
    new = {spans[number].content for number in own}
    return {number for number in read if number in own or spans[number].content not in new}


@of_step("V1-ENC-11", code("_free_encoder_inputs"))
@witness(lambda _, step: {*step.after.encoder.evictable} - {*step.planned.encoder.evictable})
def references_end_with_the_last_token(ctx: Context, step: Step) -> Iterator[str]:
    """A request refers to an encoding until the results have come of a step that leaves none of its
    tokens to compute, or to compute again for a rejected draft, up to 0.28.0 nor the token behind
    them where a drafter reads ahead, or until it leaves; and what none refers to any more may go,
    after all that may go already.
    """
    leavers = [event.id for event in step.happened("leave")] or sorted(step.leavers)
    keeps_longer = ctx.config.drafter_reads_ahead and ctx.config.behaviour.encodes_for_drafter
    more = 1 if keeps_longer else 0
    turns = [(id_, number) for id_ in leavers for number in step.planned.encoder.taken_by(id_)]
    for id_ in received(ctx, step).scheduled:
        certain, is_over = _certain(ctx, step, id_) - more, id_ in step.finished
        for number in step.planned.encoder.taken_by(id_) if id_ not in leavers else ():
            if is_over or spans_of(ctx, id_)[number].end <= certain:
                turns.append((id_, number))
    due = given_up(ctx, step.planned.encoder, turns)
    if step.after.encoder != due:
        yield f"encodings {step.after.encoder}, expected {due}"


def _certain(ctx: Context, step: Step, request_id: str) -> int:
    """Tokens of a request that stay computed, whatever becomes of drafts in flight.

    Those that steps in flight sample do not count, nor those that have come just now.
    """
    row = by_id(step.after.running).get(request_id)
    came = step.outputs.get(request_id, ()) if ctx.config.steps_in_flight else ()
    return 0 if row is None else row.computed - row.placeholders - len(came)


def _names(contents: Iterable[Content]) -> str:
    return ", ".join(map(str, contents)) or "nothing"
