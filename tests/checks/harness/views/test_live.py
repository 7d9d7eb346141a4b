"""A reference that a reader steps by hand."""

import json
import subprocess
import sys
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.pages.runtime import MODULE, sources
from checks.harness.views.live import Live, offer, policies
from checks.registry import POLICIES

ROOT = Path(__file__).parents[4]
Json = dict[str, Any]

SITUATION: Json = {
    "policy": "spyre",
    "config": {
        "block_size": 2,
        "chunk_size": 2,
        "max_model_len": 16,
        "max_num_seqs": 3,
        "max_batch_tkv_limit": 6,
        "num_blocks": 24,
        "admission": "documented",
    },
    "requests": [
        {"id": "0", "prompt_len": 1, "max_tokens": 5},
        {"id": "1", "prompt_len": 1, "max_tokens": 2},
    ],
}
BREAKS = ["arrive 0", "arrive 1", "step", "step", "step", "step"]


def opened(live: Live, **changes: Any) -> Json:
    answer: Json = json.loads(live.open(json.dumps(SITUATION | changes)))
    return answer


def frames(answer: Json) -> list[Json]:
    return [frame[0] for frame in answer["document"]["frames"]]


def test_without_actions_the_requests_are_served_as_they_say() -> None:
    requests = [{"id": "a", "prompt_len": 1, "max_tokens": 5, "output_len": 2, "arrival": 1}]

    answer = opened(Live(), requests=requests)

    assert answer["actions"] == ["arrive a", "step", "step, a ends"]
    assert frames(answer)[-1]["finished"] == ["a"]
    assert (answer["next"], answer["choices"]) == (None, [])


def test_a_counterexample_is_a_situation_and_its_rule_turns_broken() -> None:
    answer = opened(Live(), actions=BREAKS)

    last = frames(answer)[-1]
    assert (last["label"], last["kind"]) == ("step 3", "decode")
    assert dict(last["broken"])["SPY-VOL-1"] == "batch 2 x tkv 4 = 8, limit 6"
    exact = opened(Live(), actions=BREAKS, config=SITUATION["config"] | {"admission": "exact"})
    assert not any(frame["broken"] for frame in frames(exact))


@pytest.mark.parametrize(("policy", "name"), [("spyre", "released"), ("nano-vllm", "budget")])
def test_the_header_of_a_counterexample_is_a_situation(
    policy: str, name: str, tmp_path: Path
) -> None:
    named = {instance.name: instance for instance in machine_of(policy).instances}
    exploration = explore_instance(named[name])
    path = tmp_path / "found.jsonl"
    write_counterexample(exploration, exploration.findings[0], path)

    header = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
    answer = json.loads(Live().open(json.dumps(header)))

    assert exploration.findings[0].rule in dict(frames(answer)[-1]["broken"])


def test_what_may_come_next_is_offered_and_can_be_taken() -> None:
    live = Live()

    answer = opened(live, actions=BREAKS[:3])

    assert {"abort 0", "abort 1", "step"} <= {*answer["choices"]}
    for choice in answer["choices"]:
        after = opened(live, actions=[*BREAKS[:3], choice])
        assert after["actions"][-1] == choice
        assert len(frames(after)) == 5
    gone = opened(live, actions=[*BREAKS[:3], "abort 0"])
    assert frames(gone)[-1]["aborted"] == ["0"]


def test_a_step_back_and_on_gives_the_same_as_going_straight() -> None:
    live = Live()
    opened(live, actions=[*BREAKS[:4], "abort 1", "step"])
    opened(live, actions=BREAKS[:3])

    again = opened(live, actions=BREAKS)

    assert again == opened(Live(), actions=BREAKS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy": "none"}, "policy"),
        ({"config": {"block_sizes": 1}}, "block_sizes"),
        ({"requests": [{"id": "0", "max_tokens": 1}]}, "prompt"),
        ({"requests": [{"id": "0", "prompt_len": 90, "max_tokens": 1}]}, "max_model_len"),
        ({"actions": ["arrive 7"]}, "arrive 7"),
    ],
)
def test_what_cannot_be_is_refused_in_words(changes: Json, says: str) -> None:
    live = Live()
    opened(live)

    answer = opened(live, **changes)

    assert list(answer) == ["error"]
    assert says in answer["error"]
    assert "error" not in opened(live)


@pytest.mark.parametrize("policy", POLICIES)
def test_instances_of_every_policy_can_be_opened(policy: str) -> None:
    live = Live()

    offered = json.loads(offer(policy))

    assert len(offered["instances"]) == len(machine_of(policy).instances)
    for instance in offered["instances"]:
        answer = json.loads(live.open(json.dumps(instance)))
        assert "error" not in answer, (instance["title"], answer)
        assert len(answer["actions"]) >= 2


def test_the_module_that_the_browser_imports_is_this_one_and_in_its_sources() -> None:
    assert import_module(MODULE).Live is Live
    assert f"{MODULE.replace('.', '/')}.py" in ZipFile(BytesIO(sources())).namelist()


def test_it_needs_no_compiled_package() -> None:
    """In a browser there are none: neither numpy, nor a solver, nor what commands need."""
    program = f"""
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"numpy", "networkx", "z3", "click", "rich", "numba"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from checks.harness.views.live import Live, offer, policies
for name in json.loads(policies()):
    first = json.loads(offer(name))["instances"][0]
    answer = json.loads(Live().open(json.dumps(first)))
    print(name, len(answer["actions"]))
print(Live().open({json.dumps(json.dumps(SITUATION | {"actions": BREAKS}))}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    *names, last = done.stdout.splitlines()
    assert [line.split()[0] for line in names] == json.loads(policies())
    assert json.loads(last) == opened(Live(), actions=BREAKS)  # the same tokens, with numpy
