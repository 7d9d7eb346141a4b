"""The moves of vLLM V1's reference that its proofs speak of, compared with its edges.

The sentence of each comparison says what the reference does; the comparison yields differences.
`situations` computes what each decision of a step must be. The tokens for which a block is cached
are not compared, since the scope excludes them; in the random runs the rules judge them.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from random import Random
from typing import Any

from attrs import evolve

from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.proofs import registry
from checks.proofs.links import MOST_ROWS, Edge, Link
from checks.proofs.registry import Of
from checks.proofs.vllm_v1.scope import SCOPE
from checks.proofs.vllm_v1.situations import (
    OF_QUEUES,
    Situation,
    UnknownMoveError,
    all_tokens,
    asked,
    block_holders,
    cached_prefix,
    in_order,
    may_be_passed_over,
    rank,
    situations,
    stays_in_front,
    step_budget,
    table_blocks,
)
from spec.core.records import Event
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.records import Load, Sequence, Step
from spec.vllm_v1.releases import Release

# --- random large runs ----------------------------------------------------------------------------


def large_case(random: Random) -> Case:
    """A case with many rows and real lengths, in which budget, slots or blocks are scarce."""
    rows, is_crowd = random.choice((8, 24, 32, MOST_ROWS)), random.random() < 0.6
    budgets = (256, 300, 512, 1_024) if is_crowd else (256, 1_024, 2_048, None)
    thresholds = (0, 48, 100) if is_crowd else (0, 0, 256)
    drafts = random.choice((0, 0, 1, 3))
    config = VllmV1Config(
        block_size=16,
        max_model_len=random.choice((257, 512) if is_crowd else (1_024, 2_150)),
        max_num_seqs=rows,
        max_num_batched_tokens=random.choice(budgets),
        chunked_prefill=random.random() < 0.85,
        long_prefill_token_threshold=random.choice(thresholds),
        scheduling=random.choice(tuple(Scheduling)),
        prefix_caching=random.random() < 0.6,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=random.choice((0, drafts, 5)),
        connector=random.choice((*[Connector.NONE] * 6, Connector.SYNC, Connector.ASYNC)),
        reserve_full_prompt=random.random() < 0.6,
        release=random.choice((Release.V0_33_0, Release.V0_28_0, Release.V0_11_2)),
    )
    names = map(str, range(rows + random.randint(2, 6)))
    requests = tuple(_large_request(random, name, config, is_crowd) for name in names)
    if not config.chunked_prefill and not config.long_prefill_token_threshold:
        longest = max(request.most_tokens for request in requests)
        config = evolve(config, max_num_batched_tokens=max(300, longest))
    drafted = {request.id: random.choice(("0", "1", "10", "11-")) for request in requests}
    surroundings = {"right_drafts": drafted} if drafts else {}
    return _with_scarce_blocks(random, Case(config, requests, surroundings))


def _large_request(random: Random, name: str, config: VllmV1Config, is_crowd: bool) -> Request:
    """Prompts of up to 2,000 tokens, some with a common beginning, and answers of up to 150.

    In a crowd prompts are short, and nearly all requests come at once.
    """
    size, most = config.block_size, random.choice((5, 20, 40, 60, 90))
    longest = min(2_000, config.max_model_len - most)
    if is_crowd:
        longest = min(longest, 120)
    elif random.random() < 0.2:
        most, longest = 150, longest - 150
    few, many = random.randint(1, 100), random.randint(1, longest)
    length = longest if random.random() < 0.05 else random.choice((few, many, 4 * size + 1))
    common = min(length, size * random.choice((0, 2, 4, 9)))
    parts = [("common", common), (f"own {name}", length - common)]
    arrival = random.choice((0, 0, 0, random.randint(0, 9 if is_crowd else 30)))
    has_external = config.connector is not Connector.NONE and random.random() < 0.5
    external = random.randint(1, length) if has_external else 0
    return Request(
        id=name,
        prompt=Prompt.of_parts([part for part in parts if part[1]]),
        max_tokens=most,
        arrival=arrival,
        output_len=random.choice((None, None, random.randint(1, most))),
        abort_at=random.choice((*[None] * 7, arrival + random.randint(1, 40))),
        priority=random.choice((0, 0, 1, 2)),
        external=external,
        external_if_lost=random.randint(0, external),
    )


def _with_scarce_blocks(random: Random, case: Case) -> Case:
    """The case with as many blocks as its requests hold at most, one less, or far fewer."""
    config, requests = case.config, case.requests
    more = config.num_speculative_tokens + config.num_lookahead_tokens
    alone = max(table_blocks(request.most_tokens + more, config) for request in requests)
    ample = evolve(case, config=evolve(config, num_blocks=alone * len(requests)))
    steps = served(ample)
    most = max(len(step.planned.pool.references) for step in steps)
    some = random.choice((most, most - 1, most - 1, most * 3 // 4, most // 2))
    return evolve(case, config=evolve(config, num_blocks=max(some, alone)))


def rare_case(random: Random) -> Case:
    """A case in which the worst by priority runs first, is given tokens with drafts among them, and
    is preempted in the same step by a better one behind it.
    """
    config = VllmV1Config(
        block_size=random.choice((2, 4)),
        max_model_len=40,
        max_num_seqs=6,
        max_num_batched_tokens=random.choice((12, 24)),
        scheduling=Scheduling.PRIORITY,
        prefix_caching=random.random() < 0.5,
        num_speculative_tokens=random.randint(1, 3),
        release=random.choice(tuple(Release)),
    )
    requests = tuple(
        Request(
            id=str(number),
            prompt=Prompt.of_parts([(f"own {number}", random.randint(1, 12))]),
            max_tokens=random.randint(8, 24),
            arrival=number,
            priority=9 - number,
        )
        for number in range(9)
    )
    drafted = {request.id: random.choice(("1", "10", "110")) for request in requests}
    return _with_scarce_blocks(random, Case(config, requests, {"right_drafts": drafted}))


_BESIDE = (
    *("sessions", "sessions, blocks", "sessions, too long", "sessions, preempted"),
    *("encoder", "encoder, budget"),
    *("encoder, evicted", "encoder, repeated", "encoder, priority", "encoder, whole"),
    *("encoder, whole and capped", "encoder, read ahead", "encoder, read ahead, whole"),
    "encoder, read ahead, side by side",
)

LINK = Link(
    "vllm-v1",
    SCOPE,
    large_case,
    covers=lambda config: config.steps_in_flight == 0 and config.kv_groups is None,
    beside=frozenset(f"{name}{release}" for name in _BESIDE for release in ("", ", 0.33.0")),
    rare_cases=rare_case,
)


def of_step(name: str) -> Callable[[Any], Any]:
    """Register a comparison for edges that are steps."""

    def register(compare: Callable[[Edge], Iterator[str]]) -> Callable[[Edge], Iterator[str]]:
        @wraps(compare)
        def compared(edge: Edge) -> Iterator[str]:
            if edge.step is not None:
                try:
                    yield from compare(edge)
                except UnknownMoveError as error:
                    yield str(error)

        return LINK.move(name)(compared)

    return register


# --- the budget -----------------------------------------------------------------------------------


@of_step("the budget")
def budgets(edge: Edge) -> Iterator[str]:
    """A step hands its budget out: to each running request in queue order what it is behind, drafts
    included, cut to the threshold, to what is left and to the model length; to each admitted one
    its share; what a victim was given comes back. None that could be given a token is left out.
    """
    step, budget = edge.step, step_budget(edge.ctx.config)
    for now in situations(edge):
        event, left = now.event, now.left
        match event.transition:
            case "catch_up":
                row, share = now.turn or (None, 0)
                if row is not now.row:
                    yield f"{event.id} is given tokens at the turn of {row.id if row else 'none'}"
                elif (event.before, event.after) != (row.computed, share):
                    found = f"{event.after} at {event.before}"
                    yield f"{event.id} is given {found}, by the moves {share} at {row.computed}"
            case "admit":
                share = asked(now, now.row, now.hits).new
                if event.after != share:
                    yield f"{event.id} is admitted with {event.after} tokens, by the moves {share}"
            case "turns over":
                if now.turn is not None:
                    row, share = now.turn
                    yield f"{row.id} is given nothing, {share} tokens by the moves"
            case "walk over":
                if (step.budget_left, sum(now.given.values()) + left) != (left, budget) or left < 0:
                    yield f"{step.budget_left} of {budget} left, {left} by the moves"
                if [*step.scheduled.items()] != [*now.given.items()]:
                    yield f"scheduled {dict(step.scheduled)}, by the moves {now.given}"
                if dict(step.drafts) != now.drafts:
                    yield f"drafts {dict(step.drafts)}, by the moves {now.drafts}"


# --- blocks ---------------------------------------------------------------------------------------


@of_step("blocks of a turn")
def turns_take_blocks(edge: Edge) -> Iterator[str]:
    """A turn takes exactly the blocks that lack for its tokens and lookahead, never more than are
    free. A request is preempted only where they lack, and it is the last that runs, or the worst by
    priority and arrival.
    """
    config = edge.ctx.config
    for now in situations(edge):
        event = now.event
        match event.transition:
            case "catch_up":
                end = event.before + event.after + config.num_lookahead_tokens
                needed = max(table_blocks(end, config) - len(now.row.blocks), 0)
                yield from _wrong_blocks(now, needed)
            case "preempt":
                yield from _wrong_victim(now)
            case "admit" | "load":
                yield from _wrong_blocks(now, asked(now, now.row, now.hits).needed)


def _wrong_blocks(now: Situation, needed: int) -> Iterator[str]:
    taken, free, name = now.allocated, now.free, now.event.id
    revived = sum(block not in now.holders for block in now.hits)
    if len(taken) != needed:
        yield f"{name} takes {len(taken)} blocks, {needed} lack"
    if len(taken) + revived > free:
        yield f"{name} takes {len(taken)} blocks and revives {revived} of {free}"
    if len({*taken}) != len(taken) or not now.holders.keys().isdisjoint(taken):
        yield f"{name} takes blocks {taken}, not all of them free"


def _wrong_victim(now: Situation) -> Iterator[str]:
    config, ctx, name = now.ctx.config, now.ctx, now.event.id
    if now.turn is None:
        yield f"{name} is preempted, it is the turn of none"
        return
    row, share = now.turn
    end = row.computed + share + config.num_lookahead_tokens
    needed = max(table_blocks(end, config) - len(row.blocks), 0)
    if needed <= now.free:
        yield f"{name} is preempted, {now.free} blocks are free, {row.id} needs {needed}"
    victim = [*now.running.values()][-1]
    if config.scheduling is Scheduling.PRIORITY:
        victim = max(now.running.values(), key=lambda row: rank(ctx, row))
    if name != victim.id:
        yield f"{name} is preempted, by the moves {victim.id}"


@LINK.move("the pool")
def pools(edge: Edge) -> Iterator[str]:
    """A block is free or held by requests that run, load or have loaded; what waits holds none;
    what runs holds the blocks of its computed tokens; there are as many as configured.
    """
    state, config = edge.after, edge.ctx.config
    size, most = config.block_size, config.num_blocks
    if most is None:
        most = config.max_num_seqs * -(-config.max_model_len // size)
    if state.pool.size != most:
        yield f"{state.pool.size} blocks, {most} are configured"
    held = block_holders(state)
    if dict(state.pool.references) != held:
        wrong = sorted(
            block
            for block in {*held, *state.pool.references}
            if held[block] != state.pool.references.get(block, 0)
        )
        yield f"blocks {wrong} have more or fewer holders than the pool says"
    free = {*state.pool.free}
    if len(free) != len(state.pool.free) or len(free) != state.pool.size - len(held):
        yield f"{len(state.pool.free)} blocks free of {state.pool.size}, {len(held)} held"
    if not free.isdisjoint(held):
        yield f"blocks {sorted(free & held.keys())} are free and held"
    for row in state.waiting:
        if row.load is Load.NONE and row.blocks and not _was_promoted(edge, row):
            yield f"{row.id} waits with {len(row.blocks)} blocks"
    for row in state.running:
        if len(row.blocks) * size < row.computed:
            yield f"{row.id} has {len(row.blocks)} blocks for {row.computed} tokens"


def _was_promoted(edge: Edge, row: Sequence) -> bool:
    """True if 0.11.2 stepped over it with what it has loaded."""
    return edge.ctx.config.release is Release.V0_11_2 and row.computed > 0


# --- admissions -----------------------------------------------------------------------------------


@of_step("who is admitted")
def admissions(edge: Edge) -> Iterator[str]:
    """Requests come from the heads of the queues as long as none is refused, each with its whole
    cached blocks, one token short of all; the first that is refused is so by the rule that is true
    of it, and none is admitted after a preemption, without budget or into a full queue.
    """
    step = edge.step
    for now in situations(edge):
        event = now.event
        if event.transition in OF_QUEUES:
            closed = now.queue_is_closed
            if closed is not None:
                yield f"{event.id} is looked at in spite of {closed}"
            for row in now.just_passed:
                if not may_be_passed_over(now, row):
                    yield f"{row.id} is passed over, {event.id} comes first"
        match event.transition:
            case "promote":
                if now.row.load not in (Load.LOADED, Load.FAILED):
                    yield f"{event.id} has loaded nothing"
            case "admit" | "load":
                yield from _wrong_admission(now)
            case "walk over":
                expected = now.queue_is_closed
                if expected is None and now.head is not None:
                    expected = asked(now, now.head, cached_prefix(now, now.head)).refusal
                    if expected is None:
                        yield f"{now.head.id} is not admitted, no rule refuses it"
                if step.refusal != expected:
                    yield f"refused by {step.refusal}, by the moves {expected}"
                if [*step.admitted] != now.admitted or [*step.preempted] != now.preempted:
                    yield f"admitted {step.admitted}, preempted {step.preempted} on record"
                if not step.external.keys() <= {*now.admitted}:
                    yield f"{dict(step.external)} brought, {now.admitted} are admitted"


def _wrong_admission(now: Situation) -> Iterator[str]:
    event, row = now.event, now.row
    size, external = now.ctx.config.block_size, now.step.external.get(row.id, 0)
    told = asked(now, row, now.hits)
    if told.refusal is not None:
        yield f"{row.id} is admitted, {told.refusal} refuses it"
    if told.is_load != (event.transition == "load"):
        yield f"{row.id}: {event.transition}, though {told.external} tokens are elsewhere"
    computed = event.after if told.is_load else event.before
    if computed != told.computed:
        yield f"{row.id} comes with {computed} tokens, by the moves {told.computed}"
    if (event.before if told.is_load else external) != told.external:
        yield f"{row.id} is brought {external} tokens, by the moves {told.external}"
    if now.hits and (row.computed or len(now.hits) * size >= all_tokens(row)):
        yield f"{row.id} hits {len(now.hits)} blocks of {all_tokens(row)} tokens"
    keys = now.ctx.keys.of(row.id, len(now.hits))
    found = [now.step.planned.pool.keys.get(block) for block in now.hits]
    if (now.hits and not now.ctx.config.prefix_caching) or found != [*keys]:
        yield f"{row.id} hits blocks {now.hits} of other tokens"


# --- progress -------------------------------------------------------------------------------------


@of_step("the plan")
def plans(edge: Edge) -> Iterator[str]:
    """When all is decided each request stands where the decisions put it, with the blocks, drafts
    and computed tokens that they leave it: admitted ones last, preempted ones first in the queue,
    each queue in its order.
    """
    planned = edge.step.planned
    *_, now = situations(edge)
    in_front = [row for row in now.passed_over if stays_in_front(now, row)]
    others = [row for row in now.passed_over if not stays_in_front(now, row)]
    yield from _unlike("running", planned.running, now.running.values())
    yield from _unlike("skipped", planned.skipped, in_order(edge.ctx, [*in_front, *now.skipped]))
    yield from _unlike("waiting", planned.waiting, in_order(edge.ctx, [*others, *now.waiting]))


def _unlike(name: str, rows: Iterable[Sequence], expected: Iterable[Sequence]) -> Iterator[str]:
    found, wanted = [*rows], [*expected]
    if [row.id for row in found] != [row.id for row in wanted]:
        yield f"{name} {[row.id for row in found]}, by the moves {[row.id for row in wanted]}"
        return
    for row, other in zip(found, wanted, strict=True):
        if row != other:
            yield f"{name} {row}, by the moves {other}"


@of_step("progress")
def progress(edge: Edge) -> Iterator[str]:
    """A running request has computed what it was given, less its rejected drafts; where it has
    caught up it gains its accepted drafts and one token, and leaves with its last one; elsewhere it
    is in its prefill and gains none.
    """
    step = edge.step
    undone = {event.id: event for event in step.happened("undo")}
    if undone and not step.happened("lose_load"):
        yield f"{sorted(undone)} compute again, no load was lost"
    running = []
    for row in step.planned.running:
        if row.id in step.leavers:
            continue
        if row.id in undone:
            yield from _wrong_undo(step, row, undone[row.id])
            running.append(evolve(row, computed=undone[row.id].after, prefilling=True))
            continue
        most = edge.ctx.config.num_speculative_tokens
        expected = _after(step, row, step.proposed.get(row.id, most))
        yield from _wrong_sampling(edge, row, expected)
        if row.id not in step.finished:
            running.append(expected)
    yield from _unlike("running", step.after.running, running)
    for name in ("skipped", "waiting"):
        queue = getattr(step.planned, name)
        stay = [row for row in queue if row.id not in step.leavers]
        yield from _unlike(name, getattr(step.after, name), stay)


def _after(step: Step, row: Sequence, drafts: int) -> Sequence:
    """The request with this step's tokens computed, and sampled where it has caught up."""
    new = step.scheduled.get(row.id)
    if new is None:
        return row
    end, tokens = row.computed + new, all_tokens(row)
    if end < tokens:
        return evolve(row, computed=end, prefilling=True)
    rejected = end - tokens - step.accepted.get(row.id, 0)
    return evolve(
        row,
        computed=end - rejected,
        generated=row.generated + len(step.outputs.get(row.id, ())),
        drafts=drafts,
        prefilling=False,
    )


