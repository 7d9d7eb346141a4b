"""The configuration of a vLLM V1 scheduler, and the formulas of its text.

Source: vllm-v1, the sections named at each function; where only the released code says it, the
release. Lengths are in tokens; every formula takes integers or solver terms.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import lcm
from typing import Any, ClassVar

from attrs import frozen

from spec.core.arithmetic import Number, cdiv, every, floor_div, maximum, minimum, select
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.errors import ConfigError
from spec.core.requests import Oversized
from spec.vllm_v1.groups import GroupKind, KvGroup, parsed_groups
from spec.vllm_v1.modelled import Feature, refuse_unmodelled_beside
from spec.vllm_v1.releases import BEHAVIOURS, Behaviour, Release


class Scheduling(StrEnum):
    """The order of service and the choice of the victim.

    `fcfs`: in the order of arrival; the victim is the last of the running queue.
    `priority`: the lowest number, then the earliest arrival; the victim is the worst by both,
    which is how the text writes the victim down.
    """

    FCFS = "fcfs"
    PRIORITY = "priority"


class Connector(StrEnum):
    """The way to fetch keys and values that another instance computed.

    `none`: not at all. `sync`: within the step that admits the request. `async`: between steps,
    while the request waits and is not schedulable.
    """

    NONE = "none"
    SYNC = "sync"
    ASYNC = "async"


@frozen(kw_only=True, field_transformer=checked_keys)
class VllmV1Config(PolicyConfig):
    """The configuration of a vLLM V1 scheduler; lengths in tokens.

    - `policy`: which scheduler; "vllm-v1".
    - `block_size`: tokens per KV block.
    - `num_blocks`: KV blocks that requests can hold, the null block not counted; None: enough
      for every slot at full length.
    - `max_num_seqs`: requests in the running queue.
    - `max_num_batched_tokens`: the budget, tokens computed in one step; None: the text's default.
    - `max_model_len`: longest prompt plus output.
    - `chunked_prefill`: a prompt may be cut to what is left of the budget.
    - `long_prefill_token_threshold`: most tokens of one request in one step; 0 switches it off.
    - `scheduling`: which request is served first, and which is preempted.
    - `prefix_caching`: full blocks of equal token prefixes are reused.
    - `num_speculative_tokens`: draft tokens proposed for a request that decodes; 0 switches
      speculation off.
    - `num_lookahead_tokens`: slots set aside for a drafter with a KV cache of its own.
    - `drafter_reads_ahead`: the drafter also reads the token behind those that a step computes, as
      those of the EAGLE family do; so it needs the encoding of an image or audio a token earlier.
    - `accepted_drafts`: how many of a request's drafts are accepted each time, where the
      environment does not decide; None: all.
    - `connector`: how external keys and values are loaded.
    - `late_lookups`: the connector says only between two steps, some time after a request has
      arrived, what it has of it; until then the request is passed over.
    - `sends`: the connector sends the computed blocks of a request that leaves, to another
      instance; they are held until it has.
    - `reserve_full_prompt`: admit only if all tokens that the request has fit in the free blocks.
    - `steps_in_flight`: steps that are planned before the results of the one before them are
      known: 0, 1 (asynchronous scheduling), or as many as a pipeline has stages.
    - `pooling`: the model pools: a request has one result, which counts as its only token, and its
      prompt may be as long as the model.
    - `max_num_encoder_input_tokens`: tokens of images and audio that one step may encode; None: as
      many as the budget.
    - `encoder_cache_size`: tokens whose encodings the encoder cache holds; None: as many as the
      budget.
    - `disable_chunked_mm_input`: no step computes only a part of an image's or audio's tokens; what
      the releases make of it differs.
    - `kv_groups`: further groups of layers, each with a block table of its own, beside the first
      group, which has full attention: "full", "sliding" with the tokens of its window, or "mamba",
      with commas between them; "/" and a number give a group another block size.
    - `oversized`: what becomes of a request that the pool can never hold.
    - `release`: which release is followed where they differ.
    - `prefill_time`, `decode_time`: how long a step takes on the simulated clock; one that
      computes any part of a prompt takes the former.

    Raises:
        ConfigError: a value of the wrong type or outside its range, what a connector does without
            one, a feature beside what is not modelled beside it (`spec/vllm_v1/modelled.py`), or a
            drafter that reads ahead without drafts.
    """

    LEAST: ClassVar[Mapping[str, int]] = {
        "max_model_len": 2,
        "long_prefill_token_threshold": 0,
        "num_speculative_tokens": 0,
        "num_lookahead_tokens": 0,
        "accepted_drafts": 0,
        "steps_in_flight": 0,
    }
    MOST: ClassVar[Mapping[str, int]] = {"steps_in_flight": 4}
    LATER: ClassVar[tuple[str, ...]] = (
        "drafter_reads_ahead",
        "steps_in_flight",
        "late_lookups",
        "sends",
        "oversized",
        "pooling",
        "kv_groups",
    )

    policy: str = "vllm-v1"
    block_size: int = 16
    num_blocks: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int = 8_192
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling: Scheduling = Scheduling.FCFS
    prefix_caching: bool = True
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    drafter_reads_ahead: bool = False
    accepted_drafts: int | None = None
    connector: Connector = Connector.NONE
    late_lookups: bool = False
    sends: bool = False
    reserve_full_prompt: bool = True
    steps_in_flight: int = 0
    pooling: bool = False
    max_num_encoder_input_tokens: int | None = None
    encoder_cache_size: int | None = None
    disable_chunked_mm_input: bool = False
    kv_groups: str | None = None
    oversized: Oversized = Oversized.REFUSED
    release: Release = Release.V0_28_0
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        PolicyConfig.__attrs_post_init__(self)
        for name in ("late_lookups", "sends"):
            if getattr(self, name) and self.connector is Connector.NONE:
                raise ConfigError(name, True, "false without a connector")
        has_groups = self.kv_groups is not None
        there = {
            Feature.POOLING: self.pooling,
            Feature.STEPS_IN_FLIGHT: self.steps_in_flight > 0,
            Feature.SEVERAL_STEPS_IN_FLIGHT: self.steps_in_flight > 1,
            Feature.GROUPS: has_groups,
            Feature.GROUPS_OF_STATES: self.has_states,
            Feature.GROUPS_WITH_CONNECTOR: has_groups and self.connector is not Connector.NONE,
            Feature.READING_AHEAD: self.drafter_reads_ahead,
        }
        for feature in (feature for feature, is_there in there.items() if is_there):
            refuse_unmodelled_beside(feature, self)
        if self.drafter_reads_ahead and not self.num_speculative_tokens:
            raise ConfigError("drafter_reads_ahead", True, "false where there are no drafts")

    def derived(self) -> dict[str, Any]:
        """Default values of keys that need not be configured."""
        return {
            **super().derived(),
            "max_num_batched_tokens": self.token_budget,
            "max_num_encoder_input_tokens": self.encoder_budget,
            "encoder_cache_size": self.encoder_capacity,
        }

    @property
    def token_budget(self) -> int:
        """Most tokens that one step may compute."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return int(default_batched_tokens(self.max_model_len))

    @property
    def encoder_budget(self) -> int:
        """Most tokens that one step may encode."""
        return self.max_num_encoder_input_tokens or self.token_budget

    @property
    def encoder_capacity(self) -> int:
        """Most tokens whose encodings are cached."""
        return self.encoder_cache_size or self.token_budget

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        """The groups of layers beside the first."""
        return () if self.kv_groups is None else parsed_groups(self.kv_groups, self.block_size)

    @property
    def first_group(self) -> KvGroup:
        """The layers with full attention."""
        return KvGroup(0, GroupKind.FULL, self.block_size)

    @property
    def all_groups(self) -> tuple[KvGroup, ...]:
        """The groups of layers, the first with full attention."""
        return (self.first_group, *self.groups)

    @property
    def has_states(self) -> bool:
        """True if a group has states."""
        return any(group.is_mamba for group in self.groups)

    @property
    def leaves_states(self) -> bool:
        """True if states that are read no more may be kept as long as their request.

        Without a step in flight no more than one such state is ever held.
        """
        is_late = self.steps_in_flight > 0 and not self.behaviour.retires_over_gaps
        return is_late and self.has_states

    @property
    def hit_alignment(self) -> int:
        """Tokens of which a prefix hit takes a multiple: whole blocks in each group."""
        return lcm(self.block_size, *(group.block_size for group in self.groups))

    @property
    def pool_blocks(self) -> int:
        """KV blocks of the pool; enough for every slot at full length in each group if absent."""
        if self.num_blocks is not None:
            return self.num_blocks
        sizes = (group.block_size for group in self.all_groups)
        return self.max_num_seqs * sum(int(cdiv(self.max_model_len, size)) for size in sizes)

    @property
    def uncertain_tokens(self) -> int:
        """Most tokens without results: those of a step, and of all that may be in flight."""
        return self.token_budget * (1 + self.steps_in_flight)

    @property
    def behaviour(self) -> Behaviour:
        """The choices of the release that is followed."""
        return BEHAVIOURS[self.release]

    @property
    def most_positions(self) -> int:
        """Positions of a running request that may be computed: not the last of the model length.

        The token that is sampled has the last; of a model that pools it is computed, too, from
        0.33.0 on.
        """
        is_whole = self.pooling and self.behaviour.pools_last_position
        return self.max_model_len if is_whole else self.max_model_len - 1

    def threshold_among(self, requests: int) -> int:
        """Most tokens of one request in a step, of so many that are present; 0: no limit."""
        is_spared = requests == 1 and not self.behaviour.threshold_binds_alone
        return 0 if is_spared else self.long_prefill_token_threshold

    @property
    def tokens_read_ahead(self) -> int:
        """Tokens that the drafter reads behind those that a step computes."""
        return 1 if self.drafter_reads_ahead else 0

    @property
    def frees_late(self) -> bool:
        """Blocks that a step in flight writes to are free only once its results have come.

        A load is not ordered against that step: it could be overwritten.
        """
        return self.steps_in_flight > 0 and self.connector is not Connector.NONE

    @property
    def leaves_one_token(self) -> bool:
        """A connector brings all tokens of a request but one, which is computed.

        It does within a step; and where groups have states, of which the last one is not behind
        that token.
        """
        return self.connector is Connector.SYNC or self.has_states

    @property
    def reserved_draft_slots(self) -> int:
        """Slots for its next step with drafts that a load leaves to a request, and to itself."""
        drafts = self.num_speculative_tokens
        if not drafts or not self.behaviour.loads_reserve_drafts:
            return 0
        return 1 + drafts + self.num_lookahead_tokens


