"""A server without rules: it serves random prompts in random order, with legal tensors only."""

import random
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from engine.spyre.device import DecodeInput, Device, PrefillInput
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.engine.device.batches import Row, decode_input, left_padding, prefill_input


@define
class Served:
    """One step: what the device was given, what it answered, what each row samples alone."""

    given: PrefillInput | DecodeInput
    tokens: list[int]
    alone: list[int]


@define
class Server:
    """Rows come, share cached blocks, decode in random subsets and leave; blocks are recycled."""

    config: SpyreConfig
    device: Device
    draw: random.Random
    rows: list[Row] = field(factory=list)
    _holders: Counter[int] = field(factory=Counter)
    _contents: dict[tuple[int, ...], int] = field(factory=dict)

    def steps(self, count: int) -> Iterator[Served]:
        """`count` rows are served one after the other, decode steps in between."""
        for _ in range(count):
            yield from self._admit()
            for _ in range(self.draw.randrange(6)):
                yield from self._decode()
            if self.draw.random() < 0.5:
                self._leave()

    def _admit(self) -> Iterator[Served]:
        """All chunks of a new row that are not cached, decode steps of the others between them."""
        while len(self.rows) == self.config.max_num_seqs:
            self._leave()
        row = self._new_row()
        size, chunk_size = self.config.block_size, self.config.chunk_size
        padding = left_padding(row.prompt_len, self.config)
        chunks = -(-(padding + row.prompt_len) // chunk_size)
        first = min((padding + row.cached * size) // chunk_size, chunks - 1)
        for chunk in range(first, chunks):
            given = prefill_input(self.config, row, chunk)
            tokens = self.device.prefill(given).tolist()
            yield Served(given, tokens, [self._alone(row)] if chunk == chunks - 1 else [])
            if self.draw.random() < 0.5:
                yield from self._decode()
        self._cache(row, len(row.tokens))
        row.tokens += tokens
        self.rows.append(row)

    def _new_row(self) -> Row:
        """A prompt out of few tokens and prefixes, with cached blocks where there are any."""
        size, most = self.config.block_size, self.config.max_model_len // 2
        prompt = [1 + at % 2 for at in range(self.draw.randrange(most))]
        prompt += [self.draw.randrange(3) for _ in range(self.draw.randrange(1, 9))]
        blocks = []
        for end in range(size, len(prompt), size):
            block = self._contents.get(tuple(prompt[:end]))
            if block is None:
                break
            blocks.append(block)
        self._holders.update(blocks)
        row = Row.of(prompt, blocks, cached=len(blocks))
        while len(row.blocks) * size < len(prompt):
            row.blocks.append(self._new_block())
        return row

    def _new_block(self) -> int:
        """A block without a holder; its content is dropped."""
        pool = range(1, self.config.pool_blocks + 1)
        block = self.draw.choice([free for free in pool if not self._holders[free]])
        self._contents = {key: held for key, held in self._contents.items() if held != block}
        self._holders[block] += 1
        return block

    def _decode(self) -> Iterator[Served]:
        """One step of some of the rows, in any order."""
        rows = self.draw.sample(self.rows, self.draw.randint(0, len(self.rows)))
        if not rows:
            return
        for row in rows:
            if len(row.tokens) > len(row.blocks) * self.config.block_size:
                row.blocks.append(self._new_block())
        given = decode_input(self.config, rows)
        tokens = self.device.decode(given).tolist()
        yield Served(given, tokens, [self._alone(row) for row in rows])
        for row, token in zip(rows, tokens, strict=True):
            self._cache(row, len(row.tokens))
            row.tokens.append(token)
            if len(row.tokens) == self.config.max_model_len:
                self._remove(row)

    def _alone(self, row: Row) -> int:
        """The next token of the row when it is served alone."""
        prompt = Prompt.of_tokens(row.tokens[: row.prompt_len])
        request = Request(id="alone", prompt=prompt, max_tokens=len(row.tokens))
        return request.output_token(len(row.tokens) - row.prompt_len)

    def _cache(self, row: Row, computed: int) -> None:
        """Full blocks can be found by others."""
        for index in range(computed // self.config.block_size):
            key = tuple(row.tokens[: (index + 1) * self.config.block_size])
            self._contents.setdefault(key, row.blocks[index])

    def _leave(self) -> None:
        if self.rows:
            self._remove(self.draw.choice(self.rows))

    def _remove(self, row: Row) -> None:
        self.rows.remove(row)
        self._holders.subtract(row.blocks)
