"""What of vLLM V1 is modelled beside what: for each feature, the values of other keys beside it."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from spec.core.errors import ConfigError

_NEWER = ("0.33.0", "0.28.0")
"""The releases that have all features; 0.11.2 lacks some."""


class Feature(StrEnum):
    """What a configuration or its requests can have, as messages call it."""

    POOLING = "pooling"
    STEPS_IN_FLIGHT = "steps_in_flight"
    SEVERAL_STEPS_IN_FLIGHT = "several steps in flight"
    GROUPS = "kv_groups"
    GROUPS_OF_STATES = "kv_groups with mamba"
    GROUPS_WITH_CONNECTOR = "kv_groups and a connector"
    READING_AHEAD = "drafter_reads_ahead"
    GRAMMARS = "grammar"
    SPANS = "encoder_spans"
    SESSIONS = "sessions"


_BESIDE: Mapping[Feature, Mapping[str, tuple[Any, ...]]] = {
    Feature.POOLING: {"num_speculative_tokens": (0,), "steps_in_flight": (0,)},
    Feature.STEPS_IN_FLIGHT: {"release": _NEWER},
    Feature.SEVERAL_STEPS_IN_FLIGHT: {"connector": ("none",)},
    Feature.GROUPS: {"release": _NEWER, "pooling": (False,)},
    # The releases count a block less than they take for what comes within a step beside states.
    Feature.GROUPS_OF_STATES: {
        "prefix_caching": (True,),
        "chunked_prefill": (True,),
        "num_speculative_tokens": (0,),
        "connector": ("none", "async"),
    },
    Feature.GROUPS_WITH_CONNECTOR: {
        "num_speculative_tokens": (0,),
        "num_lookahead_tokens": (0,),
        "steps_in_flight": (0,),
        "sends": (False,),
    },
    # 0.28.0 leaves out the last block of its hits, 0.33.0 hashes a block with the token behind it.
    Feature.READING_AHEAD: {"release": _NEWER, "prefix_caching": (False,), "kv_groups": (None,)},
    Feature.GRAMMARS: {"release": _NEWER, "pooling": (False,)},
    Feature.SPANS: {"release": _NEWER, "connector": ("none",), "steps_in_flight": (0, 1)},
    Feature.SESSIONS: {
        "scheduling": ("fcfs",),
        "connector": ("none",),
        "num_speculative_tokens": (0,),
        "steps_in_flight": (0,),
        "kv_groups": (None,),
        "release": _NEWER,
        "pooling": (False,),
    },
}


def unmodelled_beside(feature: Feature, config: object) -> Iterator[tuple[str, Any, str]]:
    """Each key of the configuration whose value is not modelled beside the feature.

    With that value, and the allowed ones in words.
    """
    for name, values in _BESIDE[feature].items():
        value = getattr(config, name)
        if value not in values:
            yield name, value, ", ".join(map(str, values)).lower()


def is_modelled_beside(feature: Feature, config: object) -> bool:
    """True if the feature is modelled beside all keys of the configuration."""
    return not any(unmodelled_beside(feature, config))


def refuse_unmodelled_beside(feature: Feature, config: object) -> None:
    """Refuse a configuration that has the feature.

    Raises:
        ConfigError: a key has a value that is not modelled beside the feature.
    """
    for name, value, allowed in unmodelled_beside(feature, config):
        raise ConfigError(name, value, f"{allowed} beside {feature}")