def _wrong_sampling(edge: Edge, row: Sequence, after: Sequence) -> Iterator[str]:
    step, request = edge.step, edge.ctx.requests[row.id]
    new, sampled = step.scheduled.get(row.id), len(step.outputs.get(row.id, ()))
    accepted, is_over = step.accepted.get(row.id, 0), row.id in step.finished
    if new is None or row.computed + new < all_tokens(row):
        if sampled or accepted or is_over:
            yield f"{row.id} has not caught up and samples {sampled} tokens"
        return
    drafts = row.computed + new - all_tokens(row)
    if not 0 <= accepted <= (0 if row.id in step.admitted else drafts):
        yield f"{row.id} has {accepted} of {drafts} drafts accepted"
    if sampled > accepted + 1 or (sampled <= accepted and not is_over) or sampled < 1:
        yield f"{row.id} samples {sampled} tokens, {accepted} drafts are accepted"
    must_leave = after.generated >= request.end or row.id in step.ended
    if is_over != must_leave or after.generated > request.max_tokens:
        yield f"{row.id} has {after.generated} of {request.end} tokens, finished: {is_over}"


def _wrong_undo(step: Step, row: Sequence, event: Event) -> Iterator[str]:
    end = row.computed + step.scheduled.get(row.id, 0)
    if event.before != end or not 0 <= event.after <= row.computed:
        yield f"{row.id} goes back from {event.before} to {event.after}, it has {row.computed}"
    if row.id in step.outputs or row.id in step.finished:
        yield f"{row.id} computes again and samples"


