"""The symbolic machine does what the reference does, and its terms say what its numbers say."""

from collections import Counter, deque
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import z3
from attrs import astuple
from checks.harness.running import serve

from checks.explore import Transition
from checks.explore.instance import Instance
from checks.explore.model import Model
from checks.policies.spyre.model import spyre_model
from checks.proofs.spyre.inductive import SIZES, any_scene
from checks.proofs.spyre.machine import (
    ABSENT,
    DECODING,
    GONE,
    NEVER,
    PREFILLING,
    WAITING,
    Client,
    Move,
    Place,
    Rule,
    Setting,
    Situation,
    documented,
    exact,
    nobody_yet,
    shipped,
)
from checks.proofs.spyre.symbolic import between, step
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import State
from spec.spyre.variants import Admission

RULES = {
    Admission.EXACT: exact,
    Admission.DOCUMENTED: documented,
    Admission.SHIPPED: shipped,
}


def request(id_: str, prompt_len: int, max_tokens: int, **more: Any) -> Request:
    prompt = Prompt.of_stream(f"own {id_}", prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, **more)


def as_setting(config: SpyreConfig) -> Setting:
    return Setting(
        block_size=config.block_size,
        chunk_size=config.chunk_size,
        interleave=config.interleave,
        limit=config.max_batch_tkv_limit,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        rule=RULES[config.admission],
        judged_first=config.admission is Admission.SHIPPED and not config.interleave,
    )


def kind(move: Move) -> str:
    return "prefill" if move.is_prefill else "decode" if move.is_decode else "idle"


def place(state: State, id_: str, *, came: bool = True) -> Place:
    """Where the reference has the request; who has not come yet cannot be told from who left."""
    places = {WAITING: state.waiting, DECODING: state.decoding}
    if state.prefilling is not None:
        places[PREFILLING] = (state.prefilling,)
    for phase, rows in places.items():
        for row in rows:
            if row.id == id_:
                return Place(phase, row.computed, row.generated)
    return Place(GONE if came else ABSENT, 0, 0)


def has_come(state: State, id_: str) -> bool:
    return id_ in {one.id for one in state.present} | state.finished | state.aborted


# --- all small states ---------------------------------------------------------------------------


def small(**changes: Any) -> SpyreConfig:
    sizes = {"block_size": 2, "chunk_size": 4, "max_model_len": 12, "max_num_seqs": 3}
    return SpyreConfig(**{**sizes, "max_batch_tkv_limit": 18, "prefix_caching": False, **changes})


INSTANCES = {
    "exact": (small(), ((3, 4), (6, 3), (2, 5))),
    "exact, two slots": (small(max_num_seqs=2, max_batch_tkv_limit=30), ((1, 5), (3, 4), (2, 2))),
    "exact, not interleaved": (small(interleave=False), ((7, 3), (2, 4), (3, 3))),
    "exact, blocks of 3": (small(block_size=3, chunk_size=3), ((4, 5), (2, 4), (3, 3))),
    "documented": (
        small(admission=Admission.DOCUMENTED, max_batch_tkv_limit=15),
        ((1, 4), (3, 2), (5, 4)),
    ),
    "documented, not interleaved": (
        small(admission=Admission.DOCUMENTED, interleave=False, max_model_len=8),
        ((1, 6), (5, 3), (2, 3)),
    ),
    "shipped": (
        small(admission=Admission.SHIPPED, max_batch_tkv_limit=24),
        ((3, 5), (7, 4), (2, 3)),
    ),
    "shipped, not interleaved": (
        small(admission=Admission.SHIPPED, interleave=False, max_batch_tkv_limit=20),
        ((7, 3), (2, 3), (3, 3)),
    ),
}


def edges(model: Model[State]) -> Iterator[tuple[State, Transition[State]]]:
    """Every reachable transition as long as nobody was paused: the symbolic machine never does."""
    pending = deque(model.initial())
    seen = set(pending)
    while pending:
        state = pending.popleft()
        for edge in model.successors(state):
            if edge.state.paused:
                continue
            yield state, edge
            if edge.state not in seen:
                seen.add(edge.state)
                pending.append(edge.state)


