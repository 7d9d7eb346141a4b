"""Records of vLLM V0 are whole and add up: in recordings, and in random episodes of the release."""

import ast
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import spec
import tests.recorded
from checks.harness.driver.client import DRIVER_FILES
from tests.checks.drivers.v0_episodes import (
    Answer,
    Episode,
    Json,
    faults,
    installed_release,
    known_end,
    random_episode,
)

RECORDED = Path(next(iter(tests.recorded.__path__))) / "vllm_v0"
FILES = sorted(RECORDED.glob("*.jsonl"))
FIELDS = {
    *("kind", "scheduled", "sampling", "cached_blocks", "lookahead_slots", "admitted"),
    *("swapped_in", "preempted", "swapped_out", "ignored", "copies", "swaps_in", "swaps_out"),
    *("outputs", "finished", "aborted", "waiting", "running", "swapped", "rows"),
    *("block_tables", "cpu_block_tables", "blocks", "cpu_blocks", "cached"),
}
EPISODES = 600


def recorded(path: Path) -> tuple[Json, Episode, list[Json]]:
    """Header, episode and records of a recording."""
    header, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    actions = [line["action"] for line in lines]
    episode = Episode(header["config"], header["requests"], actions)
    return header, episode, [line["record"] for line in lines]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recording_has_every_field_and_nothing_wrong_in_it(path: Path) -> None:
    header, episode, records = recorded(path)

    assert (header["policy"], header["release"]) == ("vllm-v0", "vLLM 0.9.2")
    assert all(set(record) - {"before"} == FIELDS for record in records)
    assert list(faults(episode, Answer(records))) == []


def test_the_recordings_show_every_kind_of_step_and_transition() -> None:
    seen: Counter[str] = Counter()
    for path in FILES:
        for record in recorded(path)[2]:
            seen[record["kind"]] += 1
            names = ("admitted", "preempted", "swapped_out", "swapped_in", "finished", "aborted")
            seen.update({name: len(record[name]) for name in names})
            seen["hit"] += sum(record["cached_blocks"].values())

    kinds = ("prefill", "decode", "mixed", "swapped_out", "swapped_in", "aborted", "hit")
    assert [name for name in kinds if not seen[name]] == []


def test_the_chapter_names_every_field_and_every_key_of_a_configuration() -> None:
    chapter = (Path(spec.__file__).parent / "chapters" / "drivers.md").read_text(encoding="utf-8")
    tree = ast.parse((DRIVER_FILES / "vllm_v0.py").read_text(encoding="utf-8"))
    defaults = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "DEFAULTS" and node.value
    )
    keys = ast.literal_eval(defaults)

    assert len(keys) == 15
    assert [name for name in (*FIELDS, *keys) if f"`{name}`" not in chapter] == []


PLANTED: dict[str, Callable[[list[Json]], object]] = {
    "step 1: blocks: ": lambda own: own[1]["blocks"]["free_list"].pop(),
    "cpu_blocks: 1 held and 8 free of 8": lambda own: own[-1]["cpu_blocks"]["references"].update(
        {"0": 1}
    ),
    "step 0: blocks: not the requests' own": lambda own: own[0]["block_tables"].update(
        b=own[0]["block_tables"]["a"]
    ),
    "a got [1, ": lambda own: own[0]["outputs"].update(a=[1]),
    "a ended 2 times": lambda own: own[-1]["finished"].append("a"),
    "step 0: 108 tokens, 0 of them cached": lambda own: own[0]["scheduled"].update(a=104),
    "step 1: nothing happens though a request is there": lambda own: own[1].update(
        scheduled={}, swapped_out=[]
    ),
}


@pytest.mark.parametrize("says", PLANTED)
def test_a_planted_fault_is_found(says: str) -> None:
    _, episode, records = recorded(RECORDED / "vllm-v0-swapped_and_aborted.jsonl")

    PLANTED[says](records)

    assert any(says in fault for fault in faults(episode, Answer(records)))


def test_a_seed_is_an_episode() -> None:
    assert random_episode(5) == random_episode(5)
    assert len({str(random_episode(seed)) for seed in range(20)}) == 20


@pytest.mark.thorough
def test_in_hundreds_of_episodes_nothing_is_wrong_but_what_is_known() -> None:
    """Without swapping and chunks nothing at all; with them only ends that the facts describe."""
    steps, plain, ends, wrong = 0, 0, Counter[str](), []
    with installed_release() as live:
        for seed in range(EPISODES):
            episode = random_episode(seed)
            answer = live.serve(episode)
            steps += sum(bool(record["scheduled"]) for record in answer.records)
            config = episode.config
            is_plain = config.get("preemption_mode") != "swap" and not config["chunked_prefill"]
            plain += is_plain
            found, known = list(faults(episode, answer)), known_end(episode, answer)
            if found and (is_plain or known is None):
                wrong.append((seed, found[:2]))
            elif found:
                ends[str(known)] += 1

    assert wrong == []
    assert (steps > 5_000, plain > 150) == (True, True)
    assert {"priority with swapping", "never swapped in", "preempted for ever"} <= set(ends)
