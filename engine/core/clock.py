"""Work of a step and its duration on the simulated clock, for all policies.

By default a step takes the time of the published timeline, 8 for a prefill and 1 for a decode
(`PolicyConfig.prefill_time` and `decode_time`). The table `[cost]` of a configuration adds a cost
for the tokens that a step computes and reads:

    prefill_time = 0.004    # per step, in any unit: seconds here
    decode_time = 0.018

    [cost]
    per_chunk_token = 0.00006
    per_row = 0.0001
    per_cached_token = 0.0000002
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

    Raises:
        ConfigError: a cost is negative or not a finite number.
    """

    prefill_time: float = 8.0
    decode_time: float = 1.0
    per_chunk_token: float = 0.0
    per_row: float = 0.0
    per_cached_token: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"cost.{name}", value, "a number")
            if not 0 <= value < inf:  # `not` also catches NaN
                raise ConfigError(f"cost.{name}", value, "0 or more")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], config: PolicyConfig) -> Self:
        """The costs of the table `[cost]`; keys that are absent are 0.

        `config` has the costs per step.

        Raises:
            ConfigError: an unknown key, or a cost that is negative or not a finite number.
        """
        names = [key.name for key in fields(cls) if key.name.startswith("per_")]
        for name, value in values.items():
            if name not in names:
                allowed = f"a key out of {', '.join(names)}"
                raise ConfigError(f"cost.{name}", value, allowed)
        return cls(prefill_time=config.prefill_time, decode_time=config.decode_time, **values)

    def beyond_times(self) -> dict[str, float]:
        """The table `[cost]` of this model without costs of 0."""
        costs = asdict(self).items()
        return {name: cost for name, cost in costs if name.startswith("per_") and cost}


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
    - `prefills`: prefills that begin with the step.
    - `volume`: batch size x largest tkv where batches are rectangular.
    - `padding`: tokens of `volume`, or of the chunks of a prefill, that belong to no request.
    - `transfers`: number of swapped or copied blocks by kind, for policies that move blocks.
    """

    kind: str
    chunk_tokens: int = 0
    rows: int = 0
    cached_tokens: int = 0
    prefills: tuple[Prefill, ...] = ()
    volume: int = 0
    padding: int = 0
    transfers: Mapping[str, int] = field(factory=dict)

    def duration(self, cost: CostModel) -> float:
        """Duration of the step, in the unit of the costs."""
        step = cost.prefill_time if self.kind == PREFILL else cost.decode_time
        computed = cost.per_chunk_token * self.chunk_tokens + cost.per_row * self.rows
        return step + computed + cost.per_cached_token * self.cached_tokens
