"""The moves of Spyre's reference that its proofs speak of, compared with its edges.

Each comparison writes down what its move does, by definition, and yields where the reference does
something else. `MOVES` says which transition of the reference is which move of the batch, and
`LEMMAS` which obligations keep every future step within the limit under that move.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from inspect import getmembers, isfunction
from random import Random
from typing import Any

from attrs import evolve, fields

from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.proofs import registry
from checks.proofs.links import MOST_ROWS, Edge, Link
from checks.proofs.registry import Of
from checks.proofs.spyre.scope import SCOPE
from reference.spyre import transitions
from reference.spyre.step import choose_prefill
from spec.core.arithmetic import cdiv
from spec.core.records import PREFILL
from spec.core.requests import Oversized, Prompt, Request
from spec.spyre.admission import Member
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import prefix_hits
from spec.spyre.state import Sequence, State
from spec.spyre.variants import (
    ADMISSIONS,
    Admission,
    AdmissionVariant,
    Condition,
    Joining,
    Queue,
    Reading,
)


class Move(StrEnum):
    """What a transition does to the rows of the decode batch."""

    STAY = "all rows stay as they are"
    LEAVE = "some rows leave"
    DECODE = "each row decodes a token"
    JOIN = "an admitted request joins"
    EXCLUDED = "only with pausing or as 2.6.3 does it, which is left out"


# By the name of the transition in `reference.spyre.transitions`.
MOVES: Mapping[str, Move] = {
    "arrive": Move.STAY,
    "compiled": Move.STAY,
    "encoded": Move.STAY,
    "encode": Move.STAY,
    "unencodable": Move.LEAVE,
    "abort": Move.LEAVE,
    "admit": Move.STAY,
    "prefix_hit": Move.STAY,
    "reserve": Move.STAY,
    "chunk": Move.STAY,
    "join": Move.JOIN,
    "pad": Move.STAY,
    "extend": Move.STAY,
    "decode": Move.DECODE,
    "finish": Move.LEAVE,
    "preempt": Move.LEAVE,
    "pause": Move.EXCLUDED,
    "resume": Move.EXCLUDED,
    "sit_out": Move.EXCLUDED,
    "hold_up": Move.EXCLUDED,
}

# The obligations by which a move keeps every future step within the limit.
LEMMAS: Mapping[Move, tuple[str, ...]] = {
    Move.STAY: (),
    Move.LEAVE: ("PRV-ANY-8",),
    Move.DECODE: ("PRV-ANY-9", "PRV-ANY-10"),
    Move.JOIN: ("PRV-ANY-11", "PRV-ANS-8"),
    Move.EXCLUDED: (),
}

# Events that are not named as the transition that they are of.
_TRANSITIONS = {"jump_tkv": "pad", "allocate": "extend"}

# Keys that a run has that is proven about, under `exact` and under any rule of admission.
COVERED = "pausing=false, oversized=refused, reading=text"
COVERED_UNDER_ANY_RULE = f"interleave=true, {COVERED}"


def covers(config: SpyreConfig) -> bool:
    """True if the proofs about runs are about this configuration."""
    is_judged = config.admission is not Admission.SHIPPED or config.interleave
    is_plain = not config.pausing and config.oversized is Oversized.REFUSED
    return is_judged and is_plain and config.reading is Reading.TEXT


# --- random large runs ----------------------------------------------------------------------------


def large_case(random: Random) -> Case:
    """A case with many rows, real blocks and real lengths, whose limit binds at some admission."""
    block, rows = random.choice((16, 64)), random.randint(4, MOST_ROWS)
    is_crowd = random.random() < 0.4  # short prompts and long answers, all at once
    model_len = block * random.choice((16, 32, 64)) + random.choice((0, 1))
    config = SpyreConfig(
        block_size=block,
        chunk_size=block * (8 if is_crowd else random.choice((1, 2, 4, 8))),
        max_model_len=model_len,
        max_num_seqs=rows,
        max_batch_tkv_limit=rows * 2 * model_len,
        interleave=not is_crowd and random.random() < 0.8,
        prefix_caching=random.random() < 0.5,
        queue=random.choice((Queue.FCFS, Queue.FCFS, *Queue)),
        max_overtakes=random.choice((1, 3)),
        reservation=random.random() < 0.7,
    )
    if config.interleave and config.reservation and random.random() < 0.3:
        config = evolve(config, admission=Admission.SHIPPED)
    requests = tuple(
        _large_request(random, str(index), config, is_crowd) for index in range(rows + 6)
    )
    blocks = [cdiv(request.most_tokens, block) for request in requests]
    needed, total = max(blocks), sum(blocks)
    config = evolve(config, num_blocks=max(needed, total // random.choice((1, 2, 4))))
    return _with_binding_limit(random, Case(config, requests))


def _large_request(random: Random, name: str, config: SpyreConfig, is_crowd: bool) -> Request:
    """Prompts of up to half the model length, some with a common beginning, short answers."""
    most_prompt = 3 * config.block_size
    if not is_crowd:
        most_prompt = random.choice((config.max_model_len // 2, config.max_model_len - 130))
    length = random.randint(1, most_prompt)
    common = min(length, config.block_size * random.choice((0, 0, 2, 9)))
    parts = [("common", common), (f"own {name}", length - common)]
    answers = (60, 90, 120) if is_crowd else (1, 3, 20, 60, 2 * config.block_size + 2)
    most = random.choice(answers)
    arrival = random.choice((0, 0, 0, random.randint(0, 30)))
    return Request(
        id=name,
        prompt=Prompt.of_parts([part for part in parts if part[1]]),
        max_tokens=most,
        arrival=arrival,
        output_len=random.choice((None, None, random.randint(1, most))),
        abort_at=random.choice((None, None, None, None, arrival + random.randint(1, 60))),
    )


def _with_binding_limit(random: Random, case: Case) -> Case:
    """The case with the least limit under which some join of it is admitted, or one less."""
    least = max(request.most_tokens for request in case.requests)
    binding = [least]
    for step in served(case):
        if step.index > 300:
            break
        for name, joining in _joins(case.config, step, case.requests):
            needed = _least_limit(case.config, joining, case.config.max_batch_tkv_limit)
            if name and needed > binding[-1]:
                binding.append(needed)
    limit = max(random.choice(binding[-3:]) - random.choice((0, 0, 1)), least)
    return evolve(case, config=evolve(case.config, max_batch_tkv_limit=limit))


def _joins(config: SpyreConfig, step: Step, requests: tuple[Request, ...]) -> Any:
    ctx = Context(config, {request.id: request for request in requests}, None)  # type: ignore[arg-type]
    for event in step.happened("join"):
        yield event.id, joining(ctx, step.before, _present(step, event.id))


def _least_limit(config: SpyreConfig, asked: Joining, most: int) -> int:
    """The least limit under which the rule admits the request, by halving."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if config.variant.refusal(evolve(asked, limit=middle)) is None:
            high = middle
        else:
            low = middle + 1
    return low


