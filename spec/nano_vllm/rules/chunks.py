"""Rules of prefills that are cut to the budget; the text knows none.

Source: the commit bb823b3 of nano-vLLM, `Scheduler.schedule`.
"""

from collections.abc import Iterator
from functools import partial

from spec.core.records import PREFILL
from spec.nano_vllm.config import NanoVllmConfig, Prefill
from spec.nano_vllm.records import Context, State, Step
from spec.nano_vllm.rules.registry import always, newest, of_step, witness


def _may_cut(config: NanoVllmConfig) -> bool:
    return config.prefill is Prefill.FIRST_CHUNKED


_always = partial(always, source=newest("schedule()"), applies=_may_cut)
_of_step = partial(of_step, source=newest("schedule()"), applies=_may_cut)


@_always("NANO-CHK-1")
@witness(lambda _, step: step.after.waiting and step.after.waiting[0].blocks)
def only_the_front_is_cut(_ctx: Context, state: State) -> Iterator[str]:
    """Of the waiting sequences only the front may hold blocks, and has then computed some of the
    tokens of its prefill, but not all.
    """
    for place, row in enumerate(state.waiting):
        if row.blocks and (place or not 0 < row.computed < row.prefill_len):
            tokens = f"{row.computed} of {row.prefill_len} tokens"
            yield f"request {row.id} waits at place {place} with blocks and {tokens}"


@_of_step("NANO-CHK-2")
@witness(lambda _, step: step.before.waiting and step.before.waiting[0].blocks)
def what_was_cut_goes_on(_ctx: Context, step: Step) -> Iterator[str]:
    """A prefill that was cut goes on in the next step, as the first of its batch."""
    begun = [row.id for row in step.before.waiting if row.blocks]
    first = [row.id for row in step.batch[:1]]
    if begun and (step.kind != PREFILL or first != begun):
        yield f"the prefill of {begun} was cut, a {step.kind} step begins with {first}"


@_of_step("NANO-CHK-3")
@witness(lambda _, step: any(row.computed < row.prefill_len for row in step.batch))
def cut_to_the_budget(ctx: Context, step: Step) -> Iterator[str]:
    """A prefill is cut only if it is alone in its step and computes as many tokens as the budget
    allows; its sequence stays in front of waiting and gets no token.
    """
    for row in step.batch:
        if row.computed >= row.prefill_len:
            continue
        computed, budget = step.scheduled.get(row.id), ctx.config.max_num_batched_tokens
        if len(step.batch) > 1 or computed != budget:
            yield f"request {row.id} computed {computed} tokens in a batch of {len(step.batch)}"
        if [other.id for other in step.after.waiting[:1]] != [row.id] or step.outputs:
            yield f"request {row.id} was cut and is not in front, or got {dict(step.outputs)}"
