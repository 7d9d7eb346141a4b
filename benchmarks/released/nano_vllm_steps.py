"""A step of nano-vLLM's scheduler, `schedule` plus `postprocess`, see `measuring`.

Waiting requests are held back by the budget of a prefill step: their prompts are a token longer
than it, and those of the rows are not. The sequence limit would not do, it is one on the batch.
"""

# mypy: disable-error-code="import-not-found"

from typing import Any

import measuring
import nano_vllm  # the driver's file: this environment has nothing else of ours

BLOCK = 256  # the least that it takes


class Measured:
    """The scheduler with room for all that the rows generate."""

    def __init__(self, rows: int, prompt_len: int, output_len: int) -> None:
        config = {
            "block_size": BLOCK,
            "num_blocks": rows * ((prompt_len + output_len) // BLOCK + 1),
            "max_num_seqs": rows,
            "max_num_batched_tokens": prompt_len - 1,
            "max_model_len": prompt_len + output_len,
        }
        self.live = nano_vllm.NanoVllm()
        self.live.start(config)
        self.schedule = self.live.scheduler.schedule

    def compute(self, scheduled: Any) -> list[int]:
        """A token for each sequence of the batch."""
        batch, _is_prefill = scheduled
        return self.live.sampled(batch)

    def update(self, scheduled: Any, tokens: list[int]) -> None:
        """The tokens are appended; who has ended leaves."""
        self.live.scheduler.postprocess(scheduled[0], tokens)

    def queues(self) -> tuple[int, int]:
        """How many run, and how many wait."""
        return len(self.live.scheduler.running), len(self.live.scheduler.waiting)


if __name__ == "__main__":
    measuring.main(Measured)
