"""What steps compute and read, whatever the policy, and what that costs on the simulated clock.

By default a step costs what the published timeline charges, 8 for a prefill and 1 for a
decode (`PolicyConfig.prefill_time` and `decode_time`). On top of that a step may cost something
for what it computes and reads: the table `[cost]` of a configuration,

    prefill_time = 0.004    # per step, in whatever unit: seconds here
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
    """The cost of a step, in units of the simulated clock, as a sum.

    - `prefill_time`, `decode_time`: per step of this kind; an idle step takes a decode step's.
    - `per_chunk_token`: for each token of a prompt that a prefill step computes, those of cached
      blocks that are computed again included, padding not.
    - `per_row`: for each row of a decode step.
    - `per_cached_token`: for each token that is read from the KV cache, of a prefill or a decode.

    Raises:
        ConfigError: a cost that is negative or no finite number.
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
            if not 0 <= value < inf:  # not: also for NaN
                raise ConfigError(f"cost.{name}", value, "0 or more")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], config: PolicyConfig) -> Self:
        """The table `[cost]` over costs of zero; costs per step come from the configuration.

        Raises:
            ConfigError: an unknown key, or what the class itself refuses.
        """
        known = [one.name for one in fields(cls) if one.name.startswith("per_")]
        for name, value in values.items():
            if name not in known:
                allowed = f"a key out of {', '.join(known)}"
                raise ConfigError(f"cost.{name}", value, allowed)
        return cls(prefill_time=config.prefill_time, decode_time=config.decode_time, **values)

    def beyond_times(self) -> dict[str, float]:
        """The table `[cost]` that this model comes from, without costs of zero."""
        costs = asdict(self).items()
        return {name: cost for name, cost in costs if name.startswith("per_") and cost}


def step_time(config: PolicyConfig, kind: str) -> float:
    """Simulated time units of a step that costs nothing beyond its kind."""
    return config.prefill_time if kind == PREFILL else config.decode_time


@frozen
class Prefill:
    """A prefill that begins in a step.

    `tokens`: all that it covers. `reused`: those of them that were cached and are skipped.
    `recomputed`: cached, yet computed again.
    """

    id: str
    tokens: int
    reused: int = 0
    recomputed: int = 0


@frozen(kw_only=True)
class Work:
    """One step's work.

    `kind`: `prefill`, `decode` or `idle`. `chunk_tokens`: of prompts, computed; padding not
    counted. `rows`: requests that decode. `cached_tokens`: read from the KV cache. `prefills`:
    those that began. `volume`: batch x max tkv where batches are rectangular; `padding`: what of
    it, or of the chunks of a prefill, is no token of a request. `transfers`: blocks that were
    swapped or copied, by kind, where steps do that.
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
        """How long it takes: seconds if the costs are given in seconds."""
        step = cost.prefill_time if self.kind == PREFILL else cost.decode_time
        computed = cost.per_chunk_token * self.chunk_tokens + cost.per_row * self.rows
        return step + computed + cost.per_cached_token * self.cached_tokens
