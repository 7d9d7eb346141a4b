"""The protocol of drivers: sent lines and refused answers."""

import json
from typing import Any

import pytest

from checks.harness.case import Case
from checks.harness.driver.protocol import (
    DriverError,
    failure_of,
    hello_of,
    play_line,
    played,
    start_line,
)
from checks.harness.system import Action, Hello
from spec.core.requests import Oversized
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission, Queue
from spec.vllm_v1.config import VllmV1Config
from tests.recorded.scenes import asks
from tests.refusals import refusal

HELLO: dict[str, Any] = {
    "format": "lockstep-driver",
    "version": 1,
    "name": "mine",
    "release": "mine 1.2",
    "config": {"admission": ["shipped"], "queue": ["fcfs", "overtaking"], "num_blocks": [None]},
    "abilities": ["abort"],
    "left_out": ["blocks"],
}


def hello(**changes: Any) -> Hello:
    return hello_of(json.dumps(HELLO | changes))


def test_what_a_driver_can_do_one_value_of_is_pinned_as_the_configuration_has_it() -> None:
    said = hello()

    oversized = {"oversized": Oversized.REFUSED}  # it does not name this newer key
    assert said.pinned == {"admission": Admission.SHIPPED, "num_blocks": None} | oversized
    assert said.pinned["admission"] is Admission.SHIPPED
    assert said.can_do(SpyreConfig(admission=Admission.SHIPPED, queue=Queue.OVERTAKING))
    assert not said.can_do(SpyreConfig(admission=Admission.EXACT))
    assert not said.can_do(SpyreConfig(admission=Admission.SHIPPED, num_blocks=8))


def test_a_driver_that_does_not_name_a_newer_key_is_asked_for_its_default() -> None:
    older = hello(policy="vllm-v1", config={}, left_out=[])
    newer = hello(policy="vllm-v1", config={"steps_in_flight": [0, 1]}, left_out=[])
    ahead = VllmV1Config(steps_in_flight=1)
    assert (older.can_do(VllmV1Config()), older.can_do(ahead)) == (True, False)
    assert newer.can_do(ahead)


def test_a_driver_may_know_all_values_of_a_newer_key() -> None:
    grouped = VllmV1Config(kv_groups="sliding 6")
    older, newer = (
        hello(policy="vllm-v1", config={}, left_out=[], any_value=names)
        for names in ([], ["kv_groups"])
    )
    assert (older.can_do(grouped), newer.can_do(grouped)) == (False, True)
    assert newer.can_do(VllmV1Config())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "other"}, "driver's format: found 'other'; allowed: lockstep-driver"),
        ({"version": 2}, "driver's version: found 2; allowed: 1"),
        ({"version": 1.0}, "driver's version: found 1.0"),
        ({"config": None}, "driver's config: found None"),
        ({"config": ["policy"]}, "driver's config: found"),
        ({"config": {"blocksize": [64]}}, "driver's config: found 'blocksize'; allowed: policy, "),
        ({"config": {"block_size": 16}}, "driver's config.block_size: found"),
        ({"config": {"block_size": ["16"]}}, "driver's config.block_size: found"),
        ({"config": {"block_size": [16.0]}}, "driver's config.block_size: found"),
        ({"config": {"num_blocks": [10**12]}}, "driver's config.num_blo"),
        ({"any_value": ["groups"]}, "driver's any_value: found 'groups'; allowed: policy, "),
        ({"abilities": ["fly"]}, "driver's abilities: found 'fly'; allowed: abort, abort_gone"),
        ({"abilities": None}, "driver's abilities: found None"),
        ({"abilities": [["abort"]]}, "driver's abilities[0]"),
        ({"left_out": ["pool"]}, "driver's left_out: found 'pool'; allowed: tkv, batch, blocks"),
        ({"left_out": [["tkv"]]}, "driver's left_out[0]"),
        ({"policy": ["spyre"]}, "driver's policy: found"),
        ({"policy": "x" * 10**6}, "driver's policy: found"),
        ({"name": 5}, "driver's name: found 5"),
    ],
)
def test_a_hello_that_is_none_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(DriverError, hello, **changes)


@pytest.mark.parametrize("line", ["", "nonsense", "[1]"])
def test_a_line_that_is_no_object_is_refused(line: str) -> None:
    with pytest.raises(DriverError, match="allowed: a JSON object"):
        hello_of(line)


def test_the_start_has_every_token_and_the_size_of_the_pool() -> None:
    config = SpyreConfig(block_size=4, chunk_size=8, max_model_len=16, max_num_seqs=2)

    line = start_line(Case(config, (asks("a", 3, 5, output_len=2),)), tensors=False)

    request = line["requests"][0]
    assert line["config"]["num_blocks"] == 8
    assert len(request["prompt"]) == 3
    assert (request["max_tokens"], request["output_len"]) == (5, 2)
    assert len(request["output"]) == 5
    json.dumps(line)


def test_an_action_says_only_what_it_does() -> None:
    actions = [Action(), Action(("a",), ("b",), ("c",)), Action(ends=())]

    assert play_line(actions) == {
        "do": "play",
        "steps": [{}, {"arrive": ["a"], "abort": ["b"], "abort_running": ["c"]}, {"ends": []}],
    }


def test_an_answer_is_records_or_an_error_or_both() -> None:
    error = {"type": "AssertionError", "message": "", "at": "scheduler.py:9 step: assert x"}

    both = played({"steps": [{}], "error": error})

    assert len(both.records) == 1
    assert str(both.failure) == "AssertionError (scheduler.py:9 step: assert x)"
    assert played({"steps": []}).failure is None
    assert str(failure_of("out of memory")) == "Error: out of memory"
    with pytest.raises(DriverError, match="driver's answer"):
        played({"records": []})
