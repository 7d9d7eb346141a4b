"""The timeline of a run: what is drawn where, and that it is a file which viewers open."""

import json
from pathlib import Path
from typing import Any

from checks.export.timeline import new_timeline
from checks.harness.case import Case
from checks.harness.serving import served
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.checks.export.runs import configured
from tests.requests import request

CONFIG = configured(4, 8, 64, max_num_seqs=2, max_batch_tkv_limit=64)


def drawn(path: Path, config: SpyreConfig, *requests: Request) -> list[dict[str, Any]]:
    """The events of the file."""
    with new_timeline(path / "t.json", {one.id: one for one in requests}, config) as timeline:
        for step in served(Case(config, requests)):
            timeline.observe(step)
    whole = json.loads((path / "t.json").read_text(encoding="utf-8"))
    assert whole["displayTimeUnit"] == "ms"
    return list(whole["traceEvents"])


def track(events: list[dict[str, Any]], name: str) -> list[tuple[str, float, float]]:
    """What a request did: the name, begin and length of each span, in units of the clock."""
    thread = next(
        one["tid"]
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == f"request {name}"
    )
    return [
        (one["name"], one["ts"] / 1000, one["dur"] / 1000)
        for one in events
        if one["ph"] == "X" and one["pid"] == 2 and one["tid"] == thread
    ]


def test_a_request_is_drawn_waiting_in_chunks_and_decoding(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 9, 3), request("b", 2, 2))

    # a: two chunks of 8 units, a token each of two decode steps, b's chunk between them.
    assert track(events, "a") == [
        ("chunk 1 of 2", 0, 8),
        ("chunk 2 of 2", 8, 8),
        ("decode", 16, 10),
    ]
    assert track(events, "b") == [("waiting", 0, 17), ("chunk 1 of 1", 17, 8), ("decode", 25, 1)]
    ends = [(one["name"], one["ts"] / 1000) for one in events if one["ph"] == "i"]
    assert ends == [("finished", 26), ("finished", 26)]


def test_the_steps_are_one_track_with_what_each_was(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 3, 2))

    steps = [one for one in events if one["ph"] == "X" and one["pid"] == 1]
    assert [(one["name"], one["ts"], one["dur"]) for one in steps] == [
        ("prefill", 0, 8000),
        ("decode", 8000, 1000),
    ]
    assert steps[0]["args"] == {"step": 0, "tkv": 3, "volume": 3, "request": "a"}
    assert steps[1]["args"] == {"step": 1, "tkv": 4, "volume": 4, "batch": 1}


def test_counters_follow_tkv_volume_free_blocks_and_the_queue(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 9, 3), request("b", 2, 2))

    counted: dict[str, list[tuple[float, int]]] = {}
    for one in events:
        if one["ph"] == "C":
            value = one["args"][one["name"]]
            counted.setdefault(one["name"], []).append((one["ts"] / 1000, value))
    assert set(counted) == {"tkv", "volume", "free blocks", "waiting"}
    assert counted["tkv"] == [(0, 9), (8, 9), (16, 10), (17, 2), (25, 11)]
    assert counted["volume"][-1] == (25, 22)
    assert counted["waiting"] == [(8, 1), (16, 1), (17, 1), (25, 0), (26, 0)]
    assert counted["free blocks"][-1] == (26, CONFIG.pool_blocks)


def test_a_request_that_goes_away_or_comes_late_has_its_track(tmp_path: Path) -> None:
    events = drawn(
        tmp_path,
        CONFIG,
        request("a", 3, 9, abort_at=3),
        request("b", 3, 2, arrival_time=2.5, abort_at=2),
    )

    assert track(events, "a") == [("chunk 1 of 1", 0, 8), ("decode", 8, 2)]
    assert track(events, "b") == [("waiting", 2.5, 6.5)]
    assert sum(one["name"] == "aborted" for one in events) == 2


def test_a_paused_request_is_drawn_so(tmp_path: Path) -> None:
    config = SpyreConfig.from_mapping(
        CONFIG.as_mapping() | {"pausing": True, "max_batch_tkv_limit": 24, "max_num_seqs": 3}
    )
    events = drawn(tmp_path, config, *(request(name, 7, 6) for name in "abc"))

    names = [name for one in "abc" for name, _, _ in track(events, one)]
    assert "paused" in names
    assert names.count("chunk 1 of 1") == 3


def test_every_event_has_what_viewers_ask_for(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 9, 3), request("b", 2, 2))

    needed = {"X": {"ts", "dur", "tid"}, "C": {"ts", "args"}, "i": {"ts", "s"}, "M": {"args"}}
    assert {one["ph"] for one in events} == set(needed)
    for one in events:
        assert needed[one["ph"]] | {"name", "pid"} <= one.keys()


def test_a_timeline_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    try:
        with new_timeline(tmp_path / "t.json", {}, CONFIG):
            raise RuntimeError
    except RuntimeError:
        pass
    assert list(tmp_path.iterdir()) == []
