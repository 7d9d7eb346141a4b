"""The timeline of a run: its spans and counters, and the fields that viewers need."""

import json
from pathlib import Path
from typing import Any

from checks.export.timeline import new_timeline
from checks.harness.case import Case
from checks.harness.runs.serving import served
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.checks.export.runs import configured
from tests.requests import request

CONFIG = configured(4, 8, 64, max_num_seqs=2, max_batch_tkv_limit=64)


def drawn(path: Path, config: SpyreConfig, *requests: Request) -> list[dict[str, Any]]:
    """The events of the file."""
    with new_timeline(
        path / "t.json", {request.id: request for request in requests}, config
    ) as timeline:
        for step in served(Case(config, requests)):
            timeline.observe(step)
    whole = json.loads((path / "t.json").read_text(encoding="utf-8"))
    assert whole["displayTimeUnit"] == "ms"
    return list(whole["traceEvents"])


def track(events: list[dict[str, Any]], name: str) -> list[tuple[str, float, float]]:
    """The spans of a request: name, begin and length, in units of the clock."""
    thread = next(
        event["tid"]
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == f"request {name}"
    )
    return [
        (event["name"], event["ts"] / 1000, event["dur"] / 1000)
        for event in events
        if event["ph"] == "X" and event["pid"] == 2 and event["tid"] == thread
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
    ends = [(event["name"], event["ts"] / 1000) for event in events if event["ph"] == "i"]
    assert ends == [("finished", 26), ("finished", 26)]


def test_the_steps_are_one_track_with_what_each_was(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 3, 2))

    steps = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(step["name"], step["ts"], step["dur"]) for step in steps] == [
        ("prefill", 0, 8000),
        ("decode", 8000, 1000),
    ]
    assert steps[0]["args"] == {"step": 0, "tkv": 3, "volume": 3, "request": "a"}
    assert steps[1]["args"] == {"step": 1, "tkv": 4, "volume": 4, "batch": 1}


def test_counters_follow_tkv_volume_free_blocks_and_the_queue(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 9, 3), request("b", 2, 2))

    counted: dict[str, list[tuple[float, int]]] = {}
    for event in events:
        if event["ph"] == "C":
            value = event["args"][event["name"]]
            counted.setdefault(event["name"], []).append((event["ts"] / 1000, value))
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
    assert sum(event["name"] == "aborted" for event in events) == 2


def test_a_turn_waits_from_its_own_arrival_on(tmp_path: Path) -> None:
    turn = request("b", 3, 1, after="a", arrival_time=2.0)
    events = drawn(tmp_path, CONFIG, request("a", 3, 2), turn)

    assert track(events, "b") == [("chunk 1 of 1", 11, 8)]


def test_a_paused_request_is_drawn_so(tmp_path: Path) -> None:
    config = SpyreConfig.from_mapping(
        CONFIG.as_mapping() | {"pausing": True, "max_batch_tkv_limit": 24, "max_num_seqs": 3}
    )
    events = drawn(tmp_path, config, *(request(name, 7, 6) for name in "abc"))

    names = [name for request_id in "abc" for name, _, _ in track(events, request_id)]
    assert "paused" in names
    assert names.count("chunk 1 of 1") == 3


def test_every_event_has_the_fields_that_viewers_need(tmp_path: Path) -> None:
    events = drawn(tmp_path, CONFIG, request("a", 9, 3), request("b", 2, 2))

    needed = {"X": {"ts", "dur", "tid"}, "C": {"ts", "args"}, "i": {"ts", "s"}, "M": {"args"}}
    assert {event["ph"] for event in events} == set(needed)
    for event in events:
        assert needed[event["ph"]] | {"name", "pid"} <= event.keys()


def test_a_timeline_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    try:
        with new_timeline(tmp_path / "t.json", {}, CONFIG):
            raise RuntimeError
    except RuntimeError:
        pass
    assert list(tmp_path.iterdir()) == []
