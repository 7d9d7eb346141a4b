"""Rules of order: of the queues, between prompts, decodes and swapped groups, and in the batch.

Source: vllm-v0, "General Scheduling Strategy", "Optimized Prefill & Decode Scheduling" and
"Prioritizing Prefill Completion".
"""

from collections.abc import Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Step
from spec.vllm_v0.rules.counting import (
    batched,
    is_by_priority,
    is_finishing,
    is_passed_over,
    looked_at,
    rank,
    running_decodes,
    running_order,
    token_limit,
)
from spec.vllm_v0.rules.registry import (
    by_id,
    code,
    ids,
    is_documented,
    is_released,
    of_step,
    text,
    victims,
    witness,
)
from spec.vllm_v0.variants import Strategy

_DEFAULT = text("`_schedule_default` - General Scheduling Strategy")
_CHUNKED = text("`_schedule_chunked_prefill` - Optimized Prefill & Decode Scheduling")
_FINISHING = text("`_order_finishing_prefills_first` - Prioritizing Prefill Completion")


def _is_exclusive(config: VllmV0Config) -> bool:
    return not config.chunked_prefill and config.strategy is Strategy.EXCLUSIVE


def _is_combined(config: VllmV0Config) -> bool:
    return not config.chunked_prefill and config.strategy is Strategy.COMBINED


def _is_chunked(config: VllmV0Config) -> bool:
    return config.chunked_prefill


