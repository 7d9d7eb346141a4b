"""A step of sendnn-inference's scheduler, `schedule` plus `update_from_output`, see `measuring`.

The released model runner runs in between, unmeasured, with a model that computes nothing. Waiting
requests are held back by the number of slots.
"""

# mypy: disable-error-code="import-not-found"

from typing import Any

import measuring
import sendnn  # the driver's file: this environment has nothing else of ours

BLOCK = 64


class Measured:
    """The release as it comes, with a slot for each row and room for all that they generate."""

    def __init__(self, rows: int, prompt_len: int, output_len: int) -> None:
        longest = prompt_len + output_len + BLOCK
        config = {
            "chunk_size": 512,
            "max_model_len": 32_768,
            "max_num_seqs": rows,
            "max_batch_tkv_limit": 2 * rows * longest,
            "num_blocks": 2 * rows * longest // BLOCK,
            "interleave": True,
            "prefix_caching": True,
            "pausing": True,
            "long_output_first": False,
        }
        self.live = sendnn.Sendnn()
        self.live.start(config)
        self.schedule = self.live.scheduler.schedule
        self.update = self.live.scheduler.update_from_output

    def compute(self, scheduled: Any) -> Any:
        """The released model runner's part."""
        return self.live.execute(scheduled)

    def queues(self) -> tuple[int, int]:
        """How many run, and how many wait."""
        return len(self.live.scheduler.running), len(self.live.scheduler.waiting)


if __name__ == "__main__":
    measuring.main(Measured)