# --- between two steps ----------------------------------------------------------------------------


@LINK.move("between steps")
def between_steps(edge: Edge) -> Iterator[str]:
    """Between two steps a request arrives last in its queue, or at its place by priority, leaves,
    or has loaded; all others stay as they are.
    """
    # One with a grammar arrives among those passed over, up to 0.28.0.
    if edge.step is not None:
        return
    ctx, before, after = edge.ctx, edge.before, edge.after
    others = [row for row in before.waiting if row.id not in edge.left]
    for row in after.waiting:
        if row.id in edge.arrived:
            yield from _wrong_arrival(edge, row)
            others.append(row)
    yield from _unlike("waiting", after.waiting, in_order(ctx, others))
    stay = [row for row in before.running if row.id not in edge.left]
    yield from _unlike("running", after.running, stay)
    loads = [row for row in before.skipped if row.id not in edge.left]
    for row in after.skipped:
        if row.id in edge.arrived:
            yield from _wrong_arrival(edge, row)
            loads.append(row)
    loads = in_order(ctx, loads)
    if [row.id for row in after.skipped] != [row.id for row in loads]:
        yield f"skipped {[row.id for row in after.skipped]}"
        return
    for row, found in zip(loads, after.skipped, strict=True):
        if found != row:
            yield from _wrong_load(edge, row, found)