def rare_case(random: Random) -> Case:
    """A case in which rows go beyond the whole blocks of the model length; in half of them requests
    are paused, and others find blocks short when all that are admitted are paused.
    """
    pauses, model_len = random.random() < 0.5, random.choice((23, 30))
    config = SpyreConfig(
        block_size=4,
        chunk_size=random.choice((4, 8)),
        max_model_len=model_len,
        max_num_seqs=6,
        max_batch_tkv_limit=30 if pauses else 6 * model_len,
        num_blocks=random.choice((8, 10, 12, 16)),
        prefix_caching=random.random() < 0.5,
        queue=random.choice(tuple(Queue)),
        pausing=pauses,
        long_output_first=random.random() < 0.5,
    )
    requests = []
    for number in range(24):
        length = random.randint(1, 12)
        most = model_len - length
        request = Request(
            id=str(number),
            prompt=Prompt.of_parts([(f"own {number}", length)]),
            max_tokens=random.choice((random.randint(1, most), most)),
            arrival=number * random.choice((0, 0, 3)),
        )
        requests.append(request)
    return Case(config, tuple(requests))


LINK = Link("spyre", SCOPE, large_case, covers, rare_cases=rare_case)


# --- the batch ------------------------------------------------------------------------------------

Rows = dict[str, Member]


class UnknownMoveError(Exception):
    """The reference did something to its batch that is none of the moves; says what."""