# --- the budget -----------------------------------------------------------------------------


def default_batched_tokens(max_model_len: Number) -> Number:
    """The budget where none is configured (vllm-v1, "vLLM's Auto-Detection")."""
    return maximum(max_model_len, 2_048)


def capped_tokens(behind: Number, threshold: Number) -> Number:
    """`behind` tokens, cut to the threshold if it is on (vllm-v1, "Chunked Prefill")."""
    return select(every([threshold > 0, threshold < behind]), threshold, behind)


def running_tokens(
    tokens: Number,
    drafts: Number,
    computed: Number,
    threshold: Number,
    budget: Number,
    positions: Number,
) -> Number:
    """New tokens of a running request: all uncomputed ones and drafts, up to the limits.

    `positions`: those that may be computed. Source: vllm-v1, "Token Budget Management"; that the
    last position of the model length is not computed is vLLM 0.28.0's.
    """
    behind = capped_tokens(tokens + drafts - computed, threshold)
    return minimum(behind, budget, positions - computed)


def is_last_in_flight(
    computed: Number, placeholders: Number, prompt_len: Number, max_tokens: Number
) -> Number:
    """True if a step in flight brings the last token that the request may have.

    Of the tokens that are awaited one is certain, the others stand for drafts (vLLM 0.28.0).
    """
    certain = computed + 2 - placeholders
    return every([placeholders > 0, certain >= prompt_len + max_tokens])


