"""The configuration of a Spyre scheduler: every key, its default and its range.

The keys are those of the configuration file. `released_2_6_3` gives the values under which
the machine behaves as sendnn-inference 2.6.3 does.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import frozen

from spec.core.blocks import block_count
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import Oversized, Request, refuse_above, refuse_too_long
from spec.spyre.padding import is_kept_length
from spec.spyre.reservation import released_pool_blocks
from spec.spyre.variants import (
    ADMISSIONS,
    READINGS,
    Account,
    Admission,
    AdmissionVariant,
    Queue,
    Reading,
)


@frozen(kw_only=True, field_transformer=checked_keys)
class SpyreConfig(PolicyConfig):
    """What a scheduler is configured with; lengths in tokens, times in simulated units.

    - `policy`: which scheduler; "spyre".
    - `block_size`: tokens per KV block.
    - `chunk_size`: prompt tokens per prefill step, a multiple of the block.
    - `max_model_len`: longest prompt plus output.
    - `keep_model_len`: a model length that some batch of fitting requests exceeds is refused.
    - `max_num_seqs`: requests in the batch, prefill included.
    - `max_batch_tkv_limit`: most tokens of batch size x max tkv.
    - `num_blocks`: KV blocks that requests can hold, the padding block not counted; None: enough
      for every slot at full length, or as many as 2.6.3 takes (`reading`).
    - `interleave`: a decode step between two prefill steps while requests decode.
    - `prefix_caching`: cached blocks of equal token prefixes are reused.
    - `admission`: the volume rule.
    - `queue`: which requests are looked at for admission.
    - `max_overtakes`: with `queue = aligned`, requests behind a waiting one that may go before it.
    - `reservation`: worst-case blocks are set aside at admission; else requests are preempted.
    - `pausing`: admit by slots alone, pause requests to keep the volume limit.
    - `long_output_first`: pausing serves those that generated most first, else fewest.
    - `oversized`: what becomes of a request that the limit or the pool can never serve.
    - `reading`: how blocks and tokens are accounted for where text and release differ.
    - `prefill_time`, `decode_time`: how long a step takes on the simulated clock.

    Raises:
        ConfigError: a value of the wrong type or outside its range, a chunk that is no multiple
            of the block, a model length that is not kept though `keep_model_len` asks for that,
            requests that may be paused, or that are never served, without reservation, an admission
            that is only half added.
    """

    MOST: ClassVar[Mapping[str, int]] = {"chunk_size": 2**20}
    LATER: ClassVar[tuple[str, ...]] = ("oversized",)

    policy: str = "spyre"
    block_size: int = 64
    chunk_size: int = 512
    max_model_len: int = 32_768
    keep_model_len: bool = False
    max_num_seqs: int = 32
    max_batch_tkv_limit: int = 131_072
    num_blocks: int | None = None
    interleave: bool = True
    prefix_caching: bool = True
    admission: Admission = Admission.EXACT
    queue: Queue = Queue.FCFS
    max_overtakes: int = 8_192
    reservation: bool = True
    pausing: bool = False
    long_output_first: bool = False
    oversized: Oversized = Oversized.REFUSED
    reading: Reading = Reading.TEXT
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.admission not in ADMISSIONS:
            raise ConfigError("admission", self.admission, ", ".join(ADMISSIONS))
        if self.chunk_size % self.block_size:
            allowed = f"a multiple of block_size ({self.block_size})"
            raise ConfigError("chunk_size", self.chunk_size, allowed)
        if self.keep_model_len and not is_kept_length(self.max_model_len, self.block_size):
            allowed = f"a multiple of block_size ({self.block_size}), one token more, or at most a"
            allowed += " block (keep_model_len): left padding takes a tkv to the end of a block"
            raise ConfigError("max_model_len", self.max_model_len, allowed)
        if self.may_pause and not self.reservation:
            # A paused request keeps its blocks; unreserved, they could be the ones lacking.
            allowed = "true, where requests may be paused (pausing, or admission = shipped)"
            raise ConfigError("reservation", self.reservation, allowed)
        if self.oversized is Oversized.QUEUED and not self.reservation:
            # Such a request would preempt itself in each step.
            raise ConfigError("reservation", self.reservation, "true, where oversized = queued")

    @property
    def pool_blocks(self) -> int:
        """KV blocks that requests can hold; if no number is configured, as the reading has it."""
        if self.num_blocks is not None or not self.account.rounds_pool:
            return super().pool_blocks
        return int(released_pool_blocks(self.max_num_seqs, self.max_model_len, self.block_size))

    @property
    def blocks_per_chunk(self) -> int:
        """Blocks of a prefill step."""
        return self.chunk_size // self.block_size

    @property
    def variant(self) -> AdmissionVariant:
        """What the configured admission means."""
        return ADMISSIONS[self.admission]

    @property
    def account(self) -> Account:
        """What the configured reading says."""
        return READINGS[self.reading]

    @property
    def is_judged_first(self) -> bool:
        """True if the last-chunk conditions are judged once, before a prompt's first chunk."""
        return self.variant.is_judged_first(interleave=self.interleave)

    @property
    def may_pause(self) -> bool:
        """True if a decode step may leave requests out to keep the volume limit.

        2.6.3 does so even with pausing switched off: the switch changes its admission only.
        """
        return self.pausing or self.variant.pauses


def released_2_6_3(**overrides: Any) -> SpyreConfig:
    """The configuration under which the machine behaves as sendnn-inference 2.6.3."""
    values: dict[str, Any] = {
        "admission": Admission.SHIPPED,
        "queue": Queue.OVERTAKING,
        "reservation": True,
        "pausing": True,
        "reading": Reading.RELEASED,
    }
    return SpyreConfig(**(values | overrides))


_AWAITED = ("grammar", "has_images")  # what a request may wait for before its prefill


def refuse_unservable(request: Request, config: SpyreConfig) -> None:
    """Raise if no scheduler could ever serve the request under this configuration.

    Where such ones are queued, only one that exceeds the model length is refused.

    Raises:
        WorkloadError: it exceeds the model length, the volume limit or the whole pool, or has a
            grammar or images where `queue = aligned`.
    """
    refuse_too_long(request, config, _AWAITED)
    for name in _AWAITED:
        if getattr(request, name) and config.queue is Queue.ALIGNED:  # others would wait for it
            raise WorkloadError(name, True, "false with queue = aligned")
    if config.oversized is Oversized.QUEUED:
        return
    total, limit = request.prompt_len + request.max_tokens, config.max_batch_tkv_limit
    tkv = "prompt_len + max_tokens - 1 (its largest tkv)"
    refuse_above(tkv, total - 1, "max_batch_tkv_limit", limit)
    blocks = block_count(total, config.block_size)
    refuse_above("blocks of prompt_len + max_tokens", blocks, "num_blocks", config.pool_blocks)