def in_order_of_arrival(state: State, requests: tuple[Request, ...]) -> list[Request]:
    """Who has been admitted, who waits, who is still to come."""
    waiting = [row.id for row in state.waiting]

    def turn(one: Request) -> int:
        if one.id in waiting:
            return waiting.index(one.id)
        return -1 if has_come(state, one.id) else len(waiting)

    return sorted(requests, key=turn)


def moved(
    config: SpyreConfig, state: State, edge: Transition[State], requests: list[Request]
) -> Any:
    """The symbolic machine's situation after the edge, and its step if the edge is one."""
    taken, _, who = edge.action.partition(" ")
    ended = edge.record.ended if isinstance(edge.record, Step) else ()
    clients = [
        Client(
            prompt_len=one.prompt_len,
            max_tokens=one.max_tokens,
            output_len=place(state, one.id).generated + 1 if one.id in ended else one.max_tokens,
            arrival=0 if has_come(state, one.id) or (taken, who) == ("arrive", one.id) else NEVER,
            abort_at=0 if (taken, who) == ("abort", one.id) else NEVER,
        )
        for one in requests
    ]
    places = tuple(place(state, one.id, came=has_come(state, one.id)) for one in requests)
    before = Situation(places, state.last_kind == "prefill", state.last_tkv)
    if not isinstance(edge.record, Step):
        return between(clients, before, 0), None
    move = step(as_setting(config), clients, before)
    return move.after, (kind(move), move.tkv, move.volume)


# How often each action, and each refusal, was compared.
COMPARED: dict[str, dict[str, int]] = {
    "exact": {
        "SPY-PRI-3": 319,
        "SPY-VOL-4": 2,
        "abort": 3718,
        "arrive": 663,
        "no refusal": 4667,
        "step": 4988,
    },
    "exact, two slots": {
        "SPY-ADM-1": 9,
        "SPY-PRI-3": 126,
        "abort": 1625,
        "arrive": 431,
        "no refusal": 1961,
        "step": 2096,
    },
    "exact, not interleaved": {
        "SPY-VOL-4": 112,
        "abort": 3633,
        "arrive": 611,
        "no refusal": 4549,
        "step": 4661,
    },
    "exact, blocks of 3": {
        "SPY-PRI-3": 201,
        "SPY-VOL-4": 10,
        "abort": 2408,
        "arrive": 516,
        "no refusal": 2984,
        "step": 3195,
    },
    "documented": {
        "SPY-PRI-3": 106,
        "SPY-VOL-2": 33,
        "abort": 1129,
        "arrive": 367,
        "no refusal": 1273,
        "step": 1412,
    },
    "documented, not interleaved": {
        "SPY-LEN-2": 150,
        "SPY-VOL-2": 39,
        "abort": 4590,
        "arrive": 674,
        "no refusal": 5863,
        "step": 6052,
    },
    "shipped": {
        "SPY-PRI-3": 254,
        "SPY-VOL-3": 16,
        "abort": 3839,
        "arrive": 873,
        "no refusal": 5035,
        "step": 5305,
    },
    "shipped, not interleaved": {
        "SPY-VOL-3": 99,
        "abort": 1755,
        "arrive": 472,
        "no refusal": 2094,
        "step": 2193,
    },
}


@pytest.mark.parametrize("name", INSTANCES)
def test_every_transition_of_a_small_instance_is_that_of_the_reference(name: str) -> None:
    config, sizes = INSTANCES[name]
    requests = tuple(request(str(index), *size) for index, size in enumerate(sizes))
    everyone = frozenset(one.id for one in requests)
    instance = Instance(
        name=name,
        about="",
        config=config,
        requests=requests,
        aborts=everyone,
        early_ends=everyone,
    )
    taken: Counter[str] = Counter()
    for state, edge in edges(spyre_model(instance)):
        ordered = in_order_of_arrival(state, requests)
        after, found = moved(config, state, edge, ordered)
        expected = [place(edge.state, one.id, came=has_come(edge.state, one.id)) for one in ordered]
        assert list(after.places) == expected
        assert after.prefilled == (edge.state.last_kind == "prefill")
        if isinstance(edge.record, Step):
            assert found == (edge.record.kind, edge.record.tkv, edge.record.volume)
            taken[edge.record.refusal or "no refusal"] += 1
        taken[edge.action.split()[0].rstrip(",")] += 1
    assert dict(taken) == COMPARED[name]


