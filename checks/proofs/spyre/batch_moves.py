"""What the transitions of the reference do to the decode batch: four moves, each with its lemma.

The proofs about runs of any number of requests (`checks.proofs.spyre.any_run`) speak of the rows of
the decode batch alone. That the reference does nothing else to them is compared before the prover
says proven: on every reachable edge of small instances, whichever requests end early or are
aborted, the rows after the edge are those that the moves of its events make of the rows before.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from inspect import getmembers, isfunction
from typing import Any

from attrs import evolve

from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.policies.spyre.model import spyre_model
from checks.proofs import registry
from checks.proofs.scope import IN_SETTING, Scope
from checks.proofs.spyre.agreement import instance, small
from reference.core.guards import GuardError
from reference.spyre import transitions
from spec.core.records import Event
from spec.core.requests import Prompt
from spec.spyre.admission import Member
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv, volume
from spec.spyre.records import Step
from spec.spyre.rules.observed import entering
from spec.spyre.state import State
from spec.spyre.variants import Admission, Joining, Queue


class Move(StrEnum):
    """What becomes of the rows of the decode batch."""

    STAY = "all rows stay as they are"
    LEAVE = "some rows leave"
    DECODE = "each row decodes a token"
    JOIN = "an admitted request joins"
    LEFT_OUT = "only with pausing, which is left out"


# By the name of the transition in `reference.spyre.transitions`.
MOVES: Mapping[str, Move] = {
    "arrive": Move.STAY,
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
    "pause": Move.LEFT_OUT,
    "resume": Move.LEFT_OUT,
    "sit_out": Move.LEFT_OUT,
}

# The obligations by which a move keeps every future step within the limit.
LEMMAS: Mapping[Move, tuple[str, ...]] = {
    Move.STAY: (),
    Move.LEAVE: ("PRV-ANY-8",),
    Move.DECODE: ("PRV-ANY-9", "PRV-ANY-10"),
    Move.JOIN: ("PRV-ANY-11", "PRV-ANS-8"),
    Move.LEFT_OUT: (),
}

SCOPE = Scope(
    SpyreConfig,
    {
        "policy": "names the scheduler",
        "block_size": IN_SETTING,
        "chunk_size": IN_SETTING,
        "max_model_len": IN_SETTING,
        "max_num_seqs": IN_SETTING,
        "max_batch_tkv_limit": IN_SETTING,
        "num_blocks": IN_SETTING,
        "interleave": IN_SETTING,
        "prefix_caching": IN_SETTING,
        "admission": "exact, and shipped with interleaving",
        "queue": IN_SETTING,
        "max_overtakes": IN_SETTING,
        "reservation": IN_SETTING,
        "pausing": "off: the rows that decode are then chosen anew in each step, by the limit",
        "long_output_first": "an order of pausing",
        "reading": "text: what the release accounts for otherwise is over before a row joins",
        "prefill_time": "the simulated clock decides nothing in a step",
        "decode_time": "the simulated clock decides nothing in a step",
    },
)

# --- the batch of the reference, moved by what happened -------------------------------------------

Rows = dict[str, Member]


class UnknownMoveError(Exception):
    """The reference did something to its batch that is none of the moves; says what."""


def batch_of(one: Instance[SpyreConfig], state: State) -> Rows:
    """The decoding requests, each with its tokens and the decode steps that it may still have."""
    return {row.id: _member(one, row.id, row.computed, row.generated) for row in state.decoding}


def _member(one: Instance[SpyreConfig], id_: str, length: int, generated: int) -> Member:
    most = next(request.max_tokens for request in one.requests if request.id == id_)
    return Member(length, most - generated)


def moved(one: Instance[SpyreConfig], before: State, edge: Transition[State]) -> Rows:
    """The rows after the edge, by the moves of what happened in it.

    Raises:
        UnknownMoveError: something that happened is no move, or not one that the lemmas speak of.
    """
    rows = batch_of(one, before)
    if not isinstance(edge.record, Step):
        action, _, subject = edge.action.partition(" ")
        return _after(rows, action, subject)
    step = edge.record
    for event in step.events:
        name = _TRANSITIONS.get(event.transition, event.transition)
        if name == "join":
            rows = _joined(one, rows, step, event)
        elif name == "decode":
            rows = _decoded(one, rows, step)
        else:
            rows = _after(rows, name, event.id)
    if step.chunk is not None and step.volume > one.config.max_batch_tkv_limit:
        raise UnknownMoveError(f"a prefill step of volume {step.volume}")
    return rows


# Events that are not named as the transition that they are of.
_TRANSITIONS = {"jump_tkv": "pad", "allocate": "extend"}


def _after(rows: Rows, transition: str, subject: str) -> Rows:
    """The rows after a transition by which none is changed."""
    move = MOVES.get(transition)
    if move is Move.LEAVE:
        return {id_: row for id_, row in rows.items() if id_ != subject}
    if move is Move.STAY:
        return rows
    raise UnknownMoveError(f"{transition} is no move that is proven about")


def _decoded(one: Instance[SpyreConfig], rows: Rows, step: Step) -> Rows:
    """The rows after a decode step, of which each had a token to come."""
    lengths = [row.length + 1 for row in rows.values()]
    if min(row.remaining for row in rows.values()) < 1:
        raise UnknownMoveError("a row decodes that has no token to come")
    if step.volume != volume(len(rows), max_tkv(lengths, one.config.block_size)):
        raise UnknownMoveError(f"the volume of {len(rows)} rows is {step.volume}")
    return {id_: Member(row.length + 1, row.remaining - 1) for id_, row in rows.items()}


def _joined(one: Instance[SpyreConfig], rows: Rows, step: Step, event: Event) -> Rows:
    """The rows and the request whose last chunk this is, which the rule must admit."""
    entered = entering(step, event.id)
    candidate = _member(one, event.id, entered.prefill_len, entered.generated)
    joining = Joining(
        decoding=[*rows.values()],
        candidate=candidate,
        limit=one.config.max_batch_tkv_limit,
        max_model_len=one.config.max_model_len,
        block_size=one.config.block_size,
        last_tkv=step.before.last_tkv,
    )
    lengths = [row.length for row in rows.values()]
    needs_tkv = one.config.variant.uses_last_tkv and bool(lengths)
    if needs_tkv and joining.last_tkv < max_tkv(lengths, one.config.block_size):
        raise UnknownMoveError(f"{event.id} joins, judged by the tkv of other rows")
    if one.config.variant.refusal(joining) is not None:
        raise UnknownMoveError(f"{event.id} joins, which the rule does not admit")
    return rows | {event.id: Member(candidate.length, candidate.remaining - 1)}


# --- every edge -----------------------------------------------------------------------------------


def edges(one: Instance[SpyreConfig]) -> Iterator[tuple[State, Transition[State]]]:
    """Every reachable state with every transition possible in it."""
    model = spyre_model(one)
    pending = deque(model.initial())
    seen = {model.canonical(state) for state in pending}
    while pending:
        state = pending.popleft()
        for edge in model.successors(state):
            yield state, edge
            key = model.canonical(edge.state)
            if key not in seen:
                seen.add(key)
                pending.append(edge.state)


def disagreement(name: str, one: Instance[SpyreConfig]) -> str | None:
    """The first edge of the instance that is not the moves of what happened in it, in words."""
    try:
        for state, edge in edges(one):
            expected, found = moved(one, state, edge), batch_of(one, edge.state)
            if found != expected:
                return f"instance {name}, {edge.action}: batch {found}, by the moves {expected}"
    except UnknownMoveError as error:
        return f"instance {name}: {error}"
    except GuardError as error:
        return f"instance {name}: the reference stops: {error}"
    return None


def _shared(one: Instance[SpyreConfig], tokens: int) -> Instance[SpyreConfig]:
    """The instance with prompts that begin alike."""
    requests = tuple(
        evolve(each, prompt=_prompt(each.id, each.prompt_len, tokens)) for each in one.requests
    )
    return evolve(one, requests=requests)


def _prompt(id_: str, length: int, shared: int) -> Prompt:
    common = min(shared, length)
    return Prompt.of_parts([("shared", common), *([(id_, length - common)] * (length > common))])


_THREE = ((3, 4), (6, 3), (1, 2))
INSTANCES = {
    "exact": instance(small(max_batch_tkv_limit=8), *_THREE),
    "not interleaved, overtaking": instance(
        small(max_batch_tkv_limit=8, interleave=False, queue=Queue.OVERTAKING), *_THREE
    ),
    "aligned": instance(
        small(max_batch_tkv_limit=8, queue=Queue.ALIGNED, max_overtakes=1), *_THREE
    ),
    "prefix caching": _shared(
        instance(small(max_batch_tkv_limit=8, prefix_caching=True), (5, 2), (6, 2), (5, 1)), 4
    ),
    "few blocks, preemption": instance(
        small(max_batch_tkv_limit=14, reservation=False, num_blocks=4), (3, 4), (4, 3), (1, 2)
    ),
    "shipped": instance(small(admission=Admission.SHIPPED, max_batch_tkv_limit=14), *_THREE),
}


def stale() -> str | None:
    """Why evidence about the batch is stale; None if the reference moves it as is said here."""
    known, written = set(MOVES), {name for name, _ in _own_transitions()}
    if known != written:
        return f"transitions and their moves differ: {', '.join(sorted(known ^ written))}"
    found = (disagreement(name, one) for name, one in INSTANCES.items())
    return SCOPE.stale() or next((one for one in found if one is not None), None)


def _own_transitions() -> Sequence[tuple[str, Any]]:
    return getmembers(
        transitions,
        lambda one: (
            isfunction(one)
            and one.__module__ == transitions.__name__
            and not one.__name__.startswith("_")
        ),
    )


of_batch = partial(registry.obligation, basis=stale)