def decoding_rows(ctx: Context, state: State) -> Rows:
    """The decoding requests, each with its tokens and the decode steps that it may still have."""
    return {row.id: member(ctx, row, row.computed) for row in state.decoding}


def member(ctx: Context, row: Sequence, length: int) -> Member:
    """The request as an admission rule must see it."""
    return Member(length, ctx.requests[row.id].max_tokens - row.generated)


@LINK.move("the batch")
def batch_moves(edge: Edge) -> Iterator[str]:
    """The rows after an edge are those that the moves of its events make of the rows before."""
    try:
        expected = moved(edge)
    except UnknownMoveError as error:
        yield str(error)
        return
    found = decoding_rows(edge.ctx, edge.after)
    if found != expected:
        changed = {name for name in found | expected if found.get(name) != expected.get(name)}
        name = min(changed)
        yield f"row {name} is {found.get(name)}, by the moves {expected.get(name)}"


def moved(edge: Edge) -> Rows:
    """The rows after the edge, by the moves of what happened in it.

    Raises:
        UnknownMoveError: an event is no move, or a row decodes that has no token to come.
    """
    rows = decoding_rows(edge.ctx, edge.before)
    if edge.step is None:
        return {name: row for name, row in rows.items() if name not in edge.left}
    for event in edge.step.events:
        match MOVES.get(_TRANSITIONS.get(event.transition, event.transition)):
            case Move.STAY:
                continue
            case Move.LEAVE:
                rows.pop(event.id, None)
            case Move.DECODE:
                rows = {name: _decoded(name, row) for name, row in rows.items()}
            case Move.JOIN:
                asked = _present(edge.step, event.id)
                joined = member(edge.ctx, asked, asked.prefill_len)
                rows = rows | {event.id: evolve(joined, remaining=joined.remaining - 1)}
            case _:
                raise UnknownMoveError(f"{event.transition} is no move that is proven about")
    return rows


def _decoded(name: str, row: Member) -> Member:
    if row.remaining < 1:
        raise UnknownMoveError(f"row {name} decodes and has no token to come")
    return Member(row.length + 1, row.remaining - 1)


def _present(step: Step, name: str) -> Sequence:
    """The request as the step found it."""
    return next(row for row in step.before.present if row.id == name)


