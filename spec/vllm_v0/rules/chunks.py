"""Rules of prompts in chunks: how much of a prompt a step computes, and when it samples.

Source: vllm-v0, "Chunking New Tokens Based on Budget (`_chunk_new_tokens_to_schedule`)" and
"Managing Prefill Sequences & Sampling"; partial prefills are the release's.
"""

from collections.abc import Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Step
from spec.vllm_v0.rules.counting import (
    batched,
    is_finishing,
    is_long,
    long_prompts,
    token_limit,
    uncached,
)
from spec.vllm_v0.rules.registry import by_id, code, is_documented, of_step, text, witness

_CHUNKING = text("Chunking New Tokens Based on Budget (`_chunk_new_tokens_to_schedule`)")
_SAMPLING = text("Managing Prefill Sequences & Sampling")


def cuts(config: VllmV0Config) -> bool:
    """True where prompts are cut: several steps for one decision compute them whole."""
    return config.chunked_prefill and config.num_scheduler_steps == 1


def shares(config: VllmV0Config) -> bool:
    """True where several unfinished prompts share a step."""
    return config.max_num_partial_prefills > 1


def _prompts(step: Step) -> list[Group]:
    return [group for group in step.planned.running if group.id in step.prefills]


def _unfinished(step: Step) -> list[Group]:
    return [group for group in _prompts(step) if not is_finishing(step, group)]


def _is_cut(_ctx: Context, step: Step) -> bool:
    return bool(_unfinished(step))


@of_step("V0-CHK-1", text("Chunking Prefills"))
@witness(
    lambda _, step: any(group.computed and is_finishing(step, group) for group in _prompts(step))
)
def chunks_follow_each_other(ctx: Context, step: Step) -> Iterator[str]:
    """A prompt is computed from its first token to its last, in parts where prompts are chunked,
    else at once.
    """
    # After the step what was scheduled is computed, and what is sampled beyond one token.
    after = by_id(step.after.running)
    for group in _prompts(step):
        end = group.computed + step.scheduled[group.id]
        if not group.computed < end <= group.tokens or (
            end < group.tokens and not cuts(ctx.config)
        ):
            yield f"{group.id} computes {group.computed} to {end} of {group.tokens} tokens"
        if group.id in after:
            beyond = max(after[group.id].generated - group.generated - 1, 0)
            if after[group.id].computed != end + beyond:
                yield f"{group.id} has computed {after[group.id].computed}, scheduled to {end}"


@of_step("V0-CHK-2", _CHUNKING, applies=lambda config: cuts(config) and config.prefix_caching)
@witness(_is_cut)
def chunks_are_whole_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """With prefix caching a chunk that does not end its prompt ends with a block."""
    # So no partial block is ever matched.
    for group in _unfinished(step):
        end = group.computed + step.scheduled[group.id]
        if end % ctx.config.block_size:
            yield f"{group.id} computes {group.computed} to {end} of {group.tokens} tokens"


@of_step("V0-CHK-3", _CHUNKING, witness=_is_cut, applies=cuts)
def chunks_are_as_large_as_fits(ctx: Context, step: Step) -> Iterator[str]:
    """A prompt is cut only to what the budget leaves, or to its share where several are under way:
    as many whole blocks as fit with prefix caching, as many tokens without.
    """
    # A token, or a block, more would not have fit.
    config = ctx.config
    left = token_limit(config) - sum(batched(step).values())
    more = config.block_size if config.prefix_caching else 1
    for group in _unfinished(step):
        given, share = (
            uncached(step, group),
            token_limit(config) // config.max_num_partial_prefills,
        )
        if left >= more and (given + more <= share or not shares(config)):
            yield f"{group.id} is given {given} tokens, {left} are left"


@of_step("V0-CHK-4", code("partial prefills"), applies=cuts)
@witness(lambda ctx, step: len(_under_way(step)) == ctx.config.max_num_partial_prefills)
def partial_prefills_are_limited(ctx: Context, step: Step) -> Iterator[str]:
    """No prompt begins and stays unfinished while as many are under way as may be."""
    # What is swapped in was under way before.
    under_way = _under_way(step)
    if len(under_way) > ctx.config.max_num_partial_prefills and {*under_way} & {*step.admitted}:
        yield f"{under_way} are under way"