@of_step(
    "V0-ORD-1",
    _CHUNKED,
    applies=lambda config: not is_by_priority(config) and not is_documented(config),
)
@witness(lambda _, step: step.admitted and step.planned.waiting)
def first_come_first_served(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are served first come, first served: none is admitted past another that waits, but
    for those that their adapter or their length keeps back.
    """
    # Those that give way in the step wait from the next one on.
    waits = {*ids(step.planned.waiting)} - victims(step)
    for place, group in enumerate(step.before.waiting):
        later = {*ids(step.before.waiting[place:])} & {*step.admitted}
        if group.id in waits and later and not is_passed_over(ctx, step, group):
            yield f"{sorted(later)} are admitted, {group.id} waits in front of them"


@of_step("V0-ORD-2", _DEFAULT, witness=lambda _, step: step.admitted, applies=_is_exclusive)
def prompts_alone_or_decodes(_ctx: Context, step: Step) -> Iterator[str]:
    """Prompts come first: only if none was scheduled, decodes and swapped groups are."""
    # So a step has either.
    others = step.scheduled.keys() - {*step.admitted}
    if step.admitted and others:
        yield f"admitted {list(step.admitted)} beside {sorted(others)}"


@of_step("V0-ORD-3", _DEFAULT, applies=_is_exclusive)
@witness(lambda _, step: step.before.swapped and step.before.waiting)
def swapped_before_prompts(ctx: Context, step: Step) -> Iterator[str]:
    """While a group is swapped out no prompt is admitted, unless by priority it is more urgent."""
    # Swapped groups go first.
    rows = by_id(step.planned.running)
    for request_id in step.admitted:
        for swapped in step.before.swapped:
            is_urgent = is_by_priority(ctx.config) and rank(ctx, rows[request_id]) < rank(
                ctx, swapped
            )
            if not is_urgent:
                yield f"{request_id} is admitted, {swapped.id} is swapped out"


@of_step("V0-ORD-4", _CHUNKED, applies=_is_chunked)
@witness(lambda _, step: running_decodes(step) and step.prefills)
def decodes_go_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Decoding requests are scheduled first: no prompt is given a token while one of them goes
    without.
    """
    # Those that gave way aside.
    without = [group.id for group in running_decodes(step) if group.id not in step.scheduled]
    without = [id_ for id_ in without if id_ not in victims(step)]
    if without and step.prefills:
        yield f"{without} are given nothing, prompts {list(step.prefills)} are"


def _prompts(step: Step) -> list[Group]:
    return [group for group in step.planned.running if group.id in step.prefills]


def _some_finish(_ctx: Context, step: Step) -> bool:
    return len({is_finishing(step, group) for group in _prompts(step)}) == 2


@of_step("V0-ORD-5", _FINISHING, witness=_some_finish, applies=_is_chunked)
def finishing_prompts_stand_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Of the prompts under way those that end in this step stand in the running queue before the
    others, both in the order that they had: of B, A, C, where A and C end, come A, C, B.
    """
    # Under way: they ran before the step.
    place = {id_: index for index, id_ in enumerate(ids(step.before.running))}
    prompts = [group for group in _prompts(step) if group.id in place]
    keys = [(not is_finishing(step, group), place[group.id]) for group in prompts]
    if keys != sorted(keys):
        finishing = [group.id for group in prompts if is_finishing(step, group)]
        yield f"prompts {ids(prompts)}, finishing {finishing}"


@of_step("V0-ORD-6", _CHUNKED, witness=_some_finish, applies=_is_chunked)
def all_finishing_prompts_stand_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Prompts that are about to decode stand before all others, whether new or under way."""
    # In the running queue that the step leaves.
    goes_on = [not is_finishing(step, group) for group in _prompts(step)]
    if goes_on != sorted(goes_on):
        yield f"prompts {ids(_prompts(step))}, not finishing: {goes_on}"


@of_step("V0-ORD-7", code("order of the batch"))
@witness(lambda _, step: step.prefills and len(step.prefills) < len(step.scheduled))
def prompts_lead_the_batch(ctx: Context, step: Step) -> Iterator[str]:
    """In the batch requests that compute a prompt stand before those that decode, of the prompts
    the new ones first, of both those that ran before those that come back, in the order of their
    queues.
    """
    # So that the number of prompts says which they are; adapters see V0-ORD-10.
    if list(step.scheduled)[: len(step.prefills)] != list(step.prefills):
        yield f"batch {list(step.scheduled)}, prompts {list(step.prefills)}"
    came = (step.admitted, running_order(ctx, step), step.swapped_in)
    order = [id_ for ids_ in came for id_ in ids_ if id_ in step.scheduled]
    due = sorted(order, key=lambda id_: id_ not in step.prefills)
    has_adapters = any(ctx.requests[id_].lora for id_ in due) and ctx.config.max_loras > 0
    if list(step.scheduled) != due and not has_adapters:
        yield f"batch {list(step.scheduled)}, expected {due}"


@of_step(
    "V0-ORD-10",
    text("Ensures LoRA requests are correctly batched"),
    applies=lambda config: config.max_loras > 0,
)
@witness(lambda ctx, step: len({ctx.requests[id_].lora for id_ in step.scheduled}) > 1)
def adapters_stand_together(ctx: Context, step: Step) -> Iterator[str]:
    """Where any request of the batch is for an adapter, prompts are in the order of their adapters,
    and so are decodes; those of one adapter in the order of their names.
    """
    # So that those of one adapter stand together.
    # Within an adapter by name.
    adapters = [(id_ not in step.prefills, ctx.requests[id_].lora, id_) for id_ in step.scheduled]
    if any(adapter for _, adapter, _ in adapters) and adapters != sorted(adapters):
        yield f"batch {list(step.scheduled)}, decodes and adapters {adapters}"


@of_step("V0-ORD-8", text("`_schedule_swapped`, moved to a temporary list for later retry"))
@witness(lambda _, step: len(step.planned.waiting) > 1 and step.admitted)
def what_is_not_admitted_keeps_its_place(ctx: Context, step: Step) -> Iterator[str]:
    """Waiting requests that are not admitted keep their places, those passed over included."""
    # Where the queue is sorted by priority they are where that puts them.
    gone = {*step.admitted, *step.ignored}
    kept = [group for group in step.before.waiting if group.id not in gone]
    sorts = is_by_priority(ctx.config) and not ctx.config.chunked_prefill
    sorts &= not step.admitted or not is_released(ctx.config)
    if sorts and not step.after.failure:
        kept.sort(key=lambda group: rank(ctx, group))
    now = [group.id for group in step.planned.waiting if group.id not in victims(step)]
    if now != ids(kept):
        yield f"waiting {now}, expected {ids(kept)}"


@of_step("V0-ORD-9", text("`_schedule_default`, Example Scenario"), applies=_is_combined)
@witness(lambda _, step: step.admitted and running_decodes(step) and step.swapped_in)
def prompts_then_decodes_then_swapped(ctx: Context, step: Step) -> Iterator[str]:
    """Prompts are scheduled first, decodes if these leave space, and swapped groups are restored if
    enough is left then.
    """
    # So a swapped group comes back only where all decodes go on, and these wait for budget only.
    without = [group for group in running_decodes(step) if group.id not in step.scheduled]
    without = [group for group in without if group.id not in victims(step)]
    if without and step.swapped_in:
        yield f"{ids(without)} are given nothing, {list(step.swapped_in)} come back"
    left = token_limit(ctx.config) - sum(batched(step).values())
    if without and len(without[0].unfinished) <= left and not step.after.failure:
        yield f"{without[0].id} is given nothing of {left} tokens"


@of_step("V0-ORD-11", code("order of the running queue"))
@witness(lambda _, step: step.admitted and len(step.before.running) > 1)
def running_keeps_its_order(ctx: Context, step: Step) -> Iterator[str]:
    """Those that are admitted, in the order of looking at them, and then those that come back join
    the end of the running queue, whose others keep their order; where prompts are chunked decodes
    stand before prompts.
    """
    # Prompts that are about to decode stand first, see V0-ORD-5 and V0-ORD-6. No queue changes its
    # order when tokens are computed.
    if step.after.failure:
        return
    admitted = [group.id for group in looked_at(ctx, step) if group.id in step.admitted]
    if [*step.admitted] != admitted:
        yield f"admitted {list(step.admitted)}, looked at as {admitted}"
    due = [*running_order(ctx, step), *admitted, *step.swapped_in]
    if ctx.config.chunked_prefill:
        due = _chunked_queue(ctx, step, due)
    if ids(step.planned.running) != due:
        yield f"running {ids(step.planned.running)}, expected {due}"
    for name in ("waiting", "running", "swapped"):
        stayed = [id_ for id_ in ids(getattr(step.planned, name)) if id_ not in step.finished]
        if ids(getattr(step.after, name)) != stayed:
            yield f"{name} {ids(getattr(step.after, name))} after the step, decided {stayed}"


def _chunked_queue(ctx: Context, step: Step, queue: list[str]) -> list[str]:
    """The running queue where prompts are chunked: what gets nothing, decodes, prompts.

    Of these the swapped ones that come back first; in the release before all decodes, too, and
    what gets nothing is in front of all, prompts, too.
    """
    rows = by_id(step.planned.running)
    finishes = {group.id for group in _prompts(step) if is_finishing(step, group)}

    def place(request_id: str) -> tuple[int, ...]:
        is_prompt = rows[request_id].is_prefill if request_id in rows else False
        is_back, is_new = request_id in step.swapped_in, request_id in step.admitted
        if is_released(ctx.config):
            if request_id not in step.scheduled:
                return (0,)
            if is_back:
                return (1, is_prompt)
            return (3 + is_new, not is_new and request_id not in finishes) if is_prompt else (2,)
        if not is_prompt:
            return (0,) if request_id not in step.scheduled else (1, not is_back)
        begun = 0 if request_id not in step.scheduled else 1 if is_back else 2 + is_new
        return (2, request_id not in finishes, begun)

    return sorted(queue, key=place)