def _wrong_arrival(edge: Edge, row: Sequence) -> Iterator[str]:
    by_priority = edge.ctx.config.scheduling is Scheduling.PRIORITY
    expected = Sequence(row.id, edge.ctx.requests[row.id].prompt_len, row.arrival)
    earlier = max((other.arrival for other in edge.before.present), default=-1)
    if row != expected or (row.arrival <= earlier if by_priority else row.arrival):
        yield f"{row} arrives behind {earlier}"


def _wrong_load(edge: Edge, row: Sequence, found: Sequence) -> Iterator[str]:
    size = edge.ctx.config.block_size
    if row.load is not Load.LOADING or found.load not in (Load.LOADED, Load.FAILED):
        yield f"{row} becomes {found}"
    computed = row.computed
    if found.load is Load.FAILED:
        computed = found.computed if found.computed % size == 0 else -1
    if found != evolve(row, load=found.load, computed=computed) or computed > row.computed:
        yield f"{row} becomes {found}"


# --- what is reported -----------------------------------------------------------------------------


@LINK.move("who has left")
def leavers(edge: Edge) -> Iterator[str]:
    """A request that has left is on record as finished or aborted, and is reported with the next
    step; the blocks of one that leaves stay held while it loads or is sent.
    """
    before, after, step = edge.before, edge.after, edge.step
    gone, came_and_went = edge.left, after.aborted - before.aborted - edge.left
    finished = frozenset(() if step is None else step.finished)
    aborted = before.aborted | came_and_went | (gone - finished)
    if after.finished != before.finished | finished or not finished <= gone:
        yield f"finished {sorted(after.finished)}, {sorted(finished)} of them in the step"
    if after.aborted != aborted or (step is not None and came_and_went):
        yield f"aborted {sorted(after.aborted)}, by the moves {sorted(aborted)}"
    unreported = gone | (before.unreported | came_and_went if step is None else frozenset())
    if after.unreported != unreported:
        yield f"to be reported {sorted(after.unreported)}, by the moves {sorted(unreported)}"
    if step is not None and [*step.reported] != sorted(before.unreported):
        yield f"reported {step.reported}, by the moves {sorted(before.unreported)}"
    yield from _wrong_transfers(edge)