@LINK.move("the load of a step")
def loads(edge: Edge) -> Iterator[str]:
    """The volume of a step is its rows times the widest of them with its padding, within the limit
    where the admission rule keeps it; in a decode step each row is padded to the blocks of the
    widest.
    """
    step, config = edge.step, edge.ctx.config
    if step is None or not step.scheduled:
        return
    size = config.block_size
    lengths = [row.computed for row in step.batch]
    if step.chunk is not None:
        lengths = [_present(step, step.chunk.id).prefill_len]
    width = max(-(-length // size) for length in lengths) * size
    paddings = [width - -(-length // size) * size for length in lengths]
    tkv = max(padding + length for padding, length in zip(paddings, lengths, strict=True))
    if step.chunk is not None:
        tkv = lengths[0]
    elif (found := [row.left_padding for row in step.batch]) != paddings:
        yield f"rows {lengths} are padded by {found}, by definition by {paddings}"
    if (step.tkv, step.volume) != (tkv, len(lengths) * tkv):
        yield f"tkv {step.tkv}, volume {step.volume} of rows {lengths}"
    if config.variant.keeps_limit and step.volume > config.max_batch_tkv_limit:
        yield f"volume {step.volume} over the limit {config.max_batch_tkv_limit}"
    if config.variant.uses_last_tkv and edge.after.last_tkv != step.tkv:
        yield f"tkv {step.tkv} is remembered as {edge.after.last_tkv}"


# --- who joins ------------------------------------------------------------------------------------


def joining(ctx: Context, state: State, asked: Sequence) -> Joining:
    """What the rule must be asked about a request that is about to join the batch of a state."""
    config = ctx.config
    return Joining(
        decoding=[*decoding_rows(ctx, state).values()],
        candidate=member(ctx, asked, asked.prefill_len),
        limit=config.max_batch_tkv_limit,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        last_tkv=state.last_tkv,
    )


@LINK.move("who joins")
def joins(edge: Edge) -> Iterator[str]:
    """A request joins the batch if and only if the rule admits it and a place is free; the rule is
    asked when the last chunk is next, about the whole batch and with its tkv.
    """
    step, config = edge.step, edge.ctx.config
    if step is None:
        return
    before = step.before
    for event in step.happened("join"):
        refusal = config.variant.refusal(joining(edge.ctx, before, _present(step, event.id)))
        if refusal is not None:
            yield f"{event.id} joins, which {refusal} refuses"
        if len(before.decoding) >= config.max_num_seqs:
            yield f"{event.id} joins {len(before.decoding)} rows"
        needs_tkv = config.variant.uses_last_tkv and bool(before.decoding)
        if needs_tkv and before.last_tkv < _max_tkv(before, config.block_size):
            yield f"{event.id} joins, judged by the tkv of other rows"
    if step.happened("admit") and len(before.decoding) >= config.max_num_seqs:
        yield f"a prefill begins beside {len(before.decoding)} rows"
    rules = {condition.rule for condition in config.variant.conditions}
    if step.refusal in rules and config.queue is not Queue.OVERTAKING:
        asked = _next_prefill(edge.ctx, before)
        if config.variant.refusal(joining(edge.ctx, before, asked)) != step.refusal:
            yield f"{asked.id} is refused by {step.refusal}, which admits it"


@LINK.move("what the rule is asked")
def questions(edge: Edge) -> Iterator[str]:
    """The rule is asked about the whole batch as it is, and about the request whose turn it is with
    the tokens that its prefill computes: after a preemption also those that it had generated.
    """
    state, ctx = edge.before, edge.ctx
    if edge.step is None or not (_ready(state) or state.prefilling):
        return
    turns = state.waiting
    if ctx.config.queue is not Queue.OVERTAKING or state.prefilling is not None:
        turns = (_next_prefill(ctx, state),)
    expected = [joining(ctx, state, row) for row in turns]
    for asked in _asked(ctx, state):
        if asked not in expected:
            yield f"the rule is asked about {asked}, by the moves about {expected[0]}"


def _asked(ctx: Context, state: State) -> list[Joining]:
    """What the reference asks the rule when it chooses a prefill."""
    config, heard = _listening(ctx.config)
    heard.clear()
    choose_prefill(evolve(ctx, config=config), state)
    return heard


@cache
def _listening(config: SpyreConfig) -> tuple[SpyreConfig, list[Joining]]:
    """The same configuration with a rule that notes what it is asked, and its notes."""
    heard: list[Joining] = []

    def note(asked: Joining) -> bool:
        heard.append(asked)
        return True

    class Listening(SpyreConfig):
        @property
        def variant(self) -> AdmissionVariant:
            right = ADMISSIONS[self.admission]
            return evolve(right, conditions=(Condition("", note), *right.conditions))

    keys = {key.name: getattr(config, key.name) for key in fields(SpyreConfig)}
    return Listening(**keys), heard


def _max_tkv(state: State, size: int) -> int:
    lengths = [row.computed for row in state.decoding]
    width = max(-(-length // size) for length in lengths) * size
    return max(width - -(-length // size) * size + length for length in lengths)


@LINK.move("idle steps")
def idle_steps(edge: Edge) -> Iterator[str]:
    """A step that leaves pending requests idle finds none that decodes or is paused; it refuses one
    by a condition of joining, or for lack of blocks. Who waits for a grammar or for images does not
    count.
    """
    step, state = edge.step, edge.before
    if step is None or step.scheduled or not (_ready(state) or state.admitted):
        return
    if state.decoding or state.paused:
        yield f"an idle step beside {len(state.decoding) + len(state.paused)} rows"
    conditions = (condition.rule for condition in edge.ctx.config.variant.conditions)
    if step.refusal not in {*conditions, "SPY-RES-1", "BLK-9"}:
        yield f"an idle step, as {step.refusal} refuses a request that is alone"


@LINK.move("the prefill")
def prefills(edge: Edge) -> Iterator[str]:
    """A prefill step computes one chunk of one prompt, from its first token that is not computed to
    the end of the chunk; with interleaving no two of them follow each other while rows decode.
    """
    step, config = edge.step, edge.ctx.config
    if step is None:
        return
    if edge.after.last_kind != step.kind:
        yield f"a {step.kind} step is remembered as {edge.after.last_kind}"
    if step.chunk is None:
        return
    length, size = _present(step, step.chunk.id).prefill_len, config.chunk_size
    padded = -(-length // size) * size
    left = padded - -(-length // config.block_size) * config.block_size
    start = max(step.chunk.chunk * size - left, 0)
    end = min((step.chunk.chunk + 1) * size - left, length)
    found = step.chunk.left_padding, step.chunk.start, step.chunk.end, step.chunk.is_last
    if found != (left, start, end, end == length):
        yield f"chunk {step.chunk}, by definition from {start} to {end} behind {left} of padding"
    if bool(step.happened("join")) != step.chunk.is_last:
        yield f"chunk {step.chunk.chunk} of {step.chunk.chunks}: joined {step.happened('join')}"
    if config.interleave and step.before.last_kind == PREFILL and step.before.decoding:
        yield f"a second prefill step in a row beside {len(step.before.decoding)} rows"


# --- blocks and promises --------------------------------------------------------------------------


@LINK.move("blocks")
def blocks(edge: Edge) -> Iterator[str]:
    """An admitted request holds the blocks of its computed tokens, a waiting one none; free are
    those that no request holds.
    """
    state, size = edge.after, edge.ctx.config.block_size
    for row in state.admitted:
        if len(row.blocks) != -(-row.computed // size) and row.computed > 0:
            yield f"{row.id} holds {len(row.blocks)} blocks for {row.computed} tokens"
    for row in state.waiting:
        if row.blocks or row.reserved:
            yield f"{row.id} waits with {len(row.blocks)} blocks and {row.reserved} promised"
    held = {block for row in state.admitted for block in row.blocks}
    if len(state.pool.free) != state.pool.size - len(held):
        yield f"{len(state.pool.free)} blocks of {state.pool.size} free, {len(held)} held"


@LINK.move("hits")
def hits(edge: Edge) -> Iterator[str]:
    """Of several blocks with one content a request takes the one that has held it longest."""
    before, after = edge.before.pool, edge.after.pool
    given: set[int] = set()
    if edge.step is not None:
        given = {block for event in edge.step.happened("allocate") for block in event.after}
        for event in edge.step.happened("prefix_hit"):
            keys = edge.ctx.keys.of(event.id, len(event.after))
            longest = [before.cached[key][0] for key in keys if key in before.cached]
            if [*event.after] != longest:
                yield f"{event.id} takes {event.after}, the cached blocks are {longest}"
    for key, found in after.cached.items():
        if len(found) > 1:
            known = [block for block in before.cached.get(key, ()) if block not in given]
            kept = [block for block in found if block in known]
            if [*found[: len(kept)]] != [block for block in known if block in found]:
                yield f"one content is in blocks {found}, before it was in {known}"


@LINK.move("promises")
def promises(edge: Edge) -> Iterator[str]:
    """With reservation an admitted request holds and was promised the blocks of all its tokens
    together, all promises are free blocks, and a request is refused only if its own would not be.
    """
    config, state = edge.ctx.config, edge.after
    if not config.reservation:
        return
    for row in state.admitted:
        if len(row.blocks) + row.reserved != _worst_case(edge.ctx, row):
            yield f"{row.id} holds {len(row.blocks)} blocks, {row.reserved} are promised"
    if sum(row.reserved for row in state.admitted) > len(state.pool.free):
        yield f"{len(state.pool.free)} blocks free, more are promised"
    if edge.step is None or edge.step.refusal != "SPY-RES-1":
        return
    before, asked = edge.before, _next_prefill(edge.ctx, edge.before)
    held = before.pool.references
    shared = sum(block in held for block in prefix_hits(edge.ctx, before, asked))
    spare = len(before.pool.free) - sum(row.reserved for row in before.admitted)
    if config.queue is not Queue.OVERTAKING and _worst_case(edge.ctx, asked) - shared <= spare:
        yield f"{asked.id} is refused for lack of blocks, {spare} are spare"


def _worst_case(ctx: Context, row: Sequence) -> int:
    """Blocks of the prompt and all that the request may generate."""
    most = ctx.requests[row.id].prompt_len + ctx.requests[row.id].max_tokens
    return -(-most // ctx.config.block_size)


# --- the queue ------------------------------------------------------------------------------------


@LINK.move("the queue")
def queues(edge: Edge) -> Iterator[str]:
    """Arrivals go to the end of the queue and preempted requests to its front; the others keep
    their order. The one that is admitted is the head, or the narrowest of those it is chosen from.
    """
    # A request that waits for a grammar or for images is none of them.
    expected = [row.id for row in edge.before.waiting if row.id not in edge.left]
    cohort = edge.before.cohort
    gone = [row.id for row in edge.before.waiting[:cohort] if row.id in edge.left]
    if edge.step is None:
        cohort -= len(gone)
        expected += [row.id for row in edge.after.waiting if row.id in edge.arrived]
    else:
        for event in edge.step.happened("admit"):
            yield from _wrong_choice(edge, event.id)
            if event.id in expected:
                expected.remove(event.id)
            if edge.ctx.config.queue is Queue.ALIGNED:
                cohort = _choice(edge.ctx, edge.before) - 1
        for event in edge.step.happened("preempt"):
            expected.insert(0, event.id)
            cohort += cohort > 0
    if [row.id for row in edge.after.waiting] != expected:
        yield f"waiting {[row.id for row in edge.after.waiting]}, by the moves {expected}"
    if edge.after.cohort != cohort:
        yield f"cohort {edge.after.cohort}, by the moves {cohort}"


def _choice(ctx: Context, state: State) -> int:
    """How many requests at the head of the queue the next one is chosen from."""
    waiting, most = len(state.waiting), ctx.config.max_overtakes + 1
    if ctx.config.queue is Queue.ALIGNED:
        return state.cohort if state.cohort > 0 else min(waiting, most)
    return waiting if ctx.config.queue is Queue.SHORTEST else 1


def _ready(state: State) -> list[Sequence]:
    """The waiting requests that wait for no grammar and no images."""
    unready = state.compiling | state.unencoded | state.encoding
    return [row for row in state.waiting if row.id not in unready]


def _next_prefill(ctx: Context, state: State) -> Sequence:
    """The prefill under way, else the request that the queue's order puts first."""
    if state.prefilling is not None:
        return state.prefilling
    config = ctx.config
    alike = config.max_batch_tkv_limit // config.max_num_seqs + config.chunk_size
    line = _ready(state)[: _choice(ctx, state)]
    return min(line, key=lambda row: max(ctx.requests[row.id].most_tokens, alike))


def _wrong_choice(edge: Edge, admitted: str) -> Iterator[str]:
    if edge.ctx.config.queue is not Queue.OVERTAKING:
        first = _next_prefill(edge.ctx, edge.before)
        if admitted != first.id:
            yield f"{admitted} is admitted before {first.id}"


@LINK.move("the victim")
def victims(edge: Edge) -> Iterator[str]:
    """A request is preempted only if the batch lacks a block, and it is the last admitted one."""
    if edge.step is None:
        return
    rows, size = [*edge.before.decoding], edge.ctx.config.block_size
    prefilling, references = edge.before.prefilling, dict(edge.before.pool.references)
    free = len(edge.before.pool.free)
    for event in edge.step.happened("preempt"):
        lacking = sum(-(-(row.computed + 1) // size) - len(row.blocks) for row in rows) - free
        last = prefilling or rows[0]
        if lacking <= 0 or event.id != last.id:
            yield f"{event.id} is preempted, {lacking} blocks lacking, {last.id} came last"
            return
        rows, prefilling = [row for row in rows if row is not last], None
        for block in last.blocks:
            references[block] -= 1
            free += references[block] == 0


# --- obligations that rest on the moves -----------------------------------------------------------


def stale() -> str | None:
    """Why evidence about runs is stale; None if the reference makes the moves."""
    known, written = set(MOVES), {name for name, _ in _own_transitions()}
    if known != written:
        return f"transitions and their moves differ: {', '.join(sorted(known ^ written))}"
    return LINK.stale()


def _own_transitions() -> list[tuple[str, Any]]:
    return getmembers(
        transitions,
        lambda member: (
            isfunction(member)
            and member.__module__ == transitions.__name__
            and not member.__name__.startswith("_")
        ),
    )


of_every_run = partial(registry.obligation, basis=stale, of=Of.MACHINE)
