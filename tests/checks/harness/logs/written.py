"""Logs for the tests: what released schedulers did in recorded cases, as a server would log it."""

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from checks.harness.logs.reading import LogReader
from checks.harness.logs.watching import Watch

Json = dict[str, Any]
RECORDED = Path(__file__).parents[3] / "recorded"
AROUND = ("arrival", "arrival_s", "abort_at", "output_len", "output")  # the log itself says these
AROUND_A_STEP = (
    *("abort_running", "loaded", "lost", "sent", "answered", "compiled"),
    *("encoded", "unencodable"),
)
DECISIONS = ("scheduled", "outputs", "finished", "drafts", "admitted", "preempted", "statistics")


def log_lines(
    name: str,
    recorded: Collection[str] | None = None,
    change: Callable[[int, Json], None] = lambda _step, _record: None,
) -> Iterator[Json]:
    """The log of a recorded case; `recorded`: the fields that it has; `change`: a defect."""
    header, *lines = map(json.loads, (RECORDED / f"{name}.jsonl").read_text().splitlines())
    requests = {request["id"]: request for request in header["requests"]}
    external = {id_: held["tokens"] for id_, held in header.get("external", {}).items()}
    config = header["config"]
    kept = {} if recorded is None else {"recorded": list(recorded)}
    yield (
        {"format": "lockstep-log", "version": 1, "release": header["release"]}
        | kept
        | {
            "policy": config.get("policy", "spyre"),
            "config": config,
            "left_out": header["left_out"],
        }
    )
    steps = [line for line in lines if "record" in line]
    for index, line in enumerate(steps):
        action, record = line["action"], line["record"]
        for id_ in action.get("arrive", ()):
            known = {key: value for key, value in requests[id_].items() if key not in AROUND}
            yield {"arrive": known | ({"external": external[id_]} if id_ in external else {})}
        yield from ({"abort": id_} for id_ in action.get("abort", ()))
        change(index, record)
        if recorded is not None:
            record = {key: value for key, value in record.items() if key in recorded}
        yield {"step": record | {key: action[key] for key in AROUND_A_STEP if key in action}}


def write_log(path: Path, lines: Iterator[Json]) -> Path:
    """The log as a file."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def watched(path: Path) -> Watch:
    """The log, read to its end."""
    reader = LogReader(path)
    watch = Watch(reader.header)
    for entry in reader:
        watch.observe(entry)
    return watch