def _under_way(step: Step) -> list[str]:
    """Prompts that the step leaves unfinished."""
    return [
        group.id
        for group in step.planned.running
        if group.is_prefill and (group.id not in step.scheduled or not is_finishing(step, group))
    ]


@of_step("V0-CHK-5", code("partial prefills"), applies=shares)
@witness(
    lambda ctx, step: any(is_long(ctx.config, group.prompt_len) for group in step.planned.waiting)
)
def long_prompts_are_limited(ctx: Context, step: Step) -> Iterator[str]:
    """A long prompt begins only while fewer long ones are under way than may be."""
    # Long is what is left of it when the step begins.
    begun = long_prompts(ctx, step)
    if len(begun) > ctx.config.max_long_partial_prefills and {*begun} & {*step.admitted}:
        yield f"long prompts {begun} are under way"


@of_step("V0-CHK-6", _SAMPLING)
@witness(lambda _, step: len(step.sampling) not in (0, len(step.scheduled)))
def only_complete_prompts_sample(_ctx: Context, step: Step) -> Iterator[str]:
    """Sampling is disabled while a prompt is still being computed, and enabled with its last token
    and while decoding.
    """
    # What samples is what gets tokens.
    rows = by_id(step.planned.running)
    expected = {id_ for id_ in step.scheduled if is_finishing(step, rows[id_])}
    if {*step.sampling} != expected or step.outputs.keys() != {*step.sampling}:
        yield f"sampling {list(step.sampling)}, complete {sorted(expected)}"


@of_step("V0-CHK-7", _SAMPLING, applies=lambda config: cuts(config) and is_documented(config))
@witness(_is_cut)
def first_chunks_sample(_ctx: Context, step: Step) -> Iterator[str]:
    """Sampling is enabled in the first prefill of a request."""
    # Nothing of it is computed before the step.
    for group in _prompts(step):
        if group.computed == 0 and group.id not in step.sampling:
            count = step.scheduled[group.id]
            yield f"{group.id} computes its first {count} tokens and does not sample"


@of_step(
    "V0-CHK-8", code("partial prefills"), applies=lambda config: cuts(config) and shares(config)
)
@witness(lambda _, step: len(step.prefills) > 1)
def prompts_share_the_budget(ctx: Context, step: Step) -> Iterator[str]:
    """Prompts that are under way at once share the budget evenly: none is given more than its part,
    or a block, or a token without prefix caching, where that is less.
    """
    # Those under way before the step and those that it begins, but no more than may be under way.
    config, old = ctx.config, [group for group in step.before.running if group.is_prefill]
    count = min(len(old) + len(step.admitted), config.max_num_partial_prefills)
    part = token_limit(config) // max(count, 1)
    for group in _prompts(step):
        given, least = uncached(step, group), config.block_size if config.prefix_caching else 1
        if given > max(part, least) and group.id not in step.swapped_in:
            yield f"{group.id} is given {given} tokens, {count} prompts share {token_limit(config)}"


@of_step("V0-CHK-9", _CHUNKING)
@witness(lambda _, step: any(group.is_prefill for group in step.after.running))
def prompts_end_with_their_last_token(_ctx: Context, step: Step) -> Iterator[str]:
    """A request computes a prompt from its arrival, or from when it has to start over, until a step
    computes the last of its tokens; then it decodes.
    """
    # What is swapped out goes on where it was.
    before, planned = by_id(step.before.present), by_id(step.planned.present)
    for group in planned.values():
        due = group.id in step.preempted or before.get(group.id, group).is_prefill
        if group.is_prefill != due:
            yield f"{group.id} computes a prompt: {group.is_prefill}, expected {due}"
    for group in step.after.present:
        was = planned.get(group.id, group)
        ends = group.id in step.scheduled and is_finishing(step, was)
        if group.is_prefill != (was.is_prefill and not ends):
            prompt = f"computes a prompt after the step: {group.is_prefill}"
            yield f"{group.id} {prompt}, its end: {ends}"
