"""The driver of nano-vLLM on a stand-in for its checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.harness.driver.process import DRIVER_FILES

STAND_IN = Path(__file__).parent / "nano_stand_in"
NEWEST = Path(__file__).parent / "nano_stand_in_newest"  # what bb823b3 has otherwise
START: dict[str, Any] = {
    "do": "start",
    "config": {
        **{"block_size": 4, "num_blocks": 6, "max_num_seqs": 2},
        **{"max_num_batched_tokens": 32, "max_model_len": 32},
    },
    "requests": [
        {"id": "a", "prompt": [7] * 9, "max_tokens": 2, "output_len": 2, "output": [1, 2]},
        {"id": "b", "prompt": [7] * 4 + [8], "max_tokens": 3, "output_len": 1, "output": [3] * 3},
    ],
}


def driven(checkout: Path | None, *messages: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    variables = {name: text for name, text in os.environ.items() if name != "LOCKSTEP_NANO_VLLM"}
    if checkout is not None:
        variables["LOCKSTEP_NANO_VLLM"] = str(checkout)
    return subprocess.run(
        [sys.executable, str(DRIVER_FILES / "nano_vllm.py")],
        input="".join(f"{json.dumps(message)}\n" for message in messages),
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )


def without(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """The stand-in with another text in one place."""
    shutil.copytree(STAND_IN, tmp_path / "checkout")
    path = tmp_path / "checkout" / "nanovllm" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return tmp_path / "checkout"


def test_two_requests_are_served_from_the_checkout() -> None:
    """The second finds the first one's block, and its first token is its last."""
    steps = [{"arrive": ["a", "b"]}, {}, {}]

    done = driven(STAND_IN, START, {"do": "play", "steps": steps}, {"do": "stop"})

    hello, started, played = map(json.loads, done.stdout.splitlines())
    assert (hello["policy"], hello["release"]) == ("nano-vllm", "nano-vLLM of unknown commit")
    assert started == {"started": True}
    prefill, decode, idle = played["steps"]
    assert (prefill["kind"], prefill["scheduled"]) == ("prefill", {"a": 9, "b": 1})
    assert (prefill["outputs"], prefill["finished"]) == ({"a": [1], "b": [3]}, ["b"])
    assert prefill["block_tables"] == {"a": [0, 1, 2]}
    assert prefill["references"] == {"0": 1, "1": 1, "2": 1}
    assert prefill["cached"] == [["a", 0, 0], ["a", 1, 1]]
    assert (decode["kind"], decode["finished"]) == ("decode", ["a"])
    assert idle["kind"] == "idle"
    assert sorted(idle["free_list"]) == list(range(6))


def test_a_prompt_of_a_newest_checkout_is_served_in_parts(tmp_path: Path) -> None:
    """Nine tokens under a budget of five; the second, beside the last part, finds a block."""
    shutil.copytree(STAND_IN, tmp_path / "checkout")
    shutil.copytree(NEWEST, tmp_path / "checkout", dirs_exist_ok=True)
    start = START | {"config": START["config"] | {"max_num_batched_tokens": 5}}
    steps = [{"arrive": ["a", "b"]}, {}, {}]

    done = driven(tmp_path / "checkout", start, {"do": "play", "steps": steps}, {"do": "stop"})

    hello, _, played = map(json.loads, done.stdout.splitlines())
    assert hello["config"]["prefill"] == ["first_chunked"]
    assert (hello["config"]["hashing"], hello["config"]["full_hit"]) == (
        ["computed"],
        ["last_computed"],
    )
    first, second, third = played["steps"]
    assert [step["scheduled"] for step in played["steps"]] == [{"a": 5}, {"a": 4, "b": 1}, {"a": 1}]
    assert (first["outputs"], second["outputs"]) == ({}, {"a": [1], "b": [3]})
    assert (first["waiting"], first["running"]) == (["a", "b"], [])
    assert first["others"][0] | {"computed": 5, "prefill_len": 9} == first["others"][0]
    assert (first["block_tables"], first["keys"]) == ({"a": [0, 1, 2]}, [["a", 0, 0]])
    assert third["finished"] == ["a"]


def test_without_nano_vllm_the_driver_says_how_to_have_it(tmp_path: Path) -> None:
    unnamed, empty = driven(None), driven(tmp_path)

    assert unnamed.stderr == (
        "nano-vLLM: nano-vllm-npu is not installed; or set LOCKSTEP_NANO_VLLM to a checkout's"
        " directory\n"
    )
    assert empty.stderr == f"nano-vLLM: no nanovllm/engine/scheduler.py in {tmp_path}\n"
    assert unnamed.returncode == empty.returncode == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("engine/scheduler.py", "def postprocess", "def update", "Scheduler has no `postprocess`"),
        ("engine/scheduler.py", "self.waiting", "self.queue", "scheduler has no `waiting`"),
        ("engine/block_manager.py", "ref_count", "holders", "block has no `ref_count`"),
        ("engine/sequence.py", "num_cached_tokens", "cached", "sequence has no `num_cached_"),
        ("engine/sequence.py", "class Sequence", "class Request", "engine.sequence has no `Seq"),
        (
            "engine/scheduler.py",
            "token_ids: Seq[int])",
            "token_ids: Seq[int], drafts: int)",
            "Scheduler.postprocess takes `drafts`; this driver is written for commits 9e8507e to",
        ),
    ],
)
def test_a_checkout_that_lacks_something_is_refused_by_name(
    tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    checkout = without(tmp_path, file, old, new)

    done = driven(checkout, START, {"do": "play", "steps": [{"arrive": ["a"]}]})

    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
