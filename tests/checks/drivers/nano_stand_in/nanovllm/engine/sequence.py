"""A request with its tokens and its blocks."""

from collections.abc import Sequence as Seq

from ..sampling_params import SamplingParams


class Sequence:
    block_size = 256

    def __init__(self, token_ids: Seq[int], params: SamplingParams) -> None:
        self.token_ids = list(token_ids)
        self.prompt_len = len(self.token_ids)
        self.params = params
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0  # of the newest interface alone
        self.block_table: list[int] = []
        self.is_finished = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return self.num_tokens - self.prompt_len

    @property
    def num_blocks(self) -> int:
        return -(-self.num_tokens // self.block_size)

    def block(self, index: int) -> list[int]:
        return self.token_ids[index * self.block_size : (index + 1) * self.block_size]
