"""The compiled machine of a Spyre instance, for the explorer."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import define, evolve, field

from checks.explore.instance import Instance
from checks.policies.spyre.compiled import names
from checks.policies.spyre.compiled.codec import SpyreCodec
from checks.policies.spyre.compiled.moves import ABORT, ARGUMENT_BITS, ARRIVE, expand, open_goals
from checks.policies.spyre.compiled.packing import WORD_BITS, pack
from checks.policies.spyre.compiled.setting import Numbers, Setting, Work, new_work
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.state import State


@define(slots=False)
class SpyreCompiled:
    """Implements `CompiledModel`.

    By default states have the words that they need without block tables; with prefix caching they
    may need more. `claims`: the setting for which rules are judged, by default the instance's.
    """

    instance: Instance[SpyreConfig]
    ctx: Context
    words: int = field()
    claims: Setting | None = None
    _codec: SpyreCodec = field(init=False)
    _works: tuple[Work, Work, Work] = field(init=False)

    @words.default
    def _least_words(self) -> int:
        setting: Any = SpyreCodec(self.instance, self.ctx).setting
        bits = 2 + setting.tkv_bits + setting.orphan_bits + setting.requests * setting.request_bits
        return -(-int(bits) // WORD_BITS)

    def __attrs_post_init__(self) -> None:
        self._codec = SpyreCodec(self.instance, self.ctx)
        base, between, after = (new_work(self.instance, self.ctx) for _ in range(3))
        self._works = base, between, after

    @cached_property
    def most_edges(self) -> int:
        """One arrival or abort for each request, and one step for each set of early ends."""
        return len(self.instance.requests) + 2 ** len(self.instance.early_ends)

    def first(self) -> Numbers:
        """The initial state: no request has arrived."""
        words = np.zeros(self.words, np.int64)
        pack(self._codec.setting, new_work(self.instance, self.ctx), words)
        return words

    def another(self) -> "SpyreCompiled":
        """See `CompiledModel`."""
        return evolve(self)

    def expand(
        self,
        states: Numbers,
        first: int,
        last: int,
        targets: Numbers,
        sources: Numbers,
        actions: Numbers,
        broken: Numbers,
    ) -> int:
        """See `CompiledModel`."""
        claims = self._codec.setting if self.claims is None else self.claims
        edges = targets, sources, actions, broken
        return expand(self._codec.setting, claims, self._works, states, first, last, edges)

    @property
    def rules(self) -> Sequence[str]:
        """See `CompiledModel`."""
        return names.RULES

    @property
    def goals(self) -> Sequence[tuple[str, str]]:
        """See `CompiledModel`."""
        return [(rule, f"request {id_}") for rule in names.GOALS for id_ in self._codec.ids]

    def open_goals(self, states: Numbers, goals: Numbers) -> None:
        """See `CompiledModel`."""
        open_goals(self._codec.setting, self._works[0], states, goals)

    def label(self, action: int) -> str:
        """See `CompiledModel`."""
        ids, argument = self._codec.ids, action & ((1 << ARGUMENT_BITS) - 1)
        match action >> ARGUMENT_BITS:
            case kind if kind in (ARRIVE, ABORT):
                return f"{'arrive' if kind == ARRIVE else 'abort'} {ids[argument]}"
        ending = [id_ for number, id_ in enumerate(ids) if argument >> number & 1]
        return f"step, {' and '.join(ending)} ends" if ending else "step"

    def decoded(self, words: Numbers) -> State:
        """See `CompiledModel`."""
        return self._codec.decoded(words)

    def encoded(self, state: State) -> Numbers:
        """See `CompiledModel`."""
        return self._codec.encoded(state, self.words)