# --- random runs --------------------------------------------------------------------------------


def drawn(random: Random) -> tuple[SpyreConfig, list[Request]]:
    """A configuration and requests that can be served under it, in order of arrival."""
    block_size = random.choice([1, 2, 3, 4, 64])
    longest, most = random.choice([(3, 3), (9, 8), (17, 4), (200, 70)])
    sizes = [
        (random.randint(1, longest), random.randint(1, most)) for _ in range(random.randint(1, 5))
    ]
    total = max(map(sum, sizes))
    config = SpyreConfig(
        block_size=block_size,
        chunk_size=block_size * random.randint(1, 3),
        max_model_len=total + random.randint(0, 6),
        max_num_seqs=random.randint(1, 4),
        max_batch_tkv_limit=random.randint(max(total - 1, 1), total * len(sizes) + block_size),
        interleave=random.random() < 0.5,
        admission=random.choice(list(Admission)),
        prefix_caching=False,
    )
    arrivals = sorted(random.randint(0, 12) for _ in sizes)
    return config, [
        request(
            str(index),
            *size,
            arrival=arrival,
            output_len=random.choice([size[1], random.randint(1, size[1])]),
            abort_at=random.choice([None, None, random.randint(0, 30)]),
        )
        for index, (size, arrival) in enumerate(zip(sizes, arrivals, strict=True))
    ]


def as_client(one: Request) -> Client:
    gone = NEVER if one.abort_at is None else one.abort_at
    return Client(one.prompt_len, one.max_tokens, one.end, one.arrival, gone)


def test_random_runs_are_those_of_the_reference() -> None:
    random, taken = Random(0), Counter[str]()
    for _ in range(250):
        config, requests = drawn(random)
        clients = [as_client(one) for one in requests]
        situation = nobody_yet(clients)
        for index, done in enumerate(serve(SpyreMachine.of(config, requests), requests)):
            if done.after.paused:
                break  # the symbolic machine never pauses
            move = step(as_setting(config), clients, between(clients, situation, index))
            situation = move.after
            assert (kind(move), move.tkv, move.volume) == (done.kind, done.tkv, done.volume)
            for client, one, found in zip(clients, requests, situation.places, strict=True):
                came = min(client.arrival, client.abort_at) <= index
                assert found == place(done.after, one.id, came=came)
            taken[done.refusal or done.kind] += 1
    assert all(taken[one] > 10 for one in ("prefill", "decode", "idle", "SPY-PRI-3", "SPY-ADM-1"))
    assert all(taken[one] > 10 for one in ("SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4", "SPY-LEN-2"))


# --- terms --------------------------------------------------------------------------------------


def told(move: Move) -> list[Any]:
    """Everything that a step says."""
    after = [number for one in move.after.places for number in astuple(one)]
    return [*after, move.after.prefilled, move.is_prefill, move.is_decode, move.tkv, move.volume]


def some_number(name: str, random: Random) -> int:
    """Of the size that numbers of this name have in a situation, and now and then of another."""
    tops = {"phase": 4, "generated": 9, "computed": 30, "limit": 90, "interleave": 1}
    name = name.rstrip("_0123456789")
    return random.randint(0, tops.get("interleave" if name == "prefilled" else name, 12))


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize(("block_size", "chunk_size"), SIZES)
def test_terms_say_what_the_numbers_say(block_size: int, chunk_size: int, rule: Rule) -> None:
    """One step of three requests as a term, evaluated on random numbers, consistent or not."""
    random, values, kinds = Random(1), dict[str, int](), Counter[str]()
    scene = any_scene(z3.Int, block_size, chunk_size, rule)
    terms = told(step(scene.setting, scene.clients, scene.situation))
    for _ in range(25):
        values.clear()
        scene = any_scene(
            lambda name: values.setdefault(name, some_number(name, random)),
            block_size,
            chunk_size,
            rule,
        )
        move = step(scene.setting, scene.clients, scene.situation)
        substituted = [(z3.Int(name), z3.IntVal(value)) for name, value in values.items()]
        for term, number in zip(terms, told(move), strict=True):
            assert str(z3.simplify(z3.substitute(term, *substituted))) == str(number)
        kinds[kind(move)] += 1
    assert min(kinds[one] for one in ("prefill", "decode", "idle")) > 1
