"""States of the compiled machine as states of the reference, and the other way round."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from attrs import frozen

from checks.explore.instance import Instance
from checks.policies.spyre.compiled import names
from checks.policies.spyre.compiled.names import AT, NO_KEY, NO_REQUEST
from checks.policies.spyre.compiled.packing import pack, unpack
from checks.policies.spyre.compiled.setting import (
    Numbers,
    Setting,
    Work,
    block_contents,
    compiled_setting,
    new_work,
)
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import BlockPool, block_count
from spec.core.records import DECODE, IDLE, PREFILL
from spec.core.requests import BlockKey
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.reservation import promised_blocks, worst_case_blocks
from spec.spyre.state import Sequence, State

_KINDS = (IDLE, PREFILL, DECODE)


@frozen(slots=False)
class SpyreCodec:
    """Reads and writes the packed states of an instance."""

    instance: Instance[SpyreConfig]
    ctx: Context

    @cached_property
    def setting(self) -> Setting:
        """The configuration as the compiled machine has it."""
        return compiled_setting(self.instance, self.ctx)

    @cached_property
    def ids(self) -> list[str]:
        """The requests, by number."""
        return [request.id for request in self.instance.requests]

    @cached_property
    def _contents(self) -> dict[BlockKey, int]:
        return block_contents(self.ctx, self.instance)

    # --- from words -------------------------------------------------------------------------------

    def decoded(self, words: Numbers) -> State:
        """The state of the reference; its blocks are numbered in the order of the tables."""
        w = new_work(self.instance, self.ctx)
        unpack(self.setting, words, w)
        at = w[AT].tolist()
        waiting = w[names.IN_QUEUE, : at[names.N_WAITING]].tolist()
        decoding = w[names.IN_BATCH, : at[names.N_DECODING]].tolist()
        paused = w[names.IN_PAUSE, : at[names.N_PAUSED]].tolist()
        slot = [] if at[names.SLOT] == NO_REQUEST else [at[names.SLOT]]
        tables = self._tables(w, [*slot, *decoding, *paused])
        rows = {r: self._request(w, r, tables.get(r)) for r in (*waiting, *tables)}
        return State(
            last_kind=_KINDS[at[names.LAST_KIND]],
            last_tkv=at[names.LAST_TKV],
            pool=self._pool(w, tables),
            waiting=tuple(rows[r] for r in waiting),
            prefilling=rows[slot[0]] if slot else None,
            decoding=tuple(rows[r] for r in decoding),
            paused=tuple(rows[r] for r in paused),
            finished=self._in_phase(w, names.FINISHED),
            aborted=self._in_phase(w, names.ABORTED),
            orphaned=at[names.ORPHANED],
        )

    def _in_phase(self, w: Work, phase: int) -> frozenset[str]:
        return frozenset(id_ for r, id_ in enumerate(self.ids) if w[names.PHASE, r] == phase)

    def _tables(self, w: Work, admitted: list[int]) -> dict[int, tuple[int, ...]]:
        """The blocks of each admitted request; without caching they are numbered here."""
        size = self.ctx.config.block_size
        held = {r: block_count(int(w[names.COMPUTED, r]), size) for r in admitted}
        if self.ctx.config.prefix_caching:
            return {r: tuple(w[names.TABLES + r, :count].tolist()) for r, count in held.items()}
        tables, begin = {}, 1
        for r, count in held.items():
            tables[r] = tuple(range(begin, begin + count))
            begin += count
        return tables

    def _request(self, w: Work, r: int, blocks: tuple[int, ...] | None) -> Sequence:
        """`blocks`: its table if it was admitted."""
        config, request = self.ctx.config, self.ctx.requests[self.ids[r]]
        reserved = 0
        if config.reservation and blocks is not None:
            size = config.block_size
            worst_case = worst_case_blocks(request.prompt_len, request.max_tokens, size)
            reserved = promised_blocks(worst_case, held=len(blocks))
        return Sequence(
            id=request.id,
            prefill_len=request.prompt_len + int(w[names.RESTART, r]),
            computed=int(w[names.COMPUTED, r]),
            generated=int(w[names.GENERATED, r]),
            left_padding=int(w[names.PADDING, r]) * config.block_size,
            blocks=blocks or (),
            reserved=reserved,
            hit_blocks=int(w[names.HIT, r]),
            waited_steps=int(w[names.WAITED, r]),
        )

    def _pool(self, w: Work, tables: dict[int, tuple[int, ...]]) -> BlockPool:
        blocks = range(1, self.ctx.config.pool_blocks + 1)
        references: dict[int, int] = {}
        for table in tables.values():
            for block in table:
                references[block] = references.get(block, 0) + 1
        if not self.ctx.config.prefix_caching:
            free = tuple(block for block in blocks if block not in references)
            return BlockPool(len(blocks), free, FrozenMap(references), FrozenMap(), FrozenMap())
        contents = list(self._contents)
        filled = [block for block in blocks if w[names.CONTENT, block] != NO_KEY]
        keys = {block: contents[w[names.CONTENT, block]] for block in filled}
        cached: dict[BlockKey, tuple[int, ...]] = {}
        for block in sorted(filled, key=lambda block: int(w[names.STAMP, block])):
            cached[keys[block]] = (*cached.get(keys[block], ()), block)
        return BlockPool(
            len(blocks),
            free=tuple(w[names.FREE, : w[AT, names.N_FREE]].tolist()),
            references=FrozenMap(references),
            keys=FrozenMap(keys),
            cached=FrozenMap(cached),
        )

    # --- to words ---------------------------------------------------------------------------------

    def encoded(self, state: State, words: int) -> Numbers:
        """The state in this number of words.

        Raises:
            ValueError: it does not fit.
        """
        w = new_work(self.instance, self.ctx)
        w[AT, names.LAST_KIND] = _KINDS.index(state.last_kind)
        w[AT, names.LAST_TKV] = state.last_tkv
        w[AT, names.ORPHANED] = state.orphaned
        prefilling = () if state.prefilling is None else (state.prefilling,)
        for phase, queue, count, rows in (
            (names.WAITING, names.IN_QUEUE, names.N_WAITING, state.waiting),
            (names.DECODING, names.IN_BATCH, names.N_DECODING, state.decoding),
            (names.PAUSED, names.IN_PAUSE, names.N_PAUSED, state.paused),
        ):
            w[AT, count] = len(rows)
            w[queue, : len(rows)] = [self.ids.index(row.id) for row in rows]
            self._write(w, phase, rows)
        self._write(w, names.PREFILLING, prefilling)
        for row in prefilling:
            w[AT, names.SLOT] = self.ids.index(row.id)
        for phase, gone in ((names.FINISHED, state.finished), (names.ABORTED, state.aborted)):
            w[names.PHASE, [self.ids.index(request_id) for request_id in gone]] = phase
        self._write_pool(w, state.pool)
        packed = np.zeros(words, np.int64)
        if not pack(self.setting, w, packed):
            raise ValueError(f"the state does not fit into {words} words")
        return packed

    def _write(self, w: Work, phase: int, rows: Iterable[Sequence]) -> None:
        for row in rows:
            r = self.ids.index(row.id)
            w[names.PHASE, r] = phase
            w[names.COMPUTED, r] = row.computed
            w[names.GENERATED, r] = row.generated
            w[names.PADDING, r] = row.left_padding // self.ctx.config.block_size
            w[names.WAITED, r] = row.waited_steps
            w[names.RESTART, r] = row.prefill_len - self.ctx.requests[row.id].prompt_len
            w[names.HIT, r] = row.hit_blocks
            if self.ctx.config.prefix_caching:
                w[names.TABLES + r, : len(row.blocks)] = row.blocks

    def _write_pool(self, w: Work, pool: BlockPool) -> None:
        w[AT, names.N_FREE] = len(pool.free)
        if not self.ctx.config.prefix_caching:
            return
        w[names.FREE, : len(pool.free)] = list(pool.free)
        for block, count in pool.references.items():
            w[names.HOLDERS, block] = count
        for key, blocks in pool.cached.items():
            for stamp, block in enumerate(blocks):
                w[names.CONTENT, block], w[names.STAMP, block] = self._contents[key], stamp
