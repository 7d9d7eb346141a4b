"""Rules of speculative decoding: drafts are scheduled, verified, rolled back.

Source: vllm-v1, "Speculative Decoding - Rollback Logic".
"""

from collections.abc import Iterator

from spec.vllm_v1.config import Release, VllmV1Config
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.rules.registry import always, by_id, code, of_step, text, witness

_ROLLBACK = text("Speculative Decoding - Rollback Logic")


def _speculates(config: VllmV1Config) -> bool:
    return config.num_speculative_tokens > 0


def _rejects(_ctx: Context, step: Step) -> bool:
    return any(count > step.accepted.get(one, 0) for one, count in step.drafts.items())


@of_step("V1-SPC-1", _ROLLBACK, witness=lambda _, step: step.drafts, applies=_speculates)
def drafts_come_last(ctx: Context, step: Step) -> Iterator[str]:
    """Drafts are verified behind all of a request's own tokens, never more than were proposed."""
    # What is scheduled beyond its tokens is its drafts.
    before = by_id(step.before.running)
    for row in step.planned.running:
        end = row.computed + step.scheduled.get(row.id, 0)
        drafts = step.drafts.get(row.id, 0)
        most = before[row.id].drafts if row.id in before else ctx.config.num_speculative_tokens
        if drafts != max(end - row.tokens, 0) or drafts > most:
            yield f"{row.id} verifies {drafts} drafts of {most}, computes to {end} of {row.tokens}"


@of_step("V1-SPC-2", _ROLLBACK, witness=_rejects)
def rejected_are_rolled_back(_ctx: Context, step: Step) -> Iterator[str]:
    """After a step a request has computed what was scheduled less the rejected drafts."""
    # Where a load was lost V1-EXT-4 applies.
    after = by_id(step.after.running)
    for row in step.planned.running:
        if row.id not in after or row.id in step.failed_loads:
            continue
        own = step.scheduled.get(row.id, 0) - step.drafts.get(row.id, 0)
        expected = row.computed + own + step.accepted.get(row.id, 0)
        if after[row.id].computed != expected:
            yield f"{row.id} has computed {after[row.id].computed}, expected {expected}"


@always("V1-SPC-3", _ROLLBACK, witness=_rejects)
def computed_is_in_range(_ctx: Context, state: State) -> Iterator[str]:
    """What is computed is never negative and never beyond the tokens."""
    # Between two steps; within one, drafts are beyond until they are verified.
    for one in state.present:
        if not 0 <= one.computed <= one.tokens:
            yield f"{one.id} has computed {one.computed} of {one.tokens} tokens"


@of_step("V1-SPC-4", _ROLLBACK, witness=lambda _, step: any(step.accepted.values()))
def accepted_and_one_more(_ctx: Context, step: Step) -> Iterator[str]:
    """A request samples one token more than its drafts that were accepted, unless it ends."""
    # The end of sequence, or max_tokens, may come among the accepted ones.
    for one_id, tokens in step.outputs.items():
        most = step.accepted.get(one_id, 0) + 1
        if not 1 <= len(tokens) <= most or (len(tokens) < most and one_id not in step.finished):
            yield f"{one_id} samples {len(tokens)} tokens, {most - 1} accepted"


@of_step(
    "V1-SPC-5",
    code("uniform decode"),
    applies=lambda config: _speculates(config) and config.release is Release.V0_28_0,
)
@witness(lambda _, step: any(one in step.drafts for one in step.admitted))
def padding_is_rejected(ctx: Context, step: Step) -> Iterator[str]:
    """Drafts of a request that is only just admitted are padding: as many as any, none accepted."""
    # A threshold may cut the padding.
    most = ctx.config.num_speculative_tokens
    for one_id in step.admitted:
        drafts = step.drafts.get(one_id, 0)
        is_cut = step.scheduled.get(one_id) == ctx.config.long_prefill_token_threshold
        if step.accepted.get(one_id, 0) or (drafts not in (0, most) and not is_cut):
            yield f"{one_id} is padded by {drafts} drafts"
