"""Cases and targets that the tests of the fuzzer share."""

from collections.abc import Collection, Iterable
from typing import Any

from attrs import evolve, frozen
from checks.fuzz.cases import Case
from checks.fuzz.reference import ReferenceTarget, reference_target
from checks.fuzz.target import Subject

from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step


def request(id_: str, prompt_len: int, max_tokens: int, **more: Any) -> Request:
    prompt = Prompt.of_stream(f"prompt {id_}", prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, **more)


def case(*requests: Request, **config: Any) -> Case:
    """Blocks of 2 tokens, chunks of 4, unless it says otherwise."""
    small = {"block_size": 2, "chunk_size": 4, "max_model_len": 16, "max_num_seqs": 3}
    return Case(SpyreConfig(**{**small, **config}), requests)


@frozen
class Changed:
    """The reference, but for what it tells of a step: `change` gives fields other values."""

    target: ReferenceTarget
    change: Any

    def arrive(self, request_id: str) -> None:
        self.target.arrive(request_id)

    def abort(self, request_id: str) -> None:
        self.target.abort(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        step = self.target.step(index, time, ends)
        return evolve(step, **self.change(step))


def changed(change: Any, **more: Any) -> Subject:
    """A subject whose steps are told with these changes."""

    def make(config: SpyreConfig, requests: Iterable[Request]) -> Changed:
        return Changed(reference_target(config, requests), change)

    return Subject("changed", make, **more)
