"""The configuration of a vLLM V0 scheduler, and the formulas of its text.

Source: vllm-v0, the sections named at each function; where only the released code says it,
vLLM 0.9.2. Lengths are in tokens; every formula takes integers or solver terms.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from attrs import frozen

from spec.core.arithmetic import Number, cdiv, floor_div, maximum, minimum
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import Request, refuse_above, refuse_unserved
from spec.vllm_v0.variants import CHOICES, Choices, Reading, Strategy


class Scheduling(StrEnum):
    """In which order requests are served: as they arrive, or by priority and then arrival."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PreemptionMode(StrEnum):
    """How a group gives its blocks up.

    `recompute`: its progress is lost. `swap`: its blocks are copied to the CPU. `auto`: recompute
    with one sequence, swap with several (vllm-v0, "Preempting Sequences", "Decision Logic").
    """

    AUTO = "auto"
    RECOMPUTE = "recompute"
    SWAP = "swap"


@frozen(kw_only=True, field_transformer=checked_keys)
class VllmV0Config(PolicyConfig):
    """What a vLLM V0 scheduler is configured with; lengths in tokens.

    - `policy`: which scheduler; "vllm-v0".
    - `block_size`: tokens per KV block.
    - `num_blocks`: KV blocks of the GPU; None: enough for every slot at full length.
    - `num_cpu_blocks`: KV blocks of the CPU, for groups that are swapped out.
    - `max_num_seqs`: sequences in the running queue.
    - `max_num_batched_tokens`: the budget, uncached tokens computed in one step; None: the larger
      of the model length and 2,048.
    - `max_model_len`: longest prompt plus output.
    - `scheduling`: which request is served first, and which is preempted.
    - `strategy`: what a step may hold where prompts are not chunked.
    - `chunked_prefill`: the other strategy: decodes first, prompts cut to what is left.
    - `prefix_caching`: full blocks of equal token prefixes are shared.
    - `preemption_mode`: how a group gives its blocks up.
    - `watermark_blocks`: GPU blocks that admission and swapping in leave free.
    - `num_lookahead_slots`: slots of a decoding sequence beyond its known tokens.
    - `num_scheduler_steps`: decode steps that follow one decision; above 1, one more than
      `num_lookahead_slots`.
    - `max_num_partial_prefills`: unfinished prompts that share a budget.
    - `max_long_partial_prefills`: how many of them may be longer than the threshold.
    - `long_prefill_token_threshold`: above which a prompt is long; 0 with several partial prefills:
      a twenty-fifth of the model length.
    - `delay_factor`: how long prompts are held back, in durations of the last prefill step.
    - `max_loras`: adapters in one batch; 0: none are told apart.
    - `artificial_preemptions`: how often the check for free slots may fail without a reason, for
      testing.
    - `async_output`: output is processed while the next step runs, where the groups allow it.
    - `reading`: which account is followed where text and release differ.
    - `prefill_time`, `decode_time`: how long a step takes on the simulated clock; one that computes
      any part of a prompt takes the former.

    Raises:
        ConfigError: a value of the wrong type or outside its range, or keys that exclude each
            other.
    """

    LEAST: ClassVar[Mapping[str, int]] = {
        "block_size": 1,
        "num_blocks": 1,
        "num_cpu_blocks": 0,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "max_model_len": 2,
        "watermark_blocks": 0,
        "num_lookahead_slots": 0,
        "num_scheduler_steps": 1,
        "max_num_partial_prefills": 1,
        "max_long_partial_prefills": 1,
        "long_prefill_token_threshold": 0,
        "max_loras": 0,
        "artificial_preemptions": 0,
    }

    policy: str = "vllm-v0"
    block_size: int = 16
    num_blocks: int | None = None
    num_cpu_blocks: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int = 8_192
    scheduling: Scheduling = Scheduling.FCFS
    strategy: Strategy = Strategy.EXCLUSIVE
    chunked_prefill: bool = False
    prefix_caching: bool = False
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    watermark_blocks: int = 0
    num_lookahead_slots: int = 0
    num_scheduler_steps: int = 1
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0
    delay_factor: float = 0.0
    max_loras: int = 0
    artificial_preemptions: int = 0
    async_output: bool = False
    reading: Reading = Reading.REPAIRED
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if (
            self.num_scheduler_steps > 1
            and self.num_lookahead_slots != self.num_scheduler_steps - 1
        ):
            allowed = f"num_scheduler_steps - 1 ({self.num_scheduler_steps - 1})"
            raise ConfigError("num_lookahead_slots", self.num_lookahead_slots, allowed)
        is_whole = not self.chunked_prefill and self.token_budget < self.max_model_len
        if self.reading is Reading.RELEASED and is_whole:
            allowed = f"max_model_len ({self.max_model_len}) or more, as the release has it"
            raise ConfigError("max_num_batched_tokens", self.token_budget, allowed)
        if self.max_num_partial_prefills > 1 and not self.chunked_prefill:
            partial = self.max_num_partial_prefills
            raise ConfigError("max_num_partial_prefills", partial, "1 without chunked_prefill")
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            allowed = f"at most max_num_partial_prefills ({self.max_num_partial_prefills})"
            raise ConfigError("max_long_partial_prefills", self.max_long_partial_prefills, allowed)

    def derived(self) -> dict[str, Any]:
        """Keys that need not be configured, as the numbers that they come to."""
        return {**super().derived(), "max_num_batched_tokens": self.token_budget}

    @property
    def token_budget(self) -> int:
        """Most uncached tokens that one step may compute."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return int(maximum(self.max_model_len, 2_048))

    @property
    def choices(self) -> Choices:
        """What the reading says."""
        return CHOICES[self.reading]

    @property
    def is_multi_step(self) -> bool:
        """True if several decode steps follow one decision."""
        return self.num_scheduler_steps > 1

    @property
    def prompt_limit(self) -> int:
        """Longest prompt that is not ignored (vllm-v0, "handles very long prompts")."""
        if self.chunked_prefill and not self.is_multi_step:
            return self.max_model_len
        return min(self.max_model_len, self.token_budget)

    @property
    def long_threshold(self) -> int:
        """Tokens above which a prompt counts as long."""
        if self.long_prefill_token_threshold == 0:
            return self.max_model_len // 25
        return self.long_prefill_token_threshold


# --- blocks ---------------------------------------------------------------------------------


def prompt_blocks(slots: Number, encoder_len: Number, block_size: Number) -> Number:
    """Blocks that a waiting group needs for its slots and for what an encoder computes of it."""
    return cdiv(slots, block_size) + cdiv(encoder_len, block_size)


def touched_blocks(slots: Number, new_slots: Number, block_size: Number) -> Number:
    """Blocks that a table of `slots` tokens writes to when it gets `new_slots` more.

    The partial block at its end is one of them, whether it must be copied or not (vllm-v0,
    "Checking if More Slots Can Be Added"; the worst case of vLLM 0.9.2).
    """
    room = block_size - slots % block_size
    return 1 + cdiv(new_slots - room, block_size)


def swapped_blocks(full: Number, touched: Number, held: Number) -> Number:
    """Blocks that a table of `held` needs on another device, `full` ones and then `touched` ones.

    Source: vLLM 0.9.2, which leaves `held` out.
    """
    return maximum(full + touched, held)


# --- the budget -----------------------------------------------------------------------------


def uncached_tokens(new: Number, cached: Number) -> Number:
    """Tokens that must be computed of `new` ones, `cached` of which are cached: at least one.

    Source: vllm-v0, "Calculating New Cached & Uncached Tokens".
    """
    return maximum(new - cached, 1)


def chunk_of(new: Number, budget: Number, slot_budget: Number, block_size: Number) -> Number:
    """Tokens of a prompt that fit this step; `block_size` 1 without prefix caching.

    `budget`: what is left of the step's. `slot_budget`: a prompt's share of it. A chunk that does
    not end the prompt is a multiple of the block size (vllm-v0, "Chunking New Tokens Based on
    Budget").
    """
    return minimum(new, floor_div(minimum(budget, slot_budget), block_size) * block_size)


# --- lookahead ------------------------------------------------------------------------------


def lookahead_slots(is_prefill: bool, config: VllmV0Config) -> int:
    """Slots that a sequence gets beyond its known tokens (vllm-v0, "How Does Lookahead Work?")."""
    if not is_prefill:
        return config.num_lookahead_slots
    return config.num_lookahead_slots + 1 if config.is_multi_step and config.chunked_prefill else 0


# --- requests -------------------------------------------------------------------------------


def refuse_unservable(request: Request, config: VllmV0Config) -> None:
    """Raise if the request could outgrow the model; a prompt that is too long is ignored instead.

    A request that is preempted computes its answer again like a prompt; without chunks that must
    fit the budget, too.

    Raises:
        WorkloadError: prompt and output exceed the model length or, uncut, the budget, there are
            more sequences than may run, several are to sample several tokens a step, or an encoder
            reads what prefixes are cached of.
    """
    refuse_unserved(request, config, ("n", "lora", "encoder_len"))
    refuse_above("n", request.n, "max_num_seqs", config.max_num_seqs)
    if request.n > 1 and config.num_lookahead_slots:
        raise WorkloadError("n", request.n, "1 with num_lookahead_slots")
    if request.encoder_len and config.prefix_caching:
        raise WorkloadError("encoder_len", request.encoder_len, "0 with prefix_caching")
    if request.prompt_len <= config.prompt_limit:
        total = request.prompt_len + request.max_tokens
        refuse_above("prompt_len + max_tokens", total, "max_model_len", config.max_model_len)
        if total - 1 > config.prompt_limit:
            allowed = f"at most max_num_batched_tokens ({config.token_budget}) without chunks"
            raise WorkloadError("prompt_len + max_tokens - 1", total - 1, allowed)
