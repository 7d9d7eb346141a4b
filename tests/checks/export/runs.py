"""Runs of the Spyre reference that the tests write down, and the files that they become."""

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from checks.export.trace.line import Violation
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.runs.serving import served
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step

Json = dict[str, Any]


@frozen
class Run:
    """A configuration, its requests and the steps in which the reference serves them."""

    config: SpyreConfig
    requests: tuple[Request, ...]
    steps: tuple[Step, ...]

    @property
    def by_id(self) -> dict[str, Request]:
        return {request.id: request for request in self.requests}


def run_of(config: SpyreConfig, *requests: Request) -> Run:
    return Run(config, requests, tuple(served(Case(config, requests))))


VIOLATION = Violation("SPY-VOL-1", "The volume never exceeds the limit.", "3 x 6 = 18 > 16")


def configured(block_size: int, chunk_size: int, max_model_len: int, **more: Any) -> SpyreConfig:
    """A configuration of Spyre; `more`: further keys."""
    return SpyreConfig(
        block_size=block_size, chunk_size=chunk_size, max_model_len=max_model_len, **more
    )


def tight_run() -> Run:
    """Two requests that share a prefix in a small pool; a third one's client goes away."""
    config = configured(2, 4, 12, max_num_seqs=2, max_batch_tkv_limit=24, num_blocks=6)
    return run_of(
        config,
        Request(id="a", prompt=Prompt.of_parts([("p", 3)]), max_tokens=3),
        Request(id="b", prompt=Prompt.of_parts([("p", 4), ("q", 1)]), max_tokens=2, arrival=2),
        Request(id="c", prompt=Prompt.of_tokens([7, 7]), max_tokens=1, arrival=2, abort_at=3),
    )


def written(run: Run, path: Path, violation: Violation | None = None, full: bool = True) -> Path:
    with TraceWriter(path, run.config, run.requests, full=full) as trace:
        for step in run.steps:
            trace.write(step)
        if violation is not None:
            trace.violated(violation)
    return path


def trace_lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]
