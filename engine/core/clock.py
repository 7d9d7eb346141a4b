"""Work of a step and its duration on the simulated clock, for all policies.

A step costs a base, and more for the prompt tokens that it computes, the rows that decode, the
tokens that it reads from the KV cache and the pairs of tokens that it attends. The table `[cost]`
of a configuration sets these costs, in seconds or any other unit:

    [cost]
    prefill_time = 0.004
    decode_time = 0.018
    per_chunk_token = 0.00006
    per_row = 0.0001
    per_cached_token = 0.0000002
    per_attended_token = 0.00000001

Where neither a cost nor a step time is set, a policy has a default, `Presentation.cost`: `COUNTS`,
the published timeline of Spyre, or `GPU_ESTIMATE`.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Self

from attrs import asdict, field, fields, frozen

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import PREFILL


@frozen(kw_only=True)
class CostModel:
    """The duration of a step as a sum of costs, in units of the simulated clock.

    - `prefill_time`, `decode_time`: per step of this kind; an idle step takes `decode_time`.
    - `per_chunk_token`: per prompt token that a prefill step computes. Tokens of cached blocks that
      are recomputed count, padding does not.
    - `per_row`: per row of a decode step.
    - `per_cached_token`: per token that a prefill or a decode reads from the KV cache.
    - `per_attended_token`: per pair of a computed token and a token that it attends to, itself
      included.

    Raises:
        ConfigError: a cost is negative or not a finite number.
    """

    prefill_time: float = 8.0
    decode_time: float = 1.0
    per_chunk_token: float = 0.0
    per_row: float = 0.0
    per_cached_token: float = 0.0
    per_attended_token: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"cost.{name}", value, "a number")
            if not 0 <= value < inf:  # `not` also catches NaN
                raise ConfigError(f"cost.{name}", value, "0 or more")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], config: PolicyConfig) -> Self:
        """The table `[cost]`; step times that it lacks come from the configuration, others are 0.

        Raises:
            ConfigError: an unknown key, or a cost that is negative or not a finite number.
        """
        known = [key.name for key in fields(cls)]
        for name, value in values.items():
            if name not in known:
                allowed = f"a key out of {', '.join(known)}"
                raise ConfigError(f"cost.{name}", value, allowed)
        times = {"prefill_time": config.prefill_time, "decode_time": config.decode_time}
        return cls(**times | dict(values))

    def as_mapping(self, config: PolicyConfig) -> dict[str, float]:
        """The shortest table `[cost]` that makes this model beside the configuration."""
        usual = asdict(self.from_mapping({}, config))
        return {name: cost for name, cost in asdict(self).items() if cost != usual[name]}


COUNTS = CostModel()
"""Units of the published timeline: 8 for a prefill step and 1 for a decode step, of any size.

Plausible on Spyre, whose compiled graphs compute a whole chunk or a whole rectangle, padding
included. Source: the interactive figures of the plugin's page.
"""

GPU_ESTIMATE = CostModel(
    prefill_time=1,
    decode_time=1,
    per_chunk_token=6.5e-3,
    per_row=6.5e-3,
    per_cached_token=2.3e-6,
    per_attended_token=1.2e-7,
)
"""A transformer on GPUs at the limits of the data sheet; the unit: a step reads all weights.

- A token computes two FLOP a parameter, whose two bytes the step reads: 2.039 TB/s over 312 TFLOPS.
- A cached token is read: 2 x 80 layers x 8 heads x 128 x 2 bytes, over 141.2 GB of weights.
- A pair takes 4 FLOP x 80 layers x 8,192 in the time of 312 TFLOPS.

The model is the text's example, Llama 70B on A100 80 GB, where a unit is 17 ms on four devices.
Reading and computing are added up, and no server reaches the limits: the estimate puts schedules in
an order and times none. Sources: the data sheet of the A100 80 GB (bandwidth, dense BF16) and the
configuration of Llama 3 70B (70.6 billion parameters).
"""


def attended(computed: int, new: int) -> int:
    """Pairs of one of `new` tokens and a token it attends to, behind `computed` tokens."""
    return new * computed + new * (new + 1) // 2


def step_time(config: PolicyConfig, kind: str) -> float:
    """Duration of a step with an empty table `[cost]`, in units of the simulated clock."""
    return config.prefill_time if kind == PREFILL else config.decode_time


@frozen
class Prefill:
    """A prefill that begins in a step.

    `tokens`: length of the prefill. `reused`: cached tokens of it, which are skipped.
    `recomputed`: cached tokens of it that are computed all the same.
    """

    id: str
    tokens: int
    reused: int = 0
    recomputed: int = 0


@frozen(kw_only=True)
class Work:
    """The work of one step.

    - `kind`: `prefill`, `decode` or `idle`.
    - `chunk_tokens`: prompt tokens that are computed, without padding.
    - `rows`: requests that decode.
    - `cached_tokens`: tokens that are read from the KV cache.
    - `attended_tokens`: pairs of a computed token and a token that it attends to.
    - `prefills`: prefills that begin with the step.
    - `volume`: batch size x largest tkv where batches are rectangular.
    - `padding`: tokens of `volume`, or of the chunks of a prefill, that belong to no request.
    - `transfers`: number of swapped or copied blocks by kind, for policies that move blocks.
    """

    kind: str
    chunk_tokens: int = 0
    rows: int = 0
    cached_tokens: int = 0
    attended_tokens: int = 0
    prefills: tuple[Prefill, ...] = ()
    volume: int = 0
    padding: int = 0
    transfers: Mapping[str, int] = field(factory=dict)

    def duration(self, cost: CostModel) -> float:
        """Duration of the step, in the unit of the costs."""
        step = cost.prefill_time if self.kind == PREFILL else cost.decode_time
        computed = cost.per_chunk_token * self.chunk_tokens + cost.per_row * self.rows
        read = cost.per_cached_token * self.cached_tokens
        return step + computed + read + cost.per_attended_token * self.attended_tokens
