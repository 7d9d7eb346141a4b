"""ITF traces: the form of the format, and that no part of a state is lost in it."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from attrs import fields_dict

from checks.export.itf import itf_trace, itf_value
from checks.export.policy import presentation_of
from checks.export.trace.line import Violation
from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.policies.spyre.codec import CODEC
from checks.registry import POLICIES, claims_of
from reference.core.frozen_map import FrozenMap
from reference.spyre.machine import SpyreMachine
from spec.core.blocks import BlockPool
from spec.core.requests import Prompt, Request
from spec.spyre.records import Step
from spec.spyre.state import Sequence, State
from tests.checks.export.runs import Run, configured, run_of
from tests.requests import request

Json = dict[str, Any]


def sharing_run() -> Run:
    """The second request comes after the first step, finds a block of the first, and leaves."""
    config = configured(2, 4, 12, max_num_seqs=2, num_blocks=12)
    return run_of(
        config,
        Request(id="a", prompt=Prompt.of_parts([("p", 3)]), max_tokens=4),
        Request(id="b", prompt=Prompt.of_parts([("p", 8)]), max_tokens=2, arrival=1, abort_at=3),
    )


def tiny_run() -> Run:
    """One request of one token that generates one token."""
    config = configured(2, 2, 2, num_blocks=1)
    return run_of(config, request("a", 1, max_tokens=1))


# --- a reader of our own: what the format says, and nothing of how we write it ----------------


def plain(value: Any) -> Any:
    """ITF values as Python values: maps, sets, lists as tuples, large numbers."""
    match value:
        case {"#bigint": digits}:
            return int(digits)
        case {"#map": pairs}:
            return FrozenMap({plain(key): plain(held) for key, held in pairs})
        case {"#set": members}:
            return frozenset(map(plain, members))
        case list():
            return tuple(map(plain, value))
        case dict():
            return {name: plain(held) for name, held in value.items()}
    return value


def state_of(moment: Json) -> State:
    values = {name: plain(moment[name]) for name in fields_dict(State)}
    keys = {block: bytes.fromhex(key) for block, key in values["pool"]["keys"].items()}
    cached = {bytes.fromhex(key): blocks for key, blocks in values["pool"]["cached"].items()}
    pool = BlockPool(**values["pool"] | {"keys": FrozenMap(keys), "cached": FrozenMap(cached)})
    queues = {
        name: tuple(Sequence(**one) for one in values[name])
        for name in ("waiting", "prefilling", "decoding", "paused")
    }
    slot = {"prefilling": queues["prefilling"][0] if queues["prefilling"] else None}
    return State(**values | {"pool": pool} | queues | slot)


def traced(steps: Iterable[Step], violation: Violation | None = None) -> Json:
    return itf_trace(CODEC, steps, violation)


def actions(trace: Json) -> list[str]:
    return [moment["action"] for moment in trace["states"]]


# --- tests ------------------------------------------------------------------------------------


def test_states_of_an_itf_trace_are_those_of_the_run() -> None:
    run = sharing_run()
    moments = traced(run.steps)["states"]

    after = [state_of(moment) for moment in moments if "step" in moment["#meta"]]
    between = [state_of(moment) for moment in moments if "step" not in moment["#meta"]]

    assert after == [step.after for step in run.steps]
    assert between == [run.steps[index].before for index in (0, 1, 3)]


def test_arrivals_and_aborts_are_moments_of_their_own() -> None:
    trace = traced(sharing_run().steps)

    assert actions(trace)[:7] == [
        "init",
        "prefill",
        "environment",
        "decode",
        "prefill",
        "environment",
        "decode",
    ]
    assert [moment["#meta"]["index"] for moment in trace["states"]] == list(
        range(len(trace["states"]))
    )


def test_every_state_gives_every_variable() -> None:
    trace = traced(sharing_run().steps)

    assert {tuple(moment)[1:] for moment in trace["states"]} == {tuple(trace["vars"])}


def test_violation_stands_in_the_description_of_the_trace() -> None:
    trace = traced(tiny_run().steps, Violation("LIF-1", "Nothing is lost.", "a is gone"))

    assert trace["#meta"]["status"] == "violation"
    assert trace["#meta"]["rule"] == "LIF-1"
    assert trace["#meta"]["says"] == "Nothing is lost."
    assert "loop" not in trace


@pytest.mark.parametrize(
    ("step", "state", "action"),
    [(0, 0, "init"), (1, 2, "environment"), (2, 3, "decode"), (3, 5, "environment")],
)
def test_loop_goes_back_to_the_state_that_its_first_step_starts_from(
    step: int, state: int, action: str
) -> None:
    trace = itf_trace(
        CODEC, sharing_run().steps, Violation("LIF-2", "All end.", "b waits", loop=step)
    )

    assert trace["loop"] == state
    assert actions(trace)[state] == action


def test_state_that_no_step_follows_is_the_last_moment() -> None:
    run = tiny_run()
    machine = SpyreMachine.of(run.config, [*run.requests, request("b", 1, max_tokens=1)])
    end = machine.arrive(run.steps[-1].after, "b")

    trace = itf_trace(
        CODEC, run.steps, Violation("LIF-1", "Nothing is lost.", "b is gone", state=end)
    )

    assert actions(trace) == ["init", "prefill", "environment"]
    assert state_of(trace["states"][-1]) == end


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**53 - 1, 9007199254740991),
        (2**53, {"#bigint": "9007199254740992"}),
        (-(2**53), {"#bigint": "-9007199254740992"}),
        (True, True),
        (b"\x00\xff", "00ff"),
        (frozenset({"b", "a"}), {"#set": ["a", "b"]}),
        ({1: ("x", 2)}, {"#map": [[1, ["x", 2]]]}),
    ],
)
def test_value_in_itf(value: Any, written: Any) -> None:
    assert itf_value(value) == written


def test_value_that_itf_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="no ITF value for float"):
        itf_value(0.5)


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_of_every_policy_are_itf_traces(policy: str) -> None:
    requests = (request("a", 3, max_tokens=4), request("b", 9, max_tokens=2))
    case = Case(claims_of(policy).config(), requests)

    trace = itf_trace(presentation_of(policy).codec, served(case))

    assert len(trace["states"]) > 4
    assert all(set(state) - {"#meta"} == set(trace["vars"]) for state in trace["states"])
    assert "null" not in json.dumps(trace)
