"""Rules of speculative decoding: drafts are scheduled, verified, rolled back.

Source: vllm-v1, "Speculative Decoding - Rollback Logic".
"""

from collections.abc import Iterator

from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.rules.counting import cut_at, receivers, verified
from spec.vllm_v1.rules.registry import always, by_id, code, of_step, text, witness

_ROLLBACK = text("Speculative Decoding - Rollback Logic")


def _speculates(config: VllmV1Config) -> bool:
    return config.num_speculative_tokens > 0


def _rejects(ctx: Context, step: Step) -> bool:
    return any(count > step.accepted.get(id_, 0) for id_, count in verified(ctx, step).items())


@of_step("V1-SPC-1", _ROLLBACK, witness=lambda _, step: step.drafts, applies=_speculates)
def drafts_come_last(ctx: Context, step: Step) -> Iterator[str]:
    """Drafts are verified behind all of a request's own tokens, never more than were proposed."""
    # What is scheduled beyond its tokens is its drafts.
    before = by_id(step.before.running)
    for row in step.planned.running:
        end = row.computed + step.scheduled.get(row.id, 0)
        drafts = step.drafts.get(row.id, 0)
        most = before[row.id].drafts if row.id in before else ctx.config.num_speculative_tokens
        if drafts != max(end - row.tokens - row.placeholders, 0) or drafts > most:
            yield f"{row.id} verifies {drafts} drafts of {most}, computes to {end} of {row.tokens}"


@of_step("V1-SPC-2", _ROLLBACK, witness=_rejects)
def rejected_are_rolled_back(ctx: Context, step: Step) -> Iterator[str]:
    """After a step a request has computed what was scheduled less the rejected drafts."""
    # With steps in flight those of the results that came. Where a load was lost V1-EXT-4 applies.
    after, drafts = by_id(step.after.running), verified(ctx, step)
    for row in step.planned.running:
        if row.id not in after or row.id in step.failed_loads:
            continue
        rejected = drafts.get(row.id, 0) - step.accepted.get(row.id, 0)
        expected = row.computed + step.scheduled.get(row.id, 0) - rejected
        if after[row.id].computed != expected:
            yield f"{row.id} has computed {after[row.id].computed}, expected {expected}"


@always("V1-SPC-3", _ROLLBACK, witness=_rejects)
def computed_is_in_range(_ctx: Context, state: State) -> Iterator[str]:
    """What is computed is never negative and never beyond the tokens, awaited ones included."""
    # Between two steps; within one, drafts are beyond until they are verified.
    for row in state.present:
        if not 0 <= row.computed <= row.tokens + row.placeholders:
            yield f"{row.id} has computed {row.computed} of {row.tokens} tokens"


@of_step("V1-SPC-4", _ROLLBACK, witness=lambda _, step: any(step.accepted.values()))
def accepted_and_one_more(ctx: Context, step: Step) -> Iterator[str]:
    """A request samples its next tokens: one more than its drafts that were accepted, unless it
    ends.
    """
    # The end of sequence, or max_tokens, may come among the accepted ones.
    for row in receivers(step):
        if (tokens := step.outputs.get(row.id)) is None:
            continue
        most, sampled = step.accepted.get(row.id, 0) + 1, row.generated
        places = range(sampled, sampled + len(tokens))
        if list(tokens) != [*map(ctx.requests[row.id].output_token, places)]:
            yield f"{row.id} samples {tokens} behind {sampled} tokens"
        if not 1 <= len(tokens) <= most or (len(tokens) < most and row.id not in step.finished):
            yield f"{row.id} samples {len(tokens)} tokens, {most - 1} accepted"


@of_step("V1-SPC-5", code("uniform decode"), applies=_speculates)
@witness(lambda _, step: any(id_ in step.drafts for id_ in step.admitted))
def padding_is_rejected(ctx: Context, step: Step) -> Iterator[str]:
    """Next to decodes only, a request that is just admitted with one token to compute is padded by
    as many drafts as any has, within the model length; none is accepted, and others get none.
    """
    # A threshold may cut the padding; 0.11.2 pads none. 0.33.0 also pads what is cached but for one
    # token with no other beside it, and pads only where the sampled token has a position.
    config, before, planned = ctx.config, by_id(step.before.running), by_id(step.planned.running)
    others = [before[id_] for id_ in step.scheduled if id_ in before]
    behaviour, most = config.behaviour, config.num_speculative_tokens
    for one_id in step.admitted:
        row, scheduled = planned[one_id], step.scheduled[one_id]
        is_beside = bool(others) or (behaviour.pads_alone and row.computed > 0)
        is_uniform = is_beside and not any(other.prefilling for other in others)
        has_room = behaviour.padding_needs_length or row.tokens + most < config.max_model_len
        is_padded = behaviour.pads and is_uniform and has_room and row.tokens - row.computed == 1
        drafts, due = step.drafts.get(one_id, 0), most if is_padded else 0
        is_cut = scheduled == cut_at(ctx, step) and drafts < due
        is_beyond = row.computed + scheduled > config.max_model_len
        if is_beyond or (drafts != due and not is_cut):
            yield f"{one_id} is padded by {drafts} drafts to {row.computed + scheduled}"
    padded = step.admitted if step.results_of is None else step.results_of.padded
    if right := [one_id for one_id in padded if step.accepted.get(one_id, 0)]:
        yield f"padding of {right} is accepted"