def waiting_tokens(tokens: Number, computed: Number, threshold: Number, budget: Number) -> Number:
    """New tokens of a waiting request, `computed` of whose tokens are cached already.

    Source: vllm-v1, "What Counts Toward num_batched_tokens?".
    """
    return minimum(capped_tokens(tokens - computed, threshold), budget)


# --- blocks ---------------------------------------------------------------------------------


def hit_blocks_at_most(tokens: Number, block_size: Number) -> Number:
    """Blocks that a prefix hit may cover: full ones, and one token is left to compute.

    Source: vllm-v1, "Prefix Caching"; vLLM 0.28.0 limits the hit to `num_tokens - 1`.
    """
    return floor_div(tokens - 1, block_size)


def slots_end(tokens: Number, lookahead: Number, max_model_len: Number) -> Number:
    """Positions that need a slot after a step that computes up to `end` tokens.

    Source: vllm-v1, "Memory Management & Preemption".
    """
    return minimum(tokens + lookahead, max_model_len)


def largest_end(
    prompt_len: Number, max_tokens: Number, drafts: Number, lookahead: Number, max_model_len: Number
) -> Number:
    """Positions that a request may ever need a slot for: its last token is never computed."""
    return minimum(prompt_len + max_tokens - 1 + drafts + lookahead, max_model_len)


# --- speculation ----------------------------------------------------------------------------


def rolled_back(computed: Number, drafts: Number, accepted: Number) -> Number:
    """Computed tokens once the rejected drafts are taken off (vllm-v1, "Rollback Logic")."""
    return computed - (drafts - accepted)


# --- the pool -------------------------------------------------------------------------------


def valid_after_loss(start: Number, end: Number, came: Number, block_size: Number) -> Number:
    """Tokens that count as computed when a load of those from `start` to `end` is lost.

    `came`: its first tokens that came nevertheless. They count in whole blocks, and those of the
    last block never: it is the one that is missing at least. `start`: a multiple of the block.
    """
    whole = floor_div(minimum(came, end - 1), block_size) * block_size
    return minimum(maximum(start, whole), end)


def profiled_blocks(free_bytes: Number, bytes_per_block: Number) -> Number:
    """Blocks that fit in nine tenths of the free memory ("Memory Limit: KV Cache Blocks")."""
    return floor_div(free_bytes * 9, bytes_per_block * 10)