def _wrong_transfers(edge: Edge) -> Iterator[str]:
    """Wrong requests among those that have left and whose blocks a load or a send needs."""
    before, after, step = edge.before, edge.after, edge.step
    state = before if step is None else step.planned
    left = {row.id: row for row in state.present if row.id in edge.left}
    loading = {row.id for row in left.values() if row.load is Load.LOADING}
    were = {row.id: row for row in before.draining}
    ended = (were.keys() | loading) - {row.id for row in after.draining}
    if ended and (step is not None or not ended <= were.keys()):
        yield f"{sorted(ended)} left while they loaded, and their blocks are free"
    for row in after.draining:
        was = were.get(row.id, left.get(row.id))
        goes_on = step is None or row.id in left or row == was
        is_needed = row.sending or row.load is Load.LOADING
        if was is None or row.blocks != was.blocks or not (goes_on and is_needed):
            yield f"{row} has left, and no transfer needs its blocks"
        may_load = row.id in loading or (row.id in were and were[row.id].load is row.load)
        if (row.load is Load.LOADING and not may_load) or (
            row.sending and not edge.ctx.config.sends
        ):
            yield f"{row} has left, and its load or send never began"


@LINK.move("what was lost")
def losses(edge: Edge) -> Iterator[str]:
    """What a connector should have brought and did not is not asked for again; nothing else is."""
    lost = {
        row.id
        for row in edge.after.skipped
        if edge.step is None and row.load is Load.FAILED and row not in edge.before.skipped
    }
    if edge.step is not None:
        lost = {event.id for event in edge.step.happened("lose_load")}
        if not lost <= edge.step.external.keys():
            yield f"{sorted(lost)} lose what was not to be brought"
    if edge.after.lost != edge.before.lost | lost:
        yield f"lost {sorted(edge.after.lost)}, by the moves also {sorted(lost)}"


@of_step("statistics")
def statistics(edge: Edge) -> Iterator[str]:
    """A step reports how many requests wait and run after it, and the part of the blocks held."""
    after, said = edge.after, edge.step.statistics
    waiting = len(after.skipped) + len(after.waiting)
    if (said.waiting, said.running) != (waiting, len(after.running)):
        yield f"{said} of {waiting} that wait and {len(after.running)} that run"
    held = len(block_holders(after))
    if abs(said.usage * after.pool.size - held) > 0.01:
        yield f"{said} of {held} blocks held"


of_every_run = partial(registry.obligation, basis=LINK.stale, of=Of.MACHINE)
