"""Driver of nano-vllm-voxcpm: nano-vLLM's scheduler in a speech server, step by step.

Its scheduler treats a fully cached prompt differently, and clients may abort. The driver needs
numpy and xxhash; it imports neither the model nor its adapters (LoRA), which may keep requests from
a step. The order of calls is that of `LLMEngineBase.step`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lockstep_driver import END_OF_SEQUENCE, Json, serve

import nano_vllm

DISTRIBUTION, PACKAGE = "nano-vllm-voxcpm", "nanovllm_voxcpm"


class VoxCpm(nano_vllm.NanoVllm):
    """The released scheduler, new in each episode."""

    about: ClassVar[Json] = nano_vllm.HELLO | {
        "name": DISTRIBUTION,
        "config": {**nano_vllm.HELLO["config"], "full_hit": ["last_decoded"]},
        "abilities": ["abort", "ends", "order"],
    }
    modules: ClassVar[Mapping[str, str]] = {
        name: module for name, module in nano_vllm.MODULES.items() if name != "SamplingParams"
    }
    needed: ClassVar[Mapping[str, Iterable[str]]] = {
        **nano_vllm.NEEDED,
        "Scheduler": ("add", "schedule", "preempt", "cancel", "finish"),
    }

    def source(self) -> tuple[str, Path, str]:
        """Package, directory and release.

        Raises:
            SourceError: it is not installed.
        """
        return nano_vllm.installed(DISTRIBUTION, PACKAGE)

    def sequence(self, request_id: str) -> Any:
        """The request as a sequence of the scheduler."""
        prompt = list(self.requests[request_id]["prompt"])
        return self.engine.Sequence(request_id, prompt, self.block_size)

    def abort(self, request_id: str) -> None:
        """Abort a request, as `LLMEngineBase.cancel_sequence` does."""
        self.scheduler.cancel(request_id)

    def readings(self) -> Json:
        """The values of the configuration that the scheduler has."""
        return dict(self.about["config"])

    def postprocess(self, batch: Sequence[Any], tokens: Sequence[int], is_prefill: bool) -> None:
        """Append the tokens, then finish the stopped sequences, as `LLMEngineBase.step` does."""
        for sequence, token in zip(batch, tokens, strict=True):
            sequence.append_token(token)
            most = self.requests[sequence.request_id]["max_tokens"]
            sequence.stoped = token == END_OF_SEQUENCE or sequence.num_completion_tokens >= most
        for sequence in batch:
            if sequence.stoped:
                self.scheduler.finish(sequence)


if __name__ == "__main__":
    serve(VoxCpm)
