"""States of the compiled machine as states of the reference, and the other way round."""

from collections.abc import Sequence as Seq

import numpy as np
from attrs import frozen

from checks.policies.spyre.compiled import work
from checks.policies.spyre.compiled.admission import reserved_of
from checks.policies.spyre.compiled.packing import pack, unpack
from checks.policies.spyre.compiled.pool import held_blocks
from checks.policies.spyre.compiled.setting import Numbers, Setting
from checks.policies.spyre.compiled.work import NO_KEY, NOBODY, Work, new_work, prefill_len
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, IDLE, PREFILL
from spec.core.requests import BlockKey
from spec.core.sharing import FrozenMap
from spec.spyre.records import Context
from spec.spyre.state import Sequence, State

_KINDS = (IDLE, PREFILL, DECODE)


@frozen
class SpyreCodec:
    """Reads and writes the states of one instance; `ids` are its requests by number."""

    setting: Setting
    ctx: Context
    ids: Seq[str]

    def decoded(self, words: Numbers) -> State:
        """The state of the reference; its blocks are numbered in the order of the tables."""
        w = new_work(self.setting)
        unpack(self.setting, words, w)
        at = [int(one) for one in w.at]
        waiting, decoding, paused = (
            [int(one) for one in queue[: at[count]]]
            for queue, count in (
                (w.waiting, work.N_WAITING),
                (w.decoding, work.N_DECODING),
                (w.paused, work.N_PAUSED),
            )
        )
        slot = [] if at[work.SLOT] == NOBODY else [at[work.SLOT]]
        tables = self._tables(w, [*slot, *decoding, *paused])
        rows = {r: self._request(w, r, tables.get(r, ())) for r in (*waiting, *tables)}
        return State(
            last_kind=_KINDS[at[work.LAST_KIND]],
            last_tkv=at[work.LAST_TKV],
            pool=self._pool(w, tables),
            waiting=tuple(rows[r] for r in waiting),
            prefilling=rows[slot[0]] if slot else None,
            decoding=tuple(rows[r] for r in decoding),
            paused=tuple(rows[r] for r in paused),
            finished=self._in_phase(w, work.FINISHED),
            aborted=self._in_phase(w, work.ABORTED),
        )

    def _in_phase(self, w: Work, phase: int) -> frozenset[str]:
        return frozenset(one for one, found in zip(self.ids, w.phase, strict=True) if found == phase)

    def _tables(self, w: Work, admitted: Seq[int]) -> dict[int, tuple[int, ...]]:
        """The blocks of each admitted request; without caching they are numbered here."""
        held = {r: int(held_blocks(self.setting, w, r)) for r in admitted}
        if self.setting.caching:
            return {r: tuple(map(int, w.tables[r, :count])) for r, count in held.items()}
        tables, begin = {}, 1
        for r, count in held.items():
            tables[r] = tuple(range(begin, begin + count))
            begin += count
        return tables

    def _request(self, w: Work, r: int, blocks: tuple[int, ...]) -> Sequence:
        return Sequence(
            id=self.ids[r],
            prefill_len=int(prefill_len(self.setting, w, r)),
            computed=int(w.computed[r]),
            generated=int(w.generated[r]),
            left_padding=int(w.padding[r]) * self.setting.block_size,
            blocks=blocks,
            reserved=int(reserved_of(self.setting, w, r)),
            hit_blocks=int(w.hit[r]),
            waited_steps=int(w.waited[r]),
        )

    def _pool(self, w: Work, tables: dict[int, tuple[int, ...]]) -> BlockPool:
        size = self.setting.pool_blocks
        references: dict[int, int] = {}
        for table in tables.values():
            for block in table:
                references[block] = references.get(block, 0) + 1
        free = tuple(block for block in range(1, size + 1) if block not in references)
        keys: dict[int, BlockKey] = {}
        cached: dict[BlockKey, tuple[int, ...]] = {}
        if self.setting.caching:
            free = tuple(map(int, w.free[: w.at[work.N_FREE]]))
            contents = self._contents()
            filled = [block for block in range(1, size + 1) if w.content[block] != NO_KEY]
            keys = {block: contents[int(w.content[block])] for block in filled}
            for block in sorted(filled, key=lambda block: int(w.stamp[block])):
                cached[keys[block]] = (*cached.get(keys[block], ()), block)
        return BlockPool(size, free, FrozenMap(references), FrozenMap(keys), FrozenMap(cached))

    def _contents(self) -> dict[int, BlockKey]:
        """The contents by number."""
        found = {}
        for r, one in enumerate(self.ids):
            request = self.ctx.requests[one]
            count = (request.prompt_len + request.max_tokens) // self.setting.block_size
            for place, key in enumerate(self.ctx.keys.of(one, count)):
                found[int(self.setting.keys[r, place])] = key
        return found

    def encoded(self, state: State, words: int) -> Numbers:
        """The state in so many words.

        Raises:
            ValueError: it does not fit.
        """
        w = new_work(self.setting)
        self._fill(w, state)
        packed = np.zeros(words, np.int64)
        if not pack(self.setting, w, packed):
            raise ValueError(f"the state does not fit into {words} words")
        return packed

    def _fill(self, w: Work, state: State) -> None:
        number = {one: r for r, one in enumerate(self.ids)}
        w.at[work.LAST_KIND] = _KINDS.index(state.last_kind)
        w.at[work.LAST_TKV] = state.last_tkv
        prefilling = () if state.prefilling is None else (state.prefilling,)
        for phase, rows in (
            (work.WAITING, state.waiting),
            (work.PREFILLING, prefilling),
            (work.DECODING, state.decoding),
            (work.PAUSED, state.paused),
        ):
            for one in rows:
                self._fill_request(w, number[one.id], one, phase)
        for queue, count, rows in (
            (w.waiting, work.N_WAITING, state.waiting),
            (w.decoding, work.N_DECODING, state.decoding),
            (w.paused, work.N_PAUSED, state.paused),
        ):
            queue[: len(rows)] = [number[one.id] for one in rows]
            w.at[count] = len(rows)
        w.at[work.SLOT] = number[state.prefilling.id] if state.prefilling else NOBODY
        for one in state.finished:
            w.phase[number[one]] = work.FINISHED
        for one in state.aborted:
            w.phase[number[one]] = work.ABORTED
        self._fill_pool(w, state.pool)

    def _fill_request(self, w: Work, r: int, one: Sequence, phase: int) -> None:
        w.phase[r] = phase
        w.computed[r] = one.computed
        w.generated[r] = one.generated
        w.padding[r] = one.left_padding // self.setting.block_size
        w.waited[r] = one.waited_steps
        w.restart[r] = one.prefill_len - self.setting.prompt_len[r]
        w.hit[r] = one.hit_blocks
        w.tables[r, : len(one.blocks)] = one.blocks

    def _fill_pool(self, w: Work, pool: BlockPool) -> None:
        free = list(pool.free)
        w.at[work.N_FREE] = len(free)
        w.free[: len(free)] = free
        for block, count in pool.references.items():
            w.holders[block] = count
        numbers = {key: number for number, key in self._contents().items()}
        for key, blocks in pool.cached.items():
            for stamp, block in enumerate(blocks):
                w.content[block], w.stamp[block] = numbers[key], stamp
