"""What vLLM V0 tells is whole and adds up: in recordings, and in random episodes of the release."""

import ast
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import spec
import tests.recorded
from checks.harness.driver.client import DRIVER_FILES
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of
from tests.checks.drivers.v0_episodes import (
    Answer,
    Episode,
    Json,
    Live,
    faults,
    known_end,
    random_episode,
)

RECORDED = Path(next(iter(tests.recorded.__path__))) / "vllm_v0"
FILES = sorted(RECORDED.glob("*.jsonl"))
FIELDS = {
    *(
        "kind",
        "scheduled",
        "sampling",
        "cached_blocks",
        "lookahead_slots",
        "admitted",
        "swapped_in",
    ),
    *("preempted", "swapped_out", "ignored", "copies", "swaps_in", "swaps_out", "outputs"),
    *("finished", "aborted", "waiting", "running", "swapped", "rows", "block_tables"),
    *("cpu_block_tables", "blocks", "cpu_blocks", "cached"),
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


def test_the_recordings_show_every_kind_of_step_and_move() -> None:
    seen: Counter[str] = Counter()
    for path in FILES:
        for record in recorded(path)[2]:
            seen[record["kind"]] += 1
            moves = ("admitted", "preempted", "swapped_out", "swapped_in", "finished", "aborted")
            seen.update({name: len(record[name]) for name in moves})
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


def lose_a_block(records: list[Json]) -> None:
    records[1]["blocks"]["free_list"].pop()


def keep_a_block(records: list[Json]) -> None:
    records[-1]["cpu_blocks"]["references"]["0"] = 1


def share_a_block(records: list[Json]) -> None:
    tables = records[0]["block_tables"]
    tables["b"] = [*tables["b"][:-1], tables["a"][0]]


def sample_another(records: list[Json]) -> None:
    records[0]["outputs"]["a"] = [1]


def end_twice(records: list[Json]) -> None:
    records[-1]["finished"].append("a")


def compute_too_much(records: list[Json]) -> None:
    records[0]["scheduled"]["a"] += 100


def do_nothing(records: list[Json]) -> None:
    records[1]["scheduled"] = {}
    records[1]["swapped_out"] = []


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lose_a_block, "step 1: blocks: "),
        (keep_a_block, "cpu_blocks: 1 held and 8 free of 8"),
        (share_a_block, "step 0: blocks: not the requests' own"),
        (sample_another, "a was told [1, "),
        (end_twice, "a ended 2 times"),
        (compute_too_much, "step 0: 108 tokens, 0 of them cached"),
        (do_nothing, "step 1: nothing happens though somebody is there"),
    ],
)
def test_a_planted_fault_is_told(plant: Callable[[list[Json]], None], told: str) -> None:
    _, episode, records = recorded(RECORDED / "vllm-v0-swapped_and_aborted.jsonl")

    plant(records)

    assert any(told in fault for fault in faults(episode, Answer(records)))


def test_a_seed_is_an_episode() -> None:
    assert random_episode(5) == random_episode(5)
    assert len({str(random_episode(seed)) for seed in range(20)}) == 20


@pytest.mark.thorough
def test_in_hundreds_of_episodes_nothing_is_wrong_but_what_is_known() -> None:
    """Without swapping and chunks nothing at all; with them only ends that the facts describe."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    steps, plain, ends, wrong = 0, 0, Counter[str](), []
    with Live(command_of("vllm-v0")) as live:
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
